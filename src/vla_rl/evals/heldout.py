"""Sealed held-out evaluation: one episode per seed, indexed by seed, nothing told before the last one has ended.

In: a sampler, a pool, a reward and seeds. Out: an `EvalResult` with its summary and every episode. Which states are
evaluated follows from the seed list alone, never from the order in which episodes end, nor from how many launches it
took to play them. Left out: what a summary holds (`summary`), how finished episodes outlive a launch (`kept`), and
comparing two evaluations (`paired`, `headtohead`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vla_rl.evals.summary import summarise
from vla_rl.rl.reward import Reward
from vla_rl.rollout.events import Event, OnEvent, PredictRound, ignore
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.rollout.wave import Sampler, Watcher, run_wave


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
    finished: Mapping[EpisodeSpec, Episode] | None = None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
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
        finished: episodes that an earlier launch played; they are not played again.
        on_episode: given each episode as soon as it has ended, to be kept and not to be told.
    """
    specs = [EpisodeSpec(seed) for seed in seeds]
    episodes = play(
        sampler=sampler,
        pool=pool,
        specs=specs,
        temperature=temperature,
        slots=slots,
        finished=finished or {},
        on_episode=on_episode,
        on_event=on_event,
        watcher=watcher,
    )
    rewards = {e.spec.seed: reward.terms(e.metrics)["total"] for e in episodes}
    summary = summarise(episodes, rewards, temperature=temperature, scene=scene)
    return EvalResult(summary, episodes, rewards)


def play(
    *,
    sampler: Sampler,
    pool: Pool,
    specs: Sequence[EpisodeSpec],
    temperature: float,
    slots: int,
    finished: Mapping[EpisodeSpec, Episode],
    on_episode: Callable[[Episode], None],
    on_event: OnEvent,
    watcher: Watcher | None = None,
) -> tuple[Episode, ...]:
    """The episodes of all specs, in their order, of which only those that are not `finished` are played; sealed.

    See `evaluate` for the arguments. Progress counts the finished ones too.
    """
    missing = [spec for spec in specs if spec not in finished]
    fresh: dict[EpisodeSpec, Episode] = {}
    if missing:
        wave = run_wave(
            sampler=sampler,
            pool=pool,
            specs=missing,
            temperature=temperature,
            slots=min(slots, len(missing)),
            keep_rows=False,
            on_event=_sealed(on_event, len(specs) - len(missing)),
            on_episode=lambda episode, rows: on_episode(episode),
            watcher=watcher,
        )
        fresh = {episode.spec: episode for episode in wave.episodes}
    return tuple(fresh[spec] if spec in fresh else finished[spec] for spec in specs)


def _sealed(on_event: OnEvent, finished: int) -> OnEvent:
    """Pass on only the counting events: an outcome told early is a look at an unfinished read.

    Args:
        finished: episodes that an earlier launch played, counted as done.
    """

    def forward(event: Event) -> None:
        if isinstance(event, PredictRound):
            on_event(replace(event, done=event.done + finished, total=event.total + finished))

    return forward
