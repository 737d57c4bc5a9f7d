"""Sealed held-out evaluation: one episode per seed, indexed by seed, nothing told before the last one has ended.

In: a sampler, a pool, a reward and seeds. Out: an `EvalResult` with its summary and every episode. Which states are
evaluated follows from the seed list alone, never from the order in which episodes end. Left out: what a summary holds
(`summary`), and comparing two evaluations (`paired`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vla_rl.evals.summary import summarise
from vla_rl.rollout.events import Event, OnEvent, PredictRound, ignore
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.rollout.wave import Sampler, Watcher, run_wave


class Reward(Protocol):
    """What an evaluation needs of a reward."""

    def terms(self, metrics: dict[str, Any]) -> dict[str, float | None]: ...


@dataclass(frozen=True)
class EvalResult:
    """One complete evaluation.

    Attributes:
        summary: JSON-able, see `summary.summarise`.
        episodes: one per seed, in seed-list order.
        rewards: total reward per seed (cm); None where a reward could not be computed.
    """

    summary: dict[str, Any]
    episodes: tuple[Episode, ...]
    rewards: dict[int, float | None]


def evaluate(
    *,
    sampler: Sampler,
    pool: Pool,
    reward: Reward,
    seeds: Sequence[int],
    temperature: float,
    slots: int,
    scene: Mapping[str, Any] | None,
    on_event: OnEvent = ignore,
    watcher: Watcher | None = None,
) -> EvalResult:
    """Run every seed once (draw 0) and summarise.

    Args:
        sampler: policy under test.
        pool: environments.
        reward: scores each episode; held-out reads use the documented v1.
        seeds: environment seeds, each once.
        temperature: 0 is greedy.
        slots: episodes side by side.
        scene: what the simulator says of itself, and `training_scene_match`; goes into the summary.
        on_event: progress; it sees how many episodes have ended, not how.
        watcher: keeps pictures and chunks of what it sees, see `looks`.
    """
    wave = run_wave(
        sampler=sampler,
        pool=pool,
        specs=[EpisodeSpec(seed) for seed in seeds],
        temperature=temperature,
        slots=min(slots, len(seeds)),
        keep_rows=False,
        on_event=_sealed(on_event),
        watcher=watcher,
    )
    rewards = {e.spec.seed: reward.terms(e.metrics)["total"] for e in wave.episodes}
    summary = summarise(wave.episodes, rewards, temperature=temperature, scene=scene)
    return EvalResult(summary, wave.episodes, rewards)


def _sealed(on_event: OnEvent) -> OnEvent:
    """Pass on only the counting events: an outcome told early is a look at an unfinished read."""

    def forward(event: Event) -> None:
        if isinstance(event, PredictRound):
            on_event(event)

    return forward
