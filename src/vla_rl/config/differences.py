"""In which keys two configurations differ.

In: resolved trees. Out: leaves by their dotted paths, or the paths at which two trees disagree. Left out: what to do
about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted path; an empty mapping is a value, and a tuple counts as the list that a file would hold."""
    if isinstance(tree, Mapping) and tree:
        return {k: v for name, item in tree.items() for k, v in leaves(item, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): list(tree) if isinstance(tree, tuple) else tree}


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Both values of every path at which the trees differ, sorted; None where a side lacks it."""
    old, new = leaves(here), leaves(there)
    return {k: (old.get(k), new.get(k)) for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)}
