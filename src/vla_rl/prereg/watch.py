"""The list of runs that are under way: an entry written at launch, removed at the end, with what is to be watched.

In: a run directory, its process, limits. Out: `outputs/watch/<run>.json`, one a run, and `last.json`, how the one that
ended last ended, so that an empty list can say why it is empty. What the entries mean for a run's health: `health`.
Nothing here ends a run; its own wires and budget do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vla_rl.errors import IntegrityError, UsageError
from vla_rl.files import create_atomic, write_atomic
from vla_rl.prereg.process import Process

WATCH = Path("outputs") / "watch"
LAST = "last.json"


@dataclass(frozen=True)
class Probe:
    """From step `by_step` on, the last value of `key` must not be below `below`; ``eval.…`` are keys of eval.jsonl."""

    key: str
    below: float
    by_step: int


@dataclass(frozen=True)
class WatchGates:
    """Limits; what is strictly beyond one has crossed it, and None is no limit.

    Attributes:
        gpu_h_max: GPU-hours, all launches of the run together.
        wall_h_max: hours that the run has held its device, whatever that is.
        vram_max_gib: largest memory of any step.
        probe: see `Probe`.
        stale_s: seconds since the last heartbeat from which on a live process counts as stale.
    """

    gpu_h_max: float | None = None
    wall_h_max: float | None = None
    vram_max_gib: float | None = None
    probe: Probe | None = None
    stale_s: float = 1800.0


@dataclass(frozen=True)
class Entry:
    """A run that is watched.

    Attributes:
        run, run_dir: the directory's own name, and its absolute path.
        process: that works on it.
        opened_utc: when the entry was written.
        cadence_s: how often somebody means to look.
        gpus: devices that the run holds; None if that is not known.
        registration, rung, arm: what it is launched for; None for a run without.
    """

    run: str
    run_dir: str
    process: Process
    opened_utc: str
    cadence_s: float
    gpus: int | None
    gates: WatchGates
    registration: str | None = None
    rung: str | None = None
    arm: str | None = None

    @classmethod
    def of_body(cls, body: Mapping[str, Any]) -> Entry:
        gates = dict(body["gates"])
        probe = gates.pop("probe")
        gates = WatchGates(**gates, probe=Probe(**probe) if probe else None)
        return cls(**{**body, "process": Process.of_body(body["process"]), "gates": gates})


def open(
    run_dir: Path,
    *,
    gates: WatchGates | None = None,
    cadence_s: float = 1800.0,
    gpus: int | None = None,
    registration: str | None = None,
    rung: str | None = None,
    arm: str | None = None,
    process: Process | None = None,
    where: Path = WATCH,
) -> Entry:
    """Put a run on the list; the entry of a launch that died is replaced.

    Args:
        process: that works on it; default: the one that asks.

    Raises:
        UsageError: it is on the list, and the process there is alive.
    """
    directory = run_dir.resolve()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = Entry(
        directory.name, str(directory), process or Process.own(), now, cadence_s, gpus, gates or WatchGates(),
        registration, rung, arm,
    )  # fmt: skip
    where.mkdir(parents=True, exist_ok=True)
    before = find(run_dir, where)
    if before is not None:
        if before.process.alive() is not False:
            raise UsageError(
                "this run is watched already, and its process is alive", where=str(_file(where, directory)),
                remedy="wait for it; on another machine than its own that cannot be told: vla-rl status --forget RUN",
            )  # fmt: skip
        _file(where, directory).unlink(missing_ok=True)
    if not create_atomic(_file(where, directory), _json(asdict(entry))):
        raise UsageError("another process has just put this run on the list", where=str(_file(where, directory)))
    return entry


def close(entry: Entry, *, exit_code: int | None, how: str, where: Path = WATCH) -> None:
    """Take a run off the list.

    Args:
        exit_code: of its command; None if that is not known, as of one that was killed.
        how: how it ended, in a few words.
    """
    body = {name: getattr(entry, name) for name in ("run", "run_dir", "registration", "rung", "arm", "opened_utc")}
    body |= {"ended_utc": datetime.now(UTC).isoformat(timespec="seconds"), "exit_code": exit_code, "how": how}
    write_atomic(where / LAST, _json(body))
    _file(where, Path(entry.run_dir)).unlink(missing_ok=True)


def entries(where: Path = WATCH) -> list[Entry]:
    """The list, oldest first.

    Raises:
        IntegrityError: a file there is no entry.
    """
    read = [_read(path) for path in where.glob("[!.]*.json") if path.name != LAST]
    return sorted((entry for entry in read if entry is not None), key=lambda entry: (entry.opened_utc, entry.run))


def find(run_dir: Path, where: Path = WATCH) -> Entry | None:
    """The entry of a run directory."""
    return _read(_file(where, run_dir.resolve()))


def last(where: Path = WATCH) -> dict[str, Any] | None:
    """What `close` was told last; None if no run has ended."""
    try:
        return json.loads((where / LAST).read_bytes())
    except FileNotFoundError:
        return None


def _file(where: Path, directory: Path) -> Path:
    """Runs in different places may have the same name."""
    return where / f"{directory.name}-{hashlib.sha256(str(directory).encode()).hexdigest()[:8]}.json"


def _read(path: Path) -> Entry | None:
    try:
        return Entry.of_body(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None  # it has ended a moment ago
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"this is no entry of the list of runs: {error}", where=str(path), remedy="remove the file"
        ) from error


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, indent=1).encode()
