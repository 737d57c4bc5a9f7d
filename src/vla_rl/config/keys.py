"""What a key means and which values it may take, for a composed tree.

In: the name of a primary configuration and its resolved tree. Out: an error for a value out of range, or the help of
every key with its effective default. Keys of a component that is not ours have no schema: its constructor judges them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from vla_rl.config.schema import ROOTS, SCHEMAS
from vla_rl.errors import ConfigError

_COMPONENTS = {schema._target_: schema for schema in SCHEMAS.values()}


def check_values(primary: str, tree: dict[str, Any]) -> None:
    """Refuse numbers that are not finite or out of range, and words that are none of the choices.

    Raises:
        ConfigError: naming the key, its value and what it may be.
    """
    for path, value, field in _keys(primary, tree):
        if allowed := _violated(value, field.metadata):
            raise ConfigError(f"{path}={value} is not possible", where=path, remedy=f"it must be {allowed}")


def key_help(primary: str, tree: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(key path, effective value, help) of every key of a command, in file order."""
    return [(path, str(value), field.metadata.get("help", "")) for path, value, field in _keys(primary, tree)]


def _keys(primary: str, tree: dict[str, Any]) -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    for root in dataclasses.fields(ROOTS[primary]):
        value = tree[root.name]
        if not isinstance(value, dict):
            yield root.name, value, root
            continue
        section = root.default_factory if isinstance(root.default_factory, type) else None
        schema = section or _COMPONENTS.get(value.get("_target_", ""))
        for field in dataclasses.fields(schema) if schema else ():
            if field.name != "_target_":
                yield f"{root.name}.{field.name}", value[field.name], field


def _violated(value: Any, bounds: Any) -> str | None:
    """What `value` should have been, or None if it is fine."""
    if value is None or isinstance(value, bool | list):
        return None
    if isinstance(value, str):
        choices = bounds.get("choices") or ()
        return f"one of {', '.join(choices)}" if choices and value not in choices else None
    above, at_least, at_most = (bounds.get(name) for name in ("above", "at_least", "at_most"))
    if not math.isfinite(value):
        return "a finite number"
    if above is not None and not value > above:
        return f"above {above}"
    if at_least is not None and not value >= at_least:
        return f"at least {at_least}"
    if at_most is not None and not value <= at_most:
        return f"at most {at_most}"
    return None
