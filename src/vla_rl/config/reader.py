"""A composed configuration that knows which of its keys were read.

In: the resolved tree of a composition. Out: typed sections, built components, and an error that lists every key that
nothing read: a key without a reader is a setting that the user believes in and the run ignores.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, TypeVar, cast

from vla_rl.config.build import build
from vla_rl.errors import ConfigError

Section = TypeVar("Section")


class ConfigReader:
    """Hands out parts of a resolved configuration and records what was read.

    Attributes:
        tree: the resolved configuration, plain Python types.
        overrides: the overrides it was composed with, verbatim.
    """

    def __init__(self, tree: dict[str, Any], overrides: tuple[str, ...] = ()) -> None:
        self.tree, self.overrides = tree, overrides
        self._read: set[str] = set()
        self._plugins = tuple(tree.get("plugins", ()))
        self._read.update(leaf for leaf in _leaves(tree) if leaf == "plugins")

    def section(self, name: str, schema: type[Section]) -> Section:
        """The section `name` as an instance of its schema; reading an attribute marks that key as read. A section that
        the tree lacks (a registration may be older than it) has its defaults."""
        record = self._read

        def watched(instance: Any, attribute: str) -> Any:
            if attribute in names:
                record.add(f"{name}.{attribute}")
            return object.__getattribute__(instance, attribute)

        def refuse(instance: Any, attribute: str, value: Any) -> None:
            raise AttributeError(f"configuration is read-only: {name}.{attribute}")

        names = {f.name for f in dataclasses.fields(schema)}  # type: ignore[arg-type]
        recording = type(schema.__name__, (schema,), {"__getattribute__": watched})
        section = cast(Section, recording(**self.tree.get(name, {})))
        # OmegaConf cannot merge into frozen dataclasses, so the seal comes after __init__.
        recording.__setattr__ = refuse
        return section

    def component(self, name: str, **runtime: Any) -> Any:
        """Build the component `name`; all of its keys go to the constructor, which refuses those it does not know."""
        return build(self.component_spec(name), runtime, plugins=self._plugins, where=name)

    def component_spec(self, name: str) -> dict[str, Any]:
        """The plain node of a component, for a process that builds it itself."""
        node = self.tree[name]
        if not isinstance(node, dict) or "_target_" not in node:
            raise ConfigError(f"{name} names no component", where=name, remedy=f"choose an option of the group {name}")
        self._read.update(f"{name}.{leaf}" for leaf in _leaves(node))
        return dict(node)

    def value(self, path: str) -> Any:
        """One leaf by its dotted path."""
        self._read.add(path)
        node: Any = self.tree
        for part in path.split("."):
            node = node[part]
        return node

    @property
    def plugins(self) -> tuple[str, ...]:
        return self._plugins

    def digest(self, *ignore: str) -> str:
        """SHA-256 over the canonical JSON of the tree, without the named leaves."""
        return digest_tree(self.tree, *ignore)

    def check_consumed(self) -> None:
        """Refuse a configuration with keys that nothing has read.

        Raises:
            ConfigError: listing them.
        """
        unread = [leaf for leaf in _leaves(self.tree) if leaf not in self._read]
        if unread:
            raise ConfigError(
                f"nothing reads {', '.join(unread)}",
                where="composed configuration",
                remedy="remove these keys; they would change nothing",
            )

    def check_overrides_consumed(self) -> None:
        """Refuse an override that nothing has read, where defaults of sections that do not apply are harmless.

        Raises:
            ConfigError: naming the first.
        """
        for override in self.overrides:
            path = override.partition("=")[0]
            if "." in path and path not in self._read:
                raise ConfigError(f"nothing reads {path} here", where="command line", remedy=f"leave {override} away")


def digest_tree(tree: dict[str, Any], *ignore: str) -> str:
    """SHA-256 over the canonical JSON (sorted keys, no blanks) of a configuration without the leaves in `ignore`."""
    kept = json.loads(json.dumps(tree))
    for path in ignore:
        *parents, last = path.split(".")
        node = kept
        for part in parents:
            node = node.get(part, {})
        node.pop(last, None)
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _leaves(node: dict[str, Any], prefix: str = "") -> list[str]:
    leaves: list[str] = []
    for name, child in node.items():
        if isinstance(child, dict) and child:
            leaves += _leaves(child, f"{prefix}{name}.")
        else:
            leaves.append(f"{prefix}{name}")
    return leaves
