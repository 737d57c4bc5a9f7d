"""What a training run tells while it works; same channel and base class as the rollout events.

A report layer turns these into progress bars, plain lines or a mirror. Rows in events are those of the JSONL files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_rl.rollout.events import Event


@dataclass(frozen=True)
class RunStarted(Event):
    """The run begins, or goes on after `completed_steps` updates."""

    run_dir: Path
    completed_steps: int
    total_steps: int


@dataclass(frozen=True)
class PreflightDone(Event):
    """The run can finish: dry update, render canary and disk check passed."""

    longest_row_tokens: int
    disk_needed_gib: float
    wall_s: float


@dataclass(frozen=True)
class EvalStarted(Event):
    """A held-out evaluation begins, after `step` updates."""

    step: int


@dataclass(frozen=True)
class EvalDone(Event):
    """A held-out evaluation is recorded; `row` is its line in `eval.jsonl`."""

    step: int
    row: dict[str, Any]


@dataclass(frozen=True)
class WaveStarted(Event):
    """The rollouts of a step begin; `stored` of `episodes` are already on disk from an attempt that was killed."""

    step: int
    episodes: int
    stored: int


@dataclass(frozen=True)
class RowsScored(Event):
    """`done` of the `total` demonstrations of a step have their log-probabilities."""

    step: int
    done: int
    total: int


@dataclass(frozen=True)
class UpdateProgress(Event):
    """`done` of `total` rows have been through forward and backward."""

    step: int
    done: int
    total: int


@dataclass(frozen=True)
class StepDone(Event):
    """A step is recorded; `row` is its line in `train.jsonl`."""

    step: int
    total_steps: int
    row: dict[str, Any]


@dataclass(frozen=True)
class GateJudged(Event):
    """A gate was judged; `result` is its entry in the manifest (`gate`, `passed`, `measured`, `bar`)."""

    result: dict[str, Any]


@dataclass(frozen=True)
class WiresFired(Event):
    """Tripwires fired in `step`; `firings` as under `tripwires` in a row. The run goes on unless one is armed."""

    step: int
    firings: list[dict[str, Any]]


@dataclass(frozen=True)
class WireSilenced(Event):
    """The baseline that a wire captured in `step` puts its `line` where no reading can be beyond it."""

    step: int
    wire: str
    line: float


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint is complete on disk."""

    step: int
    path: Path


@dataclass(frozen=True)
class RunEnded(Event):
    """The run ended; `finished` is False when it stopped at a safe point and can be resumed."""

    step: int
    finished: bool
    reason: str
