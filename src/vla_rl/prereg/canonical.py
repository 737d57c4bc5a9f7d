"""Canonical bytes and digests of plain documents.

In: plain data (mappings with text keys, lists, text, numbers, booleans, null). Out: one byte string for each value,
whatever the order of its keys, and SHA-256 digests of it. 1, 1.0 and true are three values. Left out: files as they
are stored; those are hashed byte by byte, because a comment or a blank is part of what was frozen.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from vla_rl.errors import ConfigError

SCHEMA = 1  # of registrations, amendments, ledgers and evidence
SHORT = 12  # hex digits of a digest in names and tables


def canonical(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no blanks; floats as Python writes them.

    Raises:
        ConfigError: something that is no plain data, or a number that is not finite.
    """
    plain = _checked(value, "")
    try:
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except ValueError as error:  # half a character, a number of thousands of digits
        raise ConfigError(f"this is no plain data: {error}") from None


def same(a: Any, b: Any) -> bool:
    """Equality that also compares types: 1 is neither 1.0 nor true."""
    return canonical(a) == canonical(b)


def digest(tag: str, value: Any) -> str:
    """SHA-256 of a document, hex; `tag` says of what kind, so that no two kinds can have the same digest."""
    return hashlib.sha256(f"vla_rl {tag} {SCHEMA}\0".encode() + canonical(value)).hexdigest()


def file_digest(data: bytes) -> str:
    """SHA-256 of stored bytes, hex."""
    return hashlib.sha256(data).hexdigest()


def _checked(value: Any, path: str) -> Any:
    """The value itself, if it is plain."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _checked(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_checked(item, f"{path}[{i}]") for i, item in enumerate(value)]
    raise ConfigError(
        f"{value!r} is no plain value", where=path.removeprefix(".") or None, remedy="use text, finite numbers, lists"
    )
