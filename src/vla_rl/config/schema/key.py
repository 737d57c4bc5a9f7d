"""How a configuration key is declared."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def key(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A configuration key: default, help text (`--help-keys`) and the values it may take (checked by `compose`)."""
    metadata = {"help": help, "above": above, "at_least": at_least, "at_most": at_most, "choices": choices}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)
