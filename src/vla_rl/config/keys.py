"""What a key means and which values it may take, for a composed tree.

In: the name of a primary configuration and its resolved tree. Out: an error for a value out of range, or the help of
every key with its effective default. Keys of a component that is not ours have no schema: its constructor judges them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vla_rl.config.schema import ROOTS, SCHEMAS
from vla_rl.errors import ConfigError

COMPONENTS = {schema._target_: schema for schema in SCHEMAS.values()}


def check_values(primary: str, tree: dict[str, Any]) -> None:
    """Refuse numbers that are not finite or out of range, and words that are none of the choices.

    Raises:
        ConfigError: naming the key, its value and what it may be.
    """
    _check(_keys(primary, tree))


def check_section(path: str, schema: type, values: Mapping[str, Any]) -> None:
    """Refuse a section that lacks keys of its schema, has others, or holds values that are not possible.

    For code that is handed a section without `compose`, e.g. a component that is built from Python.

    Raises:
        ConfigError: naming the key.
    """
    names = [field.name for field in dataclasses.fields(schema)]
    for name in sorted(set(names) ^ set(values)):
        what = "there is no key" if name in values else "no value for"
        raise ConfigError(f"{what} {path}.{name}", where=path, remedy=f"the keys are: {', '.join(names)}")
    _check(_fields(path, schema, values))


def version_gap(primary: str, tree: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Sections and dotted keys that a stored tree lacks, and those that it has and this version does not know."""
    roots = {root.name: root for root in dataclasses.fields(ROOTS[primary])}
    missing, unknown = [name for name in roots if name not in tree], [name for name in tree if name not in roots]
    for name in (name for name in roots if isinstance(tree.get(name), dict)):
        absent, strange = _gap(name, _nested(roots[name]) or COMPONENTS.get(tree[name].get("_target_", "")), tree[name])
        missing, unknown = missing + absent, unknown + strange
    return missing, unknown


def _gap(path: str, schema: type | None, value: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    if schema is None:
        return [], []
    fields = {field.name: field for field in dataclasses.fields(schema)}
    missing = [f"{path}.{name}" for name in fields if name not in value and name != "_target_"]
    unknown = [f"{path}.{name}" for name in value if name not in fields and name != "_target_"]
    for name, field in fields.items():
        if (inner := _nested(field)) is not None and isinstance(value.get(name), dict):
            absent, strange = _gap(f"{path}.{name}", inner, value[name])
            missing, unknown = missing + absent, unknown + strange
    return missing, unknown


def _check(keys: Iterable[tuple[str, Any, dataclasses.Field[Any]]]) -> None:
    for path, value, field in keys:
        if allowed := _violated(value, field.metadata):
            raise ConfigError(f"{path}={value} is not possible", where=path, remedy=f"it must be {allowed}")


def key_help(primary: str, tree: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(key path, effective value, help) of every key of a command, in file order."""
    return [(path, str(value), field.metadata.get("help", "")) for path, value, field in _keys(primary, tree)]


def key_types(primary: str, tree: dict[str, Any]) -> dict[str, str]:
    """The declared type of every key of a configuration, e.g. ``float | None``; of a component that is not ours, the
    type of its value."""
    declared = {path: str(field.type) for path, _, field in _keys(primary, tree)}
    foreign = [n for n, node in tree.items() if isinstance(node, dict) and node.get("_target_", "") not in COMPONENTS]
    found = {f"{name}.{key}": type(value).__name__ for name in foreign for key, value in tree[name].items()}
    return {**found, **declared}


def _keys(primary: str, tree: dict[str, Any]) -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    for root in dataclasses.fields(ROOTS[primary]):
        value = tree[root.name]
        if not isinstance(value, dict):
            yield root.name, value, root
            continue
        schema = _nested(root) or COMPONENTS.get(value.get("_target_", ""))
        yield from _fields(root.name, schema, value)


def _nested(field: dataclasses.Field[Any]) -> type | None:
    """The dataclass that a field holds, if it is one with defaults."""
    return field.default_factory if isinstance(field.default_factory, type) else None


def _fields(
    path: str, schema: type | None, value: Mapping[str, Any]
) -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    for field in dataclasses.fields(schema) if schema else ():
        if (inner := _nested(field)) is not None:
            yield from _fields(f"{path}.{field.name}", inner, value[field.name])
        elif field.name != "_target_":
            yield f"{path}.{field.name}", value[field.name], field


def _violated(value: Any, bounds: Any) -> str | None:
    """What `value` should have been, or None if it is fine."""
    if value is None or isinstance(value, bool | list | dict):
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
