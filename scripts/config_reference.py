"""Writes `docs/reference.md`: every configuration key, from the schema, and every option, from `conf/`.

Run with `python scripts/config_reference.py` (or `make docs`) after a key or an option has changed. Which module takes
a section, and which class a component's keys go to, is read off the sources; nothing is imported but the schema.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING

from vla_rl.cli.options import PRIMARY
from vla_rl.config.schema import ROOTS, SCHEMAS
from vla_rl.config.schema.key import unit

ROOT = Path(__file__).resolve().parent.parent
PAGE, CONF, SOURCES = ROOT / "docs" / "reference.md", ROOT / "conf", ROOT / "src" / "vla_rl"
HEAD = """# Configuration keys

Every key of every command; `python scripts/config_reference.py` writes this page from `src/vla_rl/config/schema/` and
`conf/`. A key is set as an override, `vla-rl train optim.lr=1e-5`; an option of a group replaces all of the group,
`vla-rl train reward=v2`. `--help-keys` of a command lists its keys with their values under the overrides beside it.

- **Default** is the schema's; options set what their row says. A *required* key has none.
- **Unit** is empty for plain numbers, counts of what the key is named after, words and paths.
- **Readers.** The keys of a component (a table that names a class or function) are the arguments of what it names,
  which reads all of them and refuses others. The keys of a section are handed out by the modules that are named above
  its table. Which line then reads which key shows only when a command runs, so there is no such column; a training run
  whose configuration holds a key that nothing has read does not start.
"""


@dataclasses.dataclass(frozen=True)
class Table:
    """The keys of one section, or of one kind of component.

    Attributes:
        path: what its keys begin with, e.g. ``sim.look``; empty for keys of the top level.
        schema: where they are declared.
        commands: that have this section.
    """

    path: str
    schema: type
    commands: tuple[str, ...]

    @property
    def target(self) -> str | None:
        """The class or function that is built from it."""
        return getattr(self.schema, "_target_", None)

    @property
    def keys(self) -> list[dataclasses.Field[Any]]:
        kept = (field for field in dataclasses.fields(self.schema) if field.name != "_target_")
        return [field for field in kept if not is_section(field)]


def is_section(field: dataclasses.Field[Any]) -> bool:
    """Whether a field holds keys of its own."""
    return isinstance(field.default_factory, type)


def commands(primary: str) -> list[str]:
    """The commands that start from a primary configuration."""
    return [command for command, name in PRIMARY.items() if name == primary] or [primary]


def tables() -> list[Table]:
    """All of them, in the order of the commands; one that several commands share once."""
    users: dict[tuple[str, type], list[str]] = {}
    for primary, root in ROOTS.items():
        for field in dataclasses.fields(root):
            schemas = [field.default_factory] if is_section(field) else in_group(field.name)
            for schema in schemas:
                for path, inner in (field.name, schema), *nested(field.name, schema):
                    users.setdefault((path, inner), []).extend(commands(primary))
    order = list(dict.fromkeys(path for path, _ in users))
    found = [Table(path, schema, tuple(names)) for (path, schema), names in users.items()]
    return sorted(found, key=lambda table: order.index(table.path))


def in_group(group: str) -> list[type]:
    """The schemas of a group of components."""
    return [schema for (name, _), schema in SCHEMAS.items() if name == group]


def nested(path: str, schema: type) -> list[tuple[str, type]]:
    """Sections inside of a section, e.g. ``sim.look``."""
    inner = [field for field in dataclasses.fields(schema) if is_section(field)]
    return [(f"{path}.{field.name}", field.default_factory) for field in inner]


def takers() -> dict[tuple[str, str], list[str]]:
    """(section, name of its schema) -> modules that ask for it."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if ".section(" in text else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="section"), args=[ast.Constant(value=str(name)), ast.Name(id=schema)]
                ):
                    found.setdefault((name, schema), set()).add(path.relative_to(ROOT / "src").as_posix())
    return {key: sorted(modules) for key, modules in found.items()}


@dataclasses.dataclass(frozen=True)
class Option:
    """An option file.

    Attributes:
        name: e.g. ``tiny``.
        schema: the schema that it names, None for an option of a section.
        on: the options that it starts from.
        sets: key -> value, in which it differs from these.
        text: its comment.
    """

    name: str
    schema: str | None
    on: tuple[str, ...]
    sets: Mapping[str, Any]
    text: str


def options(path: str) -> list[Option]:
    """The options of a group, e.g. of ``sim.look``."""
    folder = CONF / path.replace(".", "/")
    return [_option(file) for file in sorted(folder.glob("*.yaml"))] if path else []


def _option(file: Path) -> Option:
    text = file.read_text()
    values = yaml.safe_load(text) or {}
    schema, on = None, []
    for entry in values.pop("defaults", []):
        if isinstance(entry, str) and entry.startswith("schema_"):
            schema = entry
        elif isinstance(entry, str):
            on.append(entry)
        else:
            on += [f"{group.removeprefix('override /')}={name}" for group, name in entry.items()]
    comments = (line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    said = " ".join(comment for comment in comments if not comment.startswith("@package"))
    return Option(file.stem, schema, tuple(on), dict(_flat(values)), said)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def page() -> str:
    """The whole page."""
    parts, asked, seen = [HEAD, _commands()], takers(), set()
    for table in tables():
        if table.path not in seen:
            seen.add(table.path)
            parts.append(f"## {table.path}\n")
            if chosen := options(table.path):
                parts.append(_options(table.path, chosen))
        parts.append(_table(table, asked))
    parts += [_top_level(), "## experiment\n", "Overlays: each sets keys of several sections at once.\n",
              _options("experiment", options("experiment"))]  # fmt: skip
    return "\n".join(part for part in parts if part)


def _commands() -> str:
    rows = []
    for primary in ROOTS:
        chosen = _option(CONF / f"{primary}.yaml")
        sections = [field.name for field in dataclasses.fields(ROOTS[primary]) if is_section(field)]
        picked = [text for text in chosen.on if "=" in text and not text.endswith("=None")]
        others = [name for name in sections if not any(text.startswith(f"{name}=") for text in picked)]
        links = ", ".join(f"[{name}](#{name})" for name in others)
        names = _codes(f"vla-rl {name}" for name in commands(primary))
        rows.append((names, f"`conf/{primary}.yaml`", _codes(picked), links))
    return "## Which command has what\n\n" + _rows(("command", "file", "options that it starts with", "sections"), rows)


def _options(path: str, chosen: Iterable[Option]) -> str:
    group, rows = path.replace(".", "/"), []
    for option in chosen:
        sets = [f"{key}={_value(value)}" for key, value in option.sets.items()]
        rows.append((f"`{group}={option.name}`", _prose(option.text), _codes(option.on), _codes(sets)))
    return _rows(("option", "what it is", "on top of", "sets"), rows)


def _table(table: Table, asked: Mapping[tuple[str, str], list[str]]) -> str:
    users = _codes(f"vla-rl {name}" for name in table.commands)
    if table.target:
        names = {schema: name for (_, name), schema in SCHEMAS.items()}
        of = [f"`{table.path}={one.name}`" for one in options(table.path) if one.schema == names[table.schema]]
        intro = f"{', '.join(of)} ({users}): the arguments of `{table.target}`."
        if not table.keys:
            return f"{intro} It has no keys.\n"
    else:
        modules = asked.get((table.path, table.schema.__name__), [])
        handed = f"; handed out by {', '.join(f'`{module}`' for module in modules)}" if modules else ""
        intro = f"`{table.schema.__name__}`: {users}{handed}."
    rows = [_row(f"{table.path}.{field.name}", field) for field in table.keys]
    return f"{intro}\n\n{_rows(COLUMNS, rows)}"


COLUMNS = ("key", "type", "unit", "default", "may be", "meaning")


def _top_level() -> str:
    rows: dict[str, tuple[str, ...]] = {}
    for root in ROOTS.values():
        for field in dataclasses.fields(root):
            if field.metadata:
                rows.setdefault(field.name, _row(field.name, field))
    return f"## Keys outside of sections\n\n{_rows(COLUMNS, rows.values())}"


def _row(path: str, field: dataclasses.Field[Any]) -> tuple[str, ...]:
    kind = str(field.type).replace(" | None", " or null").replace("list[", "list of ").rstrip("]")
    default = field.default_factory() if callable(field.default_factory) else field.default
    shown = "*required*" if default == MISSING else f"`{_value(default)}`"
    return (
        f"`{path}`",
        kind,
        unit(field) or "",
        shown,
        _allowed(field.metadata),
        _prose(field.metadata.get("help", "")),
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _allowed(bounds: Mapping[str, Any]) -> str:
    if choices := bounds.get("choices"):
        return _codes(choices)
    above, low, high = (bounds.get(name) for name in ("above", "at_least", "at_most"))
    words = [f"above {above:g}" if above is not None else "", f"at least {low:g}" if low is not None else "",
             f"at most {high:g}" if high is not None else ""]  # fmt: skip
    return ", ".join(word for word in words if word)


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _prose(text: str) -> str:
    """Text in which nothing is markup but code in backquotes."""
    pieces = re.split(r"(`[^`]*`)", text)
    plain = (re.sub(r"([*_|])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2])
    return "".join(
        word for pair in zip(plain, [*(p.replace("|", r"\|") for p in pieces[1::2]), ""], strict=True) for word in pair
    )


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
