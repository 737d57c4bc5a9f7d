"""What a rollout tells while it works: frozen events for an `on_event(event)` callback.

A caller that only wants the result passes `ignore`. Events carry no tensors and never influence the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """Base of every event of rollout and rl."""


OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The callback of a caller that wants no events."""


@dataclass(frozen=True)
class PredictRound(Event):
    """One lockstep round of a wave: `live` episodes got a chunk and executed it; `done` of `total` have ended."""

    rounds: int
    live: int
    done: int
    total: int


@dataclass(frozen=True)
class EpisodeDone(Event):
    """An episode ended; `success` by the test that the environment was told to use."""

    episode_id: str
    success: bool
    replans: int


@dataclass(frozen=True)
class EpisodeRestarted(Event):
    """An episode is redone from its key because its worker was lost; `attempt` counts from 2."""

    episode_id: str
    attempt: int
    reason: str


@dataclass(frozen=True)
class WorkerReplaced(Event):
    """A worker process died, hung or returned garbage, and a new one takes its place."""

    worker: str
    reason: str
