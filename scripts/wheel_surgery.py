"""Rewriting a wheel: members dropped and added, RECORD made to fit, every member packed as well as zip files allow.

In: a wheel. Out: another one that pip installs like any. Large members are packed with LZMA where that is smaller
(meshes and shared libraries by a quarter to a third); pip reads that through Python's `zipfile`, others may not.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

LZMA_FROM_BYTES = 20_000


def rewrite(source: Path, destination: Path, *, drop: str | None = None, add: Mapping[str, bytes] | None = None) -> int:
    """Copy a wheel without the members that match `drop` and with those of `add`; returns how many were dropped.

    Args:
        drop: regular expression, searched in member names.
        add: member name -> content; replaces a member of that name.
    """
    added = dict(add or {})
    dropped = 0
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(destination, "w") as new:
        record = next(name for name in old.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name))
        rows = {row[0]: row for row in csv.reader(io.StringIO(old.read(record).decode())) if row}
        for info in old.infolist():
            name = info.filename
            if drop and re.search(drop, name):
                rows.pop(name, None)
                dropped += 1
            elif name != record and name not in added:
                _write(new, info.filename, old.read(info), info)
        for name, data in added.items():
            _write(new, name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows[name] = [name, f"sha256={digest}", str(len(data))]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows.values())
        _write(new, record, text.getvalue().encode())
    return dropped


def _write(archive: zipfile.ZipFile, name: str, data: bytes, like: zipfile.ZipInfo | None = None) -> None:
    """Add a member with the time and permissions of another one."""
    info = zipfile.ZipInfo(name, like.date_time if like else (1980, 1, 1, 0, 0, 0))
    info.external_attr = like.external_attr if like else 0o644 << 16
    packed = len(data) >= LZMA_FROM_BYTES and len(lzma.compress(data)) < len(zlib.compress(data, 9))
    archive.writestr(info, data, zipfile.ZIP_LZMA if packed else zipfile.ZIP_DEFLATED, None if packed else 9)
