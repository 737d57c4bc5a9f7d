"""What the ledger has of the report that was written last: its text, its files, the films among them.

In: ledger entries. Out: digests by path, and facts of films. The first reports were a text alone. Left out: how a
report comes about (`vla_rl.report`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vla_rl.errors import IntegrityError
from vla_rl.prereg.ledger import Entry

DIRECTORY = "report"  # beside REPORT.md
_NAME = re.compile(rf"{DIRECTORY}/[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def last_report(entries: Iterable[Entry]) -> Mapping[str, Any] | None:
    """Data of the event; None if none was written."""
    return next((entry.data for entry in reversed(tuple(entries)) if entry.event == "reported"), None)


def report_files(entries: Iterable[Entry]) -> dict[str, str]:
    """SHA-256 of its files beside REPORT.md, by path from the folder.

    Raises:
        IntegrityError: a name that leads elsewhere.
    """
    files = dict((last_report(entries) or {}).get("files", {}))
    if odd := [name for name in files if not _NAME.fullmatch(name)]:
        raise IntegrityError(f"{odd[0]!r} is no file of a report", where="ledger.jsonl: reported.files")
    return files


def report_films(entries: Iterable[Entry]) -> list[Mapping[str, Any]]:
    """The films among them, in the order of the report: `file`, `caption`, `seed`, `rung`, `arm`."""
    return list((last_report(entries) or {}).get("films", ()))
