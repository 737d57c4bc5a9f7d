"""Which classes a configuration names, and which of them may be built.

In: plain data. Out: its `_target_` entries with their paths. Nothing is imported (`build`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def targets(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path of the key, target) of every `_target_` in a tree, also as the last part of a path: ``reward._target_``."""
    if isinstance(node, Mapping):
        for name, child in node.items():
            if name == "_target_" or str(name).endswith("._target_"):
                yield f"{path}.{name}", str(child)
            else:
                yield from targets(child, f"{path}.{name}")
    elif isinstance(node, list):
        for i, child in enumerate(node):
            yield from targets(child, f"{path}[{i}]")


def allowed(target: str, plugins: Iterable[str]) -> bool:
    """Whether a target lies in this package or in a plugin."""
    return any(target.startswith(f"{package}.") for package in ("vla_rl", *plugins))
