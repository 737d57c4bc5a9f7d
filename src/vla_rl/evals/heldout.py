"""Sealed held-out evaluation: one episode per seed, indexed by seed, nothing told before the last one has ended.

In: a sampler, a pool, a reward and seeds. Out: an `EvalResult` with counts, intervals and every episode. Which states
are evaluated follows from the seed list alone, never from the order in which episodes end. Left out: comparing two
evaluations (`paired`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol

from vla_rl.policy.sampler import Prediction, PredictRequest
from vla_rl.rollout.events import Event, OnEvent, PredictRound, ignore
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.records import Episode, EpisodeSpec, decode_counts
from vla_rl.rollout.wave import Sampler, run_wave
from vla_rl.stats.intervals import clopper_pearson

FUNNEL = ("touched", "pinched", "lifted", "success_documented", "success_strict")


class Reward(Protocol):
    """What an evaluation needs of a reward."""

    def terms(self, metrics: dict[str, Any]) -> dict[str, float | None]: ...


@dataclass(frozen=True)
class EvalResult:
    """One complete evaluation.

    Attributes:
        summary: JSON-able counts, rates with 95 % Clopper-Pearson intervals, means and what was evaluated.
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
    on_event: OnEvent = ignore,
) -> EvalResult:
    """Run every seed once (draw 0) and summarise.

    Args:
        sampler: policy under test.
        pool: environments.
        reward: scores each episode; held-out reads use the documented v1.
        seeds: environment seeds, each once.
        temperature: 0 is greedy.
        slots: episodes side by side.
        on_event: progress; it sees how many episodes have ended, not how.
    """
    wave = run_wave(
        sampler=sampler,
        pool=pool,
        specs=[EpisodeSpec(seed) for seed in seeds],
        temperature=temperature,
        slots=min(slots, len(seeds)),
        keep_rows=False,
        on_event=_sealed(on_event),
    )
    rewards = {e.spec.seed: reward.terms(e.metrics)["total"] for e in wave.episodes}
    return EvalResult(summarise(wave.episodes, rewards, temperature), wave.episodes, rewards)


def summarise(episodes: Sequence[Episode], rewards: dict[int, float | None], temperature: float) -> dict[str, Any]:
    """Counts, rates and means of one evaluation; `success` is the test that ends an episode."""
    trials = len(episodes)
    successes = sum(bool(e.metrics["success"]) for e in episodes)
    low, high = clopper_pearson(successes, trials)
    scored = [value for value in rewards.values() if value is not None]
    return {
        "trials": trials,
        "successes": successes,
        "success_rate": successes / trials,
        "success_low": low,
        "success_high": high,
        **{name: sum(bool(e.metrics[name]) for e in episodes) for name in FUNNEL},
        "tipped": sum(bool(e.metrics["tipped"]) for e in episodes),
        "knockaways": sum(bool(e.metrics["knockaway"]) for e in episodes),
        "reward_mean": fmean(scored) if scored else None,
        "progress_final_mean_cm": fmean(e.metrics["progress_final_cm"] for e in episodes),
        "ticks_mean": fmean(e.metrics["ticks"] for e in episodes),
        **decode_counts(episodes),
        "temperature": temperature,
    }


class ForeignFrames:
    """A sampler whose requests get the pictures of another episode: the same policy, blind.

    A policy that still succeeds plays an average trajectory; what it scores here is its floor. Frames rotate among the
    requests of one call; a request that is alone gets the last frames seen of another seed.

    Args:
        sampler: the sampler that answers.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._seen: dict[int, Any] = {}

    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        own = [request.observation.frames for request in requests]
        for request, frames in zip(requests, own, strict=True):
            self._seen[request.seed] = frames
        foreign = own[1:] + own[:1]
        if len(requests) == 1:
            foreign = [next((f for seed, f in reversed(self._seen.items()) if seed != requests[0].seed), own[0])]
        blind = [
            replace(request, observation=replace(request.observation, frames=frames))
            for request, frames in zip(requests, foreign, strict=True)
        ]
        return self._sampler.sample(blind, temperature)


def _sealed(on_event: OnEvent) -> OnEvent:
    """Pass on only the counting events: an outcome told early is a look at an unfinished read."""

    def forward(event: Event) -> None:
        if isinstance(event, PredictRound):
            on_event(event)

    return forward
