"""How a configuration key is declared."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any

# What the last word of a key's name says about its unit.
UNITS = {
    "cm": "cm", "px": "pixels", "deg": "degrees", "s": "seconds", "h": "hours", "ticks": "ticks", "gib": "GiB",
    "nats": "nats", "bins": "bins", "steps": "steps", "rows": "rows", "tokens": "tokens", "waves": "waves",
}  # fmt: skip


def key(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    unit: str | None = None,
) -> Any:
    """A configuration key: default, help text (`--help-keys`) and the values it may take (checked by `compose`).

    Args:
        unit: where the name does not end in one; see `unit`.
    """
    metadata = {
        "help": help, "above": above, "at_least": at_least, "at_most": at_most, "choices": choices, "unit": unit,
    }  # fmt: skip
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def unit(declared: Field[Any]) -> str | None:
    """The unit of a key's value; None for plain numbers, counts of what the key is named after, words and paths."""
    number = any(kind in str(declared.type) for kind in ("int", "float"))
    return declared.metadata.get("unit") or (UNITS.get(declared.name.rpartition("_")[2]) if number else None)
