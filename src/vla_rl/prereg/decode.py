"""Plain data into frozen dataclasses, strictly: the type that a field declares and no other.

In: what a file holds, and a dataclass. Out: an instance, or an error that names the path. 1 is no float, "3" is no
number, a key that the dataclass does not have is refused, and so is one that lacks. Understood: text, int, float, bool,
`None`, unions of these, `Literal`, `list[X]`, `tuple[X, ...]`, `dict[str, X]`, dataclasses, `Any`, and mappings whose
`kind` chooses the dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Literal

from vla_rl.errors import ConfigError

Choose = Callable[[type, Mapping[str, Any], str], type]


def decode[T](schema: type[T], value: Any, where: str, choose: Choose | None = None) -> T:
    """An instance of the dataclass `schema`.

    Args:
        value: plain data.
        where: path of the value, for messages; may be empty.
        choose: given a dataclass, a mapping and its path, the dataclass to decode into: for unions by `kind`.

    Raises:
        ConfigError: what is wrong, where.
    """
    return _dataclass(schema, value, where, choose)


def decode_file[T](schema: type[T], value: Any, file: str, choose: Choose | None = None) -> T:
    """As `decode`, of what a file holds: its name stands before the path in every message."""
    try:
        return decode(schema, value, "", choose)
    except ConfigError as error:
        where = f"{file}: {error.where}" if error.where else file
        raise ConfigError(error.what, where=where, remedy=error.remedy) from None


@functools.cache
def _types(schema: type) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _dataclass(schema: type, value: Any, where: str, choose: Choose | None) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(value, "a mapping", where)
    chosen = choose(schema, value, where) if choose else schema
    value = {name: item for name, item in value.items() if not (chosen is not schema and name == "kind")}
    fields = {field.name: field for field in dataclasses.fields(chosen)}
    for name in value:
        if name not in fields:
            close = get_close_matches(name, fields, n=1)
            raise ConfigError(
                f"there is no key {name!r}",
                where=_join(where, name),
                remedy=f"did you mean {close[0]}?" if close else f"the keys are: {', '.join(fields)}",
            )
    lacking = [
        name
        for name, field in fields.items()
        if name not in value and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if lacking:
        raise ConfigError(f"no value for {', '.join(lacking)}", where=where or None, remedy="add it")
    hints = _types(chosen)
    given = {name: _value(hints[name], item, _join(where, name), choose) for name, item in value.items()}
    try:
        return chosen(**given)
    except ConfigError as error:
        raise ConfigError(error.what, where=_join(where, error.where or ""), remedy=error.remedy) from None


def _value(hint: Any, value: Any, where: str, choose: Choose | None) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        if not any(type(value) is type(choice) and value == choice for choice in arguments):
            raise _wrong(value, f"one of {', '.join(map(str, arguments))}", where)
        return value
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, value, where, choose)
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise _wrong(value, "a list", where)
        items = [_value(arguments[0], item, _item(where, i, item), choose) for i, item in enumerate(value)]
        return items if origin is list else tuple(items)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(value, "a mapping", where)
        return {name: _value(arguments[1], item, _join(where, name), choose) for name, item in value.items()}
    if dataclasses.is_dataclass(hint) or inspect.isabstract(hint):
        return _dataclass(typing.cast(type, hint), value, where, choose)
    if hint is type(None) or hint is None:
        if value is not None:
            raise _wrong(value, "null", where)
        return None
    if type(value) is not hint:
        raise _wrong(value, _name(hint), where)
    return value


def _union(arguments: tuple[Any, ...], value: Any, where: str, choose: Choose | None) -> Any:
    if value is None and type(None) in arguments:
        return None
    errors: list[ConfigError] = []
    for hint in arguments:
        if hint is type(None):
            continue
        try:
            return _value(hint, value, where, choose)
        except ConfigError as error:
            errors.append(error)
    deep = [error for error in errors if error.where != where]  # of the member that this is meant to be
    if deep or len(errors) == 1:
        raise (deep or errors)[0]
    wanted = " or ".join(dict.fromkeys(_name(hint) for hint in arguments))
    raise _wrong(value, wanted, where)


def _name(hint: Any) -> str:
    return {type(None): "null", str: "text", int: "a whole number", float: "a number such as 1.0"}.get(hint, str(hint))


def _wrong(value: Any, wanted: str, where: str) -> ConfigError:
    shown = repr(value) if len(repr(value)) < 60 else type(value).__name__
    return ConfigError(f"{shown} is not {wanted}", where=where or None)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}".strip(".")


def _item(where: str, i: int, item: Any) -> str:
    named = item.get("id") if isinstance(item, Mapping) else None
    return f"{where}[{named if isinstance(named, str) else i}]"
