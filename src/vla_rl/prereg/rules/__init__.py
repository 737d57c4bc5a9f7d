"""Rule kinds: a closed set, each a frozen dataclass of typed parameters."""
