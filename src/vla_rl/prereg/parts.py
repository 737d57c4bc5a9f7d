"""Digests of the parts of a document, so that a change can be named without the original.

In: plain data of a YAML file or of evidence. Out: a digest by part, two levels deep, and the parts that differ from
those on record. Left out: whether the bytes are those on record; that is a digest of the whole file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_rl.prereg.canonical import SHORT, digest

SECTION, FIELD = "section", "field"  # of a YAML file, of evidence: the digests of the two are never the same
NAMES = ("id", "seed", "step")  # what records of a list are called by


def parts(document: Mapping[str, Any], tag: str) -> dict[str, str]:
    """Digest of every part: ``claim.unit``, ``reads[primary]``, ``episodes[300]``."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            found |= {f"{name}.{key}": item for key, item in value.items()}
        elif key := _key(value):
            found |= {f"{name}[{item[key]}]": item for item in value}
        else:
            found[name] = value
    return {name: digest(tag, value)[:SHORT] for name, value in found.items()}


def changed(document: Mapping[str, Any], recorded: Mapping[str, str], tag: str) -> list[str]:
    """Names of the parts that are not those on record, sorted."""
    now = parts(document, tag)
    return sorted(name for name in {*now, *recorded} if now.get(name) != recorded.get(name))


def _key(value: Any) -> str | None:
    """By which of their values the records of a list are named; None if it is no such list."""
    if not isinstance(value, list) or not value or not all(isinstance(item, Mapping) for item in value):
        return None
    return next((key for key in NAMES if all(key in item for item in value)), None)
