"""The one way in which registrations are read and written: YAML that means what it looks like.

In: bytes. Out: plain data. Words and numbers are read as JSON reads them: `off`, `yes`, `0123` and `2026-01-01` are
text, `1e-6` is a number. Refused: a key given twice, anchors and aliases, tags, keys that are no text, numbers that are
not finite. What is written reads back as the same value.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from vla_rl.errors import ConfigError

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times as fast, where it was built
_WORDS = (
    ("tag:yaml.org,2002:null", r"~|null|", ["~", "n", ""]),
    ("tag:yaml.org,2002:bool", r"true|false", ["t", "f"]),
    ("tag:yaml.org,2002:int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)",
        list("-0123456789"),
    ),
)
_PLAIN = {tag for tag, _, _ in _WORDS} | {f"tag:yaml.org,2002:{name}" for name in ("str", "map", "seq")}


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, first in _WORDS:
        for character in first:
            table.setdefault(character, []).append((tag, re.compile(f"(?:{pattern})$")))
    return table


class _Loader(_Base):
    yaml_implicit_resolvers = _resolvers()

    def construct_yaml_float(self, node: Any) -> float:
        number = float(node.value)
        if not math.isfinite(number):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value} is no finite number", node.start_mark)
        return number

    def construct_yaml_int(self, node: Any) -> int:
        return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _resolvers()

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Sentences of several lines as a block, so that a difference of two versions is a difference of lines."""
    block = "\n" in text and not any(line != line.rstrip() for line in text.split("\n"))
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if block else None)


_Dumper.add_representer(str, _write_text)
_Dumper.add_representer(float, lambda dumper, number: dumper.represent_scalar("tag:yaml.org,2002:float", repr(number)))


def load(data: bytes, where: str) -> Any:
    """The plain value that `data` holds.

    Args:
        where: file, for messages.

    Raises:
        ConfigError: it is no such YAML; names the line.
    """
    try:
        loader = _Loader(data.decode("utf-8"))
        try:
            node = loader.get_single_node()
            _check(node, where, set())
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        raise ConfigError(f"byte {error.start} is no UTF-8", where=where) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets
        raise ConfigError(f"this is not read here: {error}", where=where) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}" if mark else where
        raise ConfigError(f"this is no YAML: {getattr(error, 'problem', None) or error}", where=place) from None


def dump(value: Any) -> str:
    """YAML text of a plain value, keys in their order; `load` gives the value back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _check(node: Any, where: str, seen: set[int]) -> None:
    if node is None:
        return
    line = f"{where}, line {node.start_mark.line + 1}"
    if id(node) in seen:
        raise ConfigError("anchors and aliases are not read here", where=line, remedy="write the value out")
    seen.add(id(node))
    if node.tag not in _PLAIN:
        raise ConfigError(f"the tag {node.tag} is not read here", where=line, remedy="leave it away")
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, child in node.value:
            at = f"{where}, line {key.start_mark.line + 1}"
            if key.tag != "tag:yaml.org,2002:str":
                raise ConfigError(f"the key {key.value!r} is no text", where=at, remedy="put it in quotes")
            if key.value in keys:
                raise ConfigError(f"the key {key.value!r} is given twice", where=at)
            keys.add(key.value)
            _check(child, where, seen)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _check(child, where, seen)
