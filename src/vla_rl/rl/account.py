"""What a run has used so far, over all of its launches: counters, device time, ticks of its evaluations.

In: waves, updates and evaluations as they end. Out: the counters of a checkpoint, the costs of a row, what the budget
is held against. Left out: bounds (`guards`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from vla_rl.rl.device import GIB
from vla_rl.rl.guards import Spent
from vla_rl.rl.plan import Counters
from vla_rl.rl.summary import StepCosts
from vla_rl.rl.updated import UpdateResult
from vla_rl.rollout.records import Episode
from vla_rl.rollout.wave import Wave


class Account:
    """Counts; device figures are null on a CPU: there is no accelerator to account for.

    Args:
        device: of the policy.

    Attributes:
        counters: as of the last step that was counted.
        gpus: devices that the run holds in this launch.
    """

    gpus = 1

    def __init__(self, device: str) -> None:
        self.counters = Counters()
        self._cuda = device.startswith("cuda")
        self._eval_s: float | None = None
        self._eval_ticks, self._clock = 0, time.monotonic()

    def open(self) -> None:
        """The launch begins."""
        self._clock = time.monotonic()

    def restore(self, counters: Counters, held_out: Sequence[Mapping[str, Any]], spent_s: float) -> None:
        """Go on from earlier launches.

        Args:
            counters: of the checkpoint.
            held_out: rows of the evaluations on record.
            spent_s: device seconds as the heartbeat knows them: time spent on a step that was killed is spent all the
                same, on as many devices as this launch has.
        """
        lost_s = max(0.0, spent_s - counters.device_s)
        more_s = counters.more_device_s + (self.gpus - 1) * lost_s
        self.counters = replace(counters, device_s=counters.device_s + lost_s, more_device_s=more_s)
        self._eval_ticks = _ticks(held_out)

    def device_s(self) -> float:
        """Seconds that this run has held its device, attempts that were killed included."""
        return self.counters.device_s + time.monotonic() - self._clock

    def more_device_s(self) -> float:
        """The same of further devices, added up."""
        return self.counters.more_device_s + (self.gpus - 1) * (time.monotonic() - self._clock)

    def spent(self, episodes: Iterable[Episode] = ()) -> Spent:
        """What all launches of the run have used, with finished `episodes` of a wave that is not counted yet."""
        wall_h = self.device_s() / 3600
        gpu_h = wall_h + self.more_device_s() / 3600
        ticks = self.counters.env_ticks + self._eval_ticks + sum(episode.metrics["ticks"] for episode in episodes)
        return Spent(gpu_h if self._cuda else None, wall_h, ticks)

    def evaluated(self, episodes: Sequence[Mapping[str, Any]], wall_s: float) -> None:
        """An evaluation has ended; its seconds belong to the step after it."""
        self._eval_s = wall_s
        self._eval_ticks += _ticks(episodes)

    def count(self, wave: Wave, update: UpdateResult) -> None:
        """A step has ended."""
        device_s, more_device_s, self._clock = self.device_s(), self.more_device_s(), time.monotonic()
        self.counters = Counters(
            updates_applied=self.counters.updates_applied + update.moved,
            episodes=self.counters.episodes + len(wave.episodes),
            env_ticks=self.counters.env_ticks + sum(e.metrics["ticks"] for e in wave.episodes),
            predicts=self.counters.predicts + sum(e.replans for e in wave.episodes),
            tokens=self.counters.tokens + sum(e.tokens for e in wave.episodes),
            device_s=device_s,
            more_device_s=more_device_s,
        )

    def costs(self, rollout_s: float, update_s: float) -> StepCosts:
        """Of a step: the one that was counted last, or one that ended in its wave."""
        eval_s, self._eval_s = self._eval_s, None
        if not self._cuda:
            return StepCosts(rollout_s, update_s, eval_s, None, None, None)
        gpu_h = self.gpus * (rollout_s + update_s + (eval_s or 0.0)) / 3600
        gpu_h_total = (self.device_s() + self.more_device_s()) / 3600
        vram_gib = torch.cuda.max_memory_reserved() / GIB
        return StepCosts(rollout_s, update_s, eval_s, vram_gib, gpu_h, gpu_h_total)


def _ticks(episodes: Sequence[Mapping[str, Any]]) -> int:
    return sum(row.get("ticks", 0) for row in episodes)
