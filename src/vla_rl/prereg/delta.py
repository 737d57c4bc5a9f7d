"""Differences of two documents as a list of operations, and back.

In: plain mappings. Out: operations `set`, `add` and `remove`, each with the path and what stood there before; applying
them to the one gives the other. Records of a list that have an `id` are addressed by it (`reads[primary].rule.alpha`);
any other list is one value. A wrong `from` is a conflict, also in its type: 1 is not 1.0. One engine for amendments,
arms, rungs, overrides and comparisons.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vla_rl.errors import ConfigError, UsageError
from vla_rl.prereg.canonical import same

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STEP = re.compile(r'\.?([A-Za-z0-9_-]+)|\[("(?:[^"\\]|\\.)*")\]|\[([^\[\]"]+)\]')
_NOTHING = object()


@dataclass(frozen=True)
class Key:
    """A step into a mapping."""

    name: str


@dataclass(frozen=True)
class Record:
    """A step to the record of a list that has this id."""

    id: str


Path = tuple[Key | Record, ...]


@dataclass(frozen=True)
class Op:
    """One change.

    Attributes:
        op: ``"set"``, ``"add"`` or ``"remove"``.
        path: where.
        before: what stands there; not for `add`.
        after: what will stand there; not for `remove`.
    """

    op: str
    path: Path
    before: Any = None
    after: Any = None

    def plain(self) -> dict[str, Any]:
        """As stored: `op`, `path`, and `from` and `to` where they apply."""
        stored: dict[str, Any] = {"op": self.op, "path": write_path(self.path)}
        if self.op != "add":
            stored["from"] = self.before
        if self.op != "remove":
            stored["to"] = self.after
        return stored

    @classmethod
    def read(cls, stored: Any) -> Op:
        """The inverse of `plain`.

        Raises:
            ConfigError: it is none.
        """
        wanted = {"set": {"from", "to"}, "add": {"to"}, "remove": {"from"}}
        kind = stored.get("op") if isinstance(stored, Mapping) else None
        if (
            not isinstance(kind, str)
            or kind not in wanted
            or set(stored) != {"op", "path"} | wanted[kind]
            or not isinstance(stored["path"], str)
        ):
            raise ConfigError(f"{stored!r} is no operation", remedy="set needs path, from, to; add to; remove from")
        return cls(kind, read_path(stored["path"]), stored.get("from"), stored.get("to"))


def read_path(text: str) -> Path:
    """``reads[primary].rule.alpha`` or ``levers["optim.lr"]`` as steps.

    Raises:
        UsageError: it is no path.
    """
    steps: list[Key | Record] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or (match[1] is not None and (at == 0) == match[0].startswith(".")):
            raise UsageError(f"{text!r} is no path", where="path", remedy="write a.b.c, or reads[id].rule.n")
        if match[1] is not None:
            steps.append(Key(match[1]))
        elif match[2] is not None:
            try:
                steps.append(Key(json.loads(match[2])))
            except ValueError:
                raise UsageError(f"{text!r} is no path", where="path", remedy="write names in quotes as JSON") from None
        else:
            steps.append(Record(match[3]))
        at = match.end()
    if not steps:
        raise UsageError("the path is empty", where="path")
    return tuple(steps)


def write_path(path: Path) -> str:
    """The inverse of `read_path`."""
    text = ""
    for step in path:
        if isinstance(step, Record):
            text += f"[{step.id}]"
        elif _PLAIN_KEY.fullmatch(step.name):
            text += f".{step.name}" if text else step.name
        else:
            text += f"[{json.dumps(step.name, ensure_ascii=False)}]"
    return text


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Op]:
    """What turns `a` into `b`."""
    return _mapping(a, b, ())


def apply(ops: Iterable[Op], document: Mapping[str, Any]) -> dict[str, Any]:
    """A changed copy of `document`.

    Raises:
        ConfigError: something else stands where an operation says `from`, or nothing, or something where it adds.
    """
    root = copy.deepcopy(dict(document))
    for op in ops:
        _apply(op, root)
    return root


def lookup(document: Mapping[str, Any], path: Path) -> Any:
    """What stands at a path.

    Raises:
        ConfigError: nothing does.
    """
    value: Any = document
    for i, step in enumerate(path):
        value = _step(value, step)
        if value is _NOTHING:
            raise ConfigError(f"there is nothing at {write_path(path[: i + 1])}", where=write_path(path))
    return value


def set_values(document: Mapping[str, Any], values: Mapping[str, Any], *, where: str) -> list[Op]:
    """Operations that set leaves which exist, ``{"optim.lr": 1e-6}``, or put one component in the place of another.

    Raises:
        ConfigError: a path that the document does not have.
    """
    ops = []
    for text, value in values.items():
        path = read_path(text)
        before = lookup(document, path)
        section = isinstance(before, Mapping) and not (_is_component(before) and _is_component(value))
        if section or (isinstance(before, list) and not isinstance(value, list)):
            raise ConfigError(f"{text} is a section, not a value", where=where, remedy="name one of its keys")
        if not same(before, value):
            ops.append(Op("set", path, before, value))
    return ops


def _is_component(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


def overlaps(a: Path, b: Path) -> bool:
    """Whether one of two paths leads to or into the other."""
    short = min(len(a), len(b))
    return a[:short] == b[:short]


# ------------------------------------------------------------------------------------------------------------ comparing
def _mapping(a: Mapping[str, Any], b: Mapping[str, Any], path: Path) -> list[Op]:
    ops: list[Op] = []
    for name in [*a, *(name for name in b if name not in a)]:
        here = (*path, Key(name))
        if name not in b:
            ops.append(Op("remove", here, before=copy.deepcopy(a[name])))
        elif name not in a:
            ops.append(Op("add", here, after=copy.deepcopy(b[name])))
        else:
            ops += _value(a[name], b[name], here)
    return ops


def _value(a: Any, b: Any, path: Path) -> list[Op]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return _mapping(a, b, path)
    if isinstance(a, list) and isinstance(b, list) and (ops := _records(a, b, path)) is not None:
        return ops
    return [] if same(a, b) else [Op("set", path, copy.deepcopy(a), copy.deepcopy(b))]


def _records(a: list[Any], b: list[Any], path: Path) -> list[Op] | None:
    """By id, if both lists hold such records and adding at the end gives the order of `b`; else None."""
    old, new = _by_id(a), _by_id(b)
    if old is None or new is None:
        return None
    kept, added = [i for i in old if i in new], [i for i in new if i not in old]
    if [*kept, *added] != list(new) or not kept:
        return None
    ops = [Op("remove", (*path, Record(i)), before=copy.deepcopy(old[i])) for i in old if i not in new]
    for i in kept:
        ops += _mapping(old[i], new[i], (*path, Record(i)))
    return ops + [Op("add", (*path, Record(i)), after=copy.deepcopy(new[i])) for i in added]


def _by_id(records: Sequence[Any]) -> dict[str, Any] | None:
    ids = [record.get("id") if isinstance(record, Mapping) else None for record in records]
    if not all(isinstance(i, str) and re.fullmatch(r'[^\[\]"]+', i) for i in ids) or len(set(ids)) != len(ids):
        return None
    return dict(zip(ids, records, strict=True))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- applying
def _step(value: Any, step: Key | Record) -> Any:
    if isinstance(step, Key):
        return value.get(step.name, _NOTHING) if isinstance(value, Mapping) else _NOTHING
    found = _by_id(value) if isinstance(value, list) else None
    return _NOTHING if found is None else found.get(step.id, _NOTHING)


def _apply(op: Op, root: dict[str, Any]) -> None:
    where = write_path(op.path)
    parent: Any = root if len(op.path) == 1 else lookup(root, op.path[:-1])
    last = op.path[-1]
    present = _step(parent, last)
    if op.op == "add":
        if present is not _NOTHING:
            raise ConfigError("something stands there already", where=where)
    elif present is _NOTHING:
        raise ConfigError("there is nothing to change", where=where)
    elif not same(present, op.before):
        raise ConfigError(
            f"{present!r} stands there, the change was made from {op.before!r}", where=where, remedy="make it anew"
        )
    if isinstance(last, Key):
        if not isinstance(parent, dict):
            raise ConfigError("nothing can be put here: its parent is no mapping", where=where)
        if op.op == "remove":
            del parent[last.name]
        else:
            parent[last.name] = copy.deepcopy(op.after)
    else:
        _apply_record(op, parent, last, where)


def _apply_record(op: Op, parent: Any, last: Record, where: str) -> None:
    known = _by_id(parent) if isinstance(parent, list) else None
    if known is None:
        raise ConfigError("nothing can be put here: its parent is no list of records with ids", where=where)
    at = list(known).index(last.id) if last.id in known else len(parent)
    if op.op == "remove":
        del parent[at]
        return
    if not isinstance(op.after, Mapping) or op.after.get("id") != last.id:
        raise ConfigError("the record must have the id that its path names", where=where)
    parent[at : at + 1] = [copy.deepcopy(op.after)]
