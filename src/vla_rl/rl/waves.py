"""The playing part of a step: its first wave, and further seeds in place of groups that teach nothing.

In: what samples and where, the geometry, the episodes that an earlier attempt left on disk. Out: a `Wave` whose
episodes are on disk, priced. Left out: the update, and what a run does when a wire fires in the middle (`trainer`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vla_rl.rl import events
from vla_rl.rl.account import Account
from vla_rl.rl.advantage import Advantages
from vla_rl.rl.guards import Guards, Spent, Tripped
from vla_rl.rl.plan import Geometry
from vla_rl.rl.pricing import Pricing
from vla_rl.rl.rundir import RunDir
from vla_rl.rl.summary import Terms
from vla_rl.rl.wires import Firing
from vla_rl.rollout import store
from vla_rl.rollout.events import Event, OnEvent
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.records import Episode, EpisodeSpec, Row
from vla_rl.rollout.wave import Wave, assemble, joined, run_wave

Priced = tuple[Wave, list[Terms], Advantages]


class StoppedWave(Exception):
    """An armed wire fired in a wave: what did, how many of the step's episodes are finished, and how long this launch
    has played them."""

    def __init__(self, firings: list[Firing], finished: int, wall_s: float) -> None:
        super().__init__(firings)
        self.firings, self.finished, self.wall_s = firings, finished, wall_s


@dataclass(frozen=True)
class Stage:
    """What a run plays its waves with.

    Attributes:
        policy: whose weights name the episodes on disk that may be taken.
        sampler, pool, slots: how episodes are played.
        geometry, pricing: which ones, and what they are worth.
        guards, account: judge pace and budget meanwhile.
        run_dir: where episodes lie.
        on_event: told of everything; may raise to stop between two rounds.
    """

    policy: Any
    sampler: Any
    pool: Pool
    slots: int
    geometry: Geometry
    pricing: Pricing
    guards: Guards
    account: Account
    run_dir: RunDir
    on_event: OnEvent

    @property
    def temperature(self) -> float:
        """At which rows are scored: that of the sampling."""
        return self.geometry.temperature

    def stored_rows(self, max_replans: int) -> int:
        """Most rows of a step that lie on the disk, if every episode has so many predicts."""
        return self.geometry.most_seeds * self.geometry.rule.draws * max_replans

    def taught(self, wave: Wave, advantages: Advantages) -> dict[EpisodeSpec, float | tuple[float, ...]]:
        """What every episode of a kept group is taught with."""
        scored = zip(wave.episodes, advantages.credit, advantages.kept, strict=True)
        return {episode.spec: value for episode, value, kept in scored if kept}

    def step(self, step: int, digest: str | None = None) -> StepWaves:
        """The waves of one step, under the weights as they are now; `digest`: of them, if it is known."""
        return StepWaves(self, step, digest or self.policy.digest())


class StepWaves:
    """The waves of a step, one after the other; episodes that an earlier attempt finished under these very weights are
    taken from disk.

    Raises:
        StoppedWave: from `first` and `refill`, if an armed wire fires; what has ended is on disk.
    """

    def __init__(self, stage: Stage, step: int, digest: str) -> None:
        self._stage, self._step = stage, step
        self._directory, self._digest = store.wave_dir(stage.run_dir.path, step), digest
        left = store.read_wave(self._directory)
        self._stored = {e.spec: (e, rows) for e, rows in left if rows[0].policy_digest == self._digest}
        self._played: set[EpisodeSpec] = set()
        self._wall_s = 0.0  # of the parts that were played to their end

    def first(self) -> Wave:
        """Roll out the step's first wave."""
        return self._play(self._stage.geometry.specs(self._step))

    def fresh(self, wave: Wave) -> list[Row]:
        """Rows that this launch has sampled; if it took all episodes from disk, those of the launch before."""
        return [row for row in wave.rows if row.spec in self._played] or list(wave.rows)

    def refill(self, wave: Wave, terms: list[Terms], advantages: Advantages) -> Priced:
        """Play fresh seeds in place of groups that were dropped, until enough teach or the step's seeds are used up."""
        geometry, pricing = self._stage.geometry, self._stage.pricing
        for _ in range(geometry.refill):
            missing = geometry.seeds - sum(group.kept for group in advantages.groups)
            if missing == 0:
                break
            fresh = self._play(geometry.specs(self._step, missing, used=len(advantages.groups)))
            wave, terms = joined(wave, fresh), [*terms, *pricing.terms(fresh)]
            advantages = pricing.advantages(self._step, wave, terms)
        return wave, terms, advantages

    def _play(self, specs: Sequence[EpisodeSpec]) -> Wave:
        stage, stored = self._stage, self._stored
        missing = [spec for spec in specs if spec not in stored]
        stage.on_event(events.WaveStarted(self._step, len(specs), len(specs) - len(missing)))

        def keep(episode: Episode, rows: tuple[Row, ...]) -> None:
            store.write_episode(self._directory, self._step, episode, rows)
            stored[episode.spec] = (episode, rows)
            self._played.add(episode.spec)

        def watch(event: Event) -> None:
            stage.on_event(event)
            stage.guards.on_event(event, self._spent)

        started = time.perf_counter()
        try:
            stage.guards.wave_begins(self._spent())
            fresh = run_wave(
                sampler=stage.sampler,
                pool=stage.pool,
                specs=missing,
                temperature=stage.geometry.temperature,
                slots=stage.slots,
                policy_digest=self._digest,
                on_event=watch,
                on_episode=keep,
            )
        except Tripped as tripped:
            wall_s = self._wall_s + time.perf_counter() - started
            raise StoppedWave(tripped.firings, len(stored), wall_s) from tripped
        self._wall_s += fresh.wall_s
        episodes = tuple(stored[spec][0] for spec in specs)
        rows = tuple(row for spec in specs for row in stored[spec][1])
        return assemble(episodes, rows, fresh.wall_s, slots=stage.slots, groups=fresh.groups)

    def _spent(self) -> Spent:
        """By the run so far, with what has ended of this step."""
        return self._stage.account.spent([episode for episode, _ in self._stored.values()])
