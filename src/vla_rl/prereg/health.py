"""How a watched run is: alive or not, how far, and which of its limits it has crossed.

In: its entry, and what its directory says (`heartbeat.json`, `train.jsonl`, `eval.jsonl`). Out: a `Health`. Every
limit is evaluated every time: one whose number does not exist yet says so. Numbers and states only, no advice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vla_rl.prereg.watch import Entry, Probe

LIVE, DEAD, STALE = "live", "dead", "stale"
EVAL_PREFIX = "eval."
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Gate:
    """One limit of a run.

    Attributes:
        gate: its name in the entry.
        value: what is known; None: nothing yet.
        limit: what it may not go beyond.
        crossed: whether it has.
        note: why a value is missing, or which one it is.
    """

    gate: str
    value: float | None
    limit: float
    crossed: bool
    note: str = ""


@dataclass(frozen=True)
class Health:
    """A run at one moment.

    Attributes:
        state: ``live``; ``stale``: its process is there, but its heart has not beaten; ``dead``: its process is gone.
        phase, step, steps: of the last heartbeat.
        beat_age_s: since then; since the launch, if it has never beaten.
        gates: every limit that it has.
    """

    entry: Entry
    state: str
    phase: str | None
    step: int
    steps: int | None
    beat_age_s: float
    gates: tuple[Gate, ...]

    @property
    def crossed(self) -> tuple[Gate, ...]:
        return tuple(gate for gate in self.gates if gate.crossed)

    def body(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "crossed": [gate.gate for gate in self.crossed]}


def examine(entry: Entry, now: datetime | None = None) -> Health:
    """The health of a run from its files."""
    directory = Path(entry.run_dir)
    try:
        beat = json.loads((directory / "heartbeat.json").read_bytes())
    except (FileNotFoundError, ValueError):
        beat = {}
    rows = {name: whole_rows(directory / f"{name}.jsonl") for name in ("train", "eval")}
    return judge(entry, entry.process.alive(), beat, rows["train"], rows["eval"], now or datetime.now(UTC))


def judge(
    entry: Entry, alive: bool | None, beat: Mapping[str, Any], train: Rows, evaluations: Rows, now: datetime
) -> Health:
    """The same of what was read.

    Args:
        alive: whether its process is; None on another machine, where only the heartbeat tells.
        beat: the heartbeat, empty if there is none.
        train, evaluations: rows of the JSONL files.
        now: with a time zone.
    """
    since = max(entry.opened_utc, beat.get("utc", ""), key=lambda text: datetime.fromisoformat(text) if text else _EVER)
    age_s = max(0.0, (now - datetime.fromisoformat(since)).total_seconds())
    state = DEAD if alive is False else STALE if age_s > entry.gates.stale_s else LIVE
    step = max((row["step"] for row in train), default=0)
    known = beat.get("device_s", 0.0)
    held_h = (known + (age_s if state != DEAD else 0.0)) / 3600  # a dead process holds nothing since it died
    gates = _gates(entry, held_h, step, train, evaluations)
    return Health(entry, state, beat.get("phase"), step, beat.get("steps"), age_s, tuple(gates))


def last_value(rows: Rows, key: str) -> float | None:
    """The last value of a key that is one: a row in which it does not apply has null."""
    return next((row[key] for row in reversed(rows) if row.get(key) is not None), None)


def whole_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that may be growing: a line that is not complete yet is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.rpartition(b"\n")[0].splitlines() if line]


def _gates(entry: Entry, held_h: float, step: int, train: Rows, evaluations: Rows) -> Iterable[Gate]:
    limits = entry.gates
    if limits.gpu_h_max is not None:
        recorded = last_value(train, "gpu_h_total")
        gpus = entry.gpus if entry.gpus is not None else (1 if recorded is not None else None)
        hours = None if gpus is None else max(recorded or 0.0, gpus * held_h)
        yield _at_most("gpu_h_max", hours, limits.gpu_h_max, "not known to be on a GPU")
    if limits.wall_h_max is not None:
        yield _at_most("wall_h_max", held_h, limits.wall_h_max, "")
    if limits.vram_max_gib is not None:
        used = max((row["vram_gib"] for row in train if row.get("vram_gib") is not None), default=None)
        yield _at_most("vram_max_gib", used, limits.vram_max_gib, "no step has told")
    if limits.probe is not None:
        yield _probed(limits.probe, step, train, evaluations)


def _at_most(gate: str, value: float | None, limit: float, missing: str) -> Gate:
    return Gate(gate, value, limit, value is not None and value > limit, missing if value is None else "")


def _probed(probe: Probe, step: int, train: Rows, evaluations: Rows) -> Gate:
    """A probe without a value when its step is reached has crossed: it would never fire."""
    inside = probe.key.startswith(EVAL_PREFIX)
    value = last_value(evaluations if inside else train, probe.key.removeprefix(EVAL_PREFIX))
    due = step >= probe.by_step
    note = f"{probe.key} {'from' if due else 'not before'} step {probe.by_step}"
    return Gate("probe", value, probe.below, due and (value is None or value < probe.below), note)


_EVER = datetime.fromisoformat("0001-01-01T00:00:00+00:00")
