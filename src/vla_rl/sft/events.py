"""What recording and supervised training tell while they work: frozen events for the `on_event(event)` callback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vla_rl.rollout.events import Event


@dataclass(frozen=True)
class ShardRecorded(Event):
    """A shard is complete: `done` of `total` shards, and its own attempted and kept episodes and rows."""

    index: int
    done: int
    total: int
    attempts: int
    kept: int
    rows: int


@dataclass(frozen=True)
class EpisodesMerged(Event):
    """`done` of `total` recorded episodes are in the dataset's files."""

    done: int
    total: int


@dataclass(frozen=True)
class SftLogged(Event):
    """`step` of `steps` updates are done; means over the updates since the last such event. `loss` is what was
    minimised; its terms are None where the objective has none: cross-entropy and accuracy of the tokens, and the flow's
    mean squared error."""

    step: int
    steps: int
    loss: float
    token_loss: float | None
    flow_loss: float | None
    accuracy: float | None
    grad_norm: float
    lr: float
    rows_per_s: float
    wall_s: float


@dataclass(frozen=True)
class SftEvaluated(Event):
    """The policy was evaluated after `step` of `steps` updates; `row` is its line of `eval.jsonl`."""

    step: int
    steps: int
    row: dict[str, Any]


@dataclass(frozen=True)
class PolicySaved(Event):
    """A policy directory was written after `step` updates."""

    step: int
    path: str


@dataclass(frozen=True)
class SftStopped(Event):
    """The wall-time limit was reached after `step` updates; the same command with `run.resume` goes on."""

    step: int
    steps: int
    run_dir: str
