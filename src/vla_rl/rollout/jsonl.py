"""Strict JSON, and JSONL that survives `kill -9`.

In: JSON-able rows, paths. Out: JSONL files of which at most the last line can be cut off (and is dropped by
`repair_jsonl`). Left out: locking, and what the rows mean.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vla_rl.errors import IntegrityError
from vla_rl.files import write_atomic


def null_nan(value: Any) -> Any:
    """`value` with every non-finite float replaced by None, through dicts, lists and tuples."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: null_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [null_nan(item) for item in value]
    return value


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON: non-finite floats become null, anything that is no JSON type raises TypeError."""
    return json.dumps(null_nan(value), allow_nan=False, indent=indent)


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows in one write and fsync it, so that a crash can cut only the tail of this call."""
    data = "".join(dump_json(row) + "\n" for row in rows).encode()
    if not data:
        return
    with open(path, "ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file, without a last line that was cut off; an absent file has none.

    Raises:
        IntegrityError: another line is no JSON.
    """
    if not path.exists():
        return []
    return [_row(line, path, number) for number, line in enumerate(_whole_lines(path.read_bytes()), start=1)]


def repair_jsonl(path: Path, keep: Callable[[dict[str, Any]], bool] = lambda row: True) -> int:
    """Drop a cut-off last line and the rows that `keep` refuses; kept rows stay byte for byte.

    Returns:
        How many lines were dropped. The file is not touched when that is 0.
    """
    if not path.exists():
        return 0
    data = path.read_bytes()
    kept = [line for number, line in enumerate(_whole_lines(data), start=1) if keep(_row(line, path, number))]
    repaired = b"".join(line + b"\n" for line in kept)
    if repaired == data:
        return 0
    write_atomic(path, repaired)
    return len(data.splitlines()) - len(kept)


def _row(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise IntegrityError(
            f"line {number} is no JSON: {error}", where=str(path), remedy="restore the file; nothing here edits it"
        ) from error


def _whole_lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return [line for line in lines[:-1] if line]  # what follows the last newline is a write that never finished
