"""The ledger: what happened to a registration, line by line, each line chained to the one before.

In: events. Out: `ledger.jsonl`, and its entries once the chain has been checked. A line's hash is over the very bytes
that are stored, and the next line repeats it, so that no byte can change without the chain breaking. What a chain
cannot show is that lines are missing at its end: `anchor` and git do that. The file is replaced as a whole, so it is
never cut off. Left out: what events mean (`state`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vla_rl.errors import IntegrityError, UsageError, VlaRlError
from vla_rl.files import write_atomic
from vla_rl.prereg.canonical import canonical
from vla_rl.prereg.delta import diff, write_path

LEDGER = "ledger.jsonl"
GENESIS = "0" * 64
KEYS = ("seq", "utc", "event", "registration", "config", "data", "prev", "hash")
_TYPES = {"seq": int, "data": dict}
_TAIL = len(',"hash":""}') + 64


@dataclass(frozen=True)
class Entry:
    """One line.

    Attributes:
        seq: from 0.
        utc: when, ISO 8601.
        event: see `state.EVENTS`.
        registration, config: digests of the effective registration and of its configuration at that moment.
        data: what the event has to tell, JSON-able.
        prev: hash of the line before.
        hash: of this line's bytes without it.
    """

    seq: int
    utc: str
    event: str
    registration: str
    config: str
    data: Mapping[str, Any] = field(default_factory=dict)
    prev: str = GENESIS
    hash: str = ""

    def line(self) -> bytes:
        """As stored, without the end of line; computes the hash."""
        body = {key: getattr(self, key) for key in KEYS[:-1]}
        data = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        return data[:-1] + f',"hash":"{hashlib.sha256(data).hexdigest()}"}}'.encode()


def parse(data: bytes, where: str) -> list[Entry]:
    """The entries of a ledger whose chain holds.

    Raises:
        IntegrityError: naming the line and, as far as it can be told, the field.
    """
    entries: list[Entry] = []
    prev = GENESIS
    lines = data.split(b"\n")
    if lines.pop():
        raise _broken(where, len(lines) + 1, "is not ended", "end of line")
    for number, line in enumerate(lines, start=1):
        entry = _entry(line, where, number)
        if entry.prev != prev:
            raise _broken(where, number, "does not follow the line before it", "prev")
        if entry.seq != number - 1:
            raise _broken(where, number, f"counts itself as {entry.seq}", "seq")
        entries.append(entry)
        prev = entry.hash
    return entries


def _entry(line: bytes, where: str, number: int) -> Entry:
    try:
        stored = json.loads(line)
        if not isinstance(stored, dict) or list(stored) != list(KEYS):
            raise ValueError
    except (ValueError, RecursionError):
        raise _broken(where, number, "is no ledger entry", "its form") from None
    for key, value in stored.items():
        if type(value) is not _TYPES.get(key, str):
            raise _broken(where, number, f"is no ledger entry: {key} is of another type", key)
    body, ending = line[:-_TAIL] + b"}", b',"hash":"%s"}' % stored["hash"].encode(errors="replace")
    if hashlib.sha256(body).hexdigest() != stored["hash"] or not line.endswith(ending):
        raise _broken(where, number, f"(event {stored['event']}) was changed after it was written", "data or hash")
    try:
        if datetime.fromisoformat(stored["utc"]).tzinfo is None:
            raise ValueError
    except ValueError:
        raise _broken(where, number, f"was written at {stored['utc']!r}, which is no time", "utc") from None
    return Entry(**stored)


def differing(older: bytes, newer: bytes) -> str:
    """The first line of `older` that `newer` does not have in its place, and its first field: ``line 3: data.why``."""
    old, new = older.split(b"\n"), newer.split(b"\n")
    at = next((i for i, line in enumerate(old) if i >= len(new) or new[i] != line), len(old) - 1)
    place = f"line {at + 1}"
    try:
        a, b = json.loads(old[at]), json.loads(new[at])
        fields = [write_path(op.path) for op in diff({"line": a}, {"line": b})]
    except (ValueError, IndexError, RecursionError, VlaRlError):
        return place
    fields = [field.removeprefix("line.") for field in fields if field != "line"]
    telling = [field for field in fields if field not in ("prev", "hash")] or fields
    return f"{place}: {telling[0]}" if telling else place


def _broken(where: str, number: int, what: str, field_name: str) -> IntegrityError:
    return IntegrityError(
        f"line {number} {what}",
        where=f"{where}, line {number}: {field_name}",
        remedy="restore the file from git; no line of it is ever changed or removed",
    )


class Ledger:
    """The ledger of one registration.

    Args:
        folder: of the registration.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LEDGER

    def read(self) -> list[Entry]:
        """All entries; none if there is no file.

        Raises:
            IntegrityError: the chain is broken.
        """
        return parse(self.stored(), str(self.path))

    def stored(self) -> bytes:
        """Its bytes; none if there is no file.

        Raises:
            IntegrityError: it cannot be read.
        """
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            what = f"the ledger cannot be read: {error.strerror}"
            raise IntegrityError(what, where=str(self.path), remedy="restore the file from git") from None

    def append(self, event: str, data: Mapping[str, Any], *, registration: str, config: str) -> Entry:
        """Add an entry; whoever calls this holds the lock if it decided on what it had read.

        Raises:
            IntegrityError: the chain is broken.
        """
        before = self.stored()
        entries = parse(before, str(self.path))
        canonical(data)  # plain and finite, or refused here
        entry = Entry(
            seq=len(entries),
            utc=now(),
            event=event,
            registration=registration,
            config=config,
            data=dict(data),
            prev=entries[-1].hash if entries else GENESIS,
        )
        line = entry.line()
        write_atomic(self.path, before + line + b"\n")
        return _entry(line, str(self.path), entry.seq + 1)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the registration: what is read inside stays true until the end of the block, for every process."""
        try:
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            remedy = "vla-rl prereg status lists those that are there"
            raise UsageError(
                f"there is no registration {self.folder.name}", where=str(self.folder), remedy=remedy
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def now() -> str:
    """This moment, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
