"""What watches a training run and stops it: the tripwires with their memory, the pace of a wave, the budget.

In: the sections `tripwires` and `budget`, then facts as the run goes along. Out: what fired, for the trainer to record
and to act on. The judging itself is in `wires`; gates, which are passed once before the first wave, are in `gates`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vla_rl.config.schema import BudgetConfig, TripwiresConfig
from vla_rl.errors import StoppedRun
from vla_rl.rl.advantage import Advantages
from vla_rl.rl.drift import Drift
from vla_rl.rl.summary import Terms, wave_facts
from vla_rl.rl.updated import UpdateResult
from vla_rl.rl.wires import (
    ARMED,
    OFF,
    Firing,
    UpdateFacts,
    WireState,
    check_wires,
    judge_heldout,
    judge_update,
    judge_wave,
    projected_pace,
    silent_line,
)
from vla_rl.rollout.events import EpisodeDone, Event, PredictRound
from vla_rl.rollout.wave import Wave

WORDS = {
    "strikes": "a reset touched the boat",
    "non_finite": "the loss or the gradient is not finite",
    "collapse": "the groups have no spread",
    "knockaway": "too many episodes knock the boat away",
    "setback": "too many episodes set the boat back",
    "divergence": "the reward rises while success falls",
    "kl_stop": "the policy is too far from step 0",
    "entropy": "the entropy is beyond its bounds",
    "clip": "too many tokens are outside the clip band",
    "heldout": "held-out reward fell below the line with its whole interval",
    "pace": "the episodes are too slow",
    "budget.gpu_h": "the budget of GPU-hours is spent",
    "budget.wall_h": "the budget of hours is spent",
    "budget.env_ticks": "the budget of environment ticks is spent",
}
# Wires about what a run costs, not about what it computes: another launch may go on after them.
RESUMABLE = frozenset({"pace", "budget.gpu_h", "budget.wall_h", "budget.env_ticks"})


@dataclass(frozen=True)
class Spent:
    """What all launches of a run have used so far; `gpu_h` is None on a CPU. Names are those of the budget."""

    gpu_h: float | None
    wall_h: float
    env_ticks: int


class Tripped(Exception):
    """A wire fired in the middle of a wave; the trainer turns it into the end of the run."""

    def __init__(self, firings: Sequence[Firing]) -> None:
        self.firings = list(firings)
        super().__init__(describe(firings))


class Guards:
    """The tripwires and the budget of one run.

    Args:
        tripwires, budget: constants (vla_rl.config.schema); all are read here and now.
        clock: seconds, monotonic; for the pace.
    """

    def __init__(
        self, tripwires: TripwiresConfig, budget: BudgetConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._wires, self._budget = TripwiresConfig(**asdict(tripwires)), BudgetConfig(**asdict(budget))
        self._state, self._clock = WireState(), clock
        self._first: dict[int, float] | None = None
        self._paced: list[Firing] = []  # of this step, whose wave may be played in several parts
        self._start_pace()

    def check(self, *, kl_rows: int, ratio_moves: bool) -> None:
        """Refuse wires that could never fire, see `wires.check_wires`."""
        check_wires(self._wires, kl_rows=kl_rows, ratio_moves=ratio_moves)

    # ------------------------------------------------------------------------------------------------ as the run goes
    def wave_begins(self, spent: Spent) -> None:
        """Judge the budget before a wave, or a further part of one, and measure the pace anew unless it has fired.

        Args:
            spent: finished episodes of the wave's earlier launches included.

        Raises:
            Tripped: a limit is reached.
        """
        self._start_pace()
        if over := self.over_budget(spent):
            raise Tripped(over)

    def _start_pace(self) -> None:
        self._since, self._predicts, self._ended, self._replans = self._clock(), 0, 0, 0
        self._judge_pace = self._wires.pace != OFF and not self._paced

    def on_event(self, event: Event, spent: Callable[[], Spent]) -> None:
        """Judge pace and budget while a wave is rolled out.

        Args:
            spent: tells what has been used up to this moment.

        Raises:
            Tripped: an armed wire fired; episodes that have ended are on disk.
        """
        if isinstance(event, EpisodeDone):
            self._ended, self._replans = self._ended + 1, self._replans + event.replans
        if not isinstance(event, PredictRound):
            return
        self._predicts += event.live
        if self._judge_pace and self._ended >= self._wires.pace_episodes:
            self._judge_pace = False
            self._paced = self._pace()
        firings = [*self._paced, *self.over_budget(spent())]
        if armed(firings):
            raise Tripped(firings)

    def before_update(self, wave: Wave, terms: Sequence[Terms], advantages: Advantages, spent: Spent) -> list[Firing]:
        """Judge a complete wave. When an armed wire fires, the memory stays as it was before this wave.

        Demonstrations, which nobody has played, spend the budget; the wires about episodes have nothing to read.
        """
        state, firings = self._state, []
        if wave.episodes:
            state, firings = judge_wave(self._wires, self._state, wave_facts(wave, terms, advantages))
        firings = [*self._paced, *firings, *self.over_budget(spent)]
        self._paced = []
        if not armed(firings):
            self._state = state
        return firings

    def silenced(self) -> float | None:
        """The line of the wire `knockaway` if the baseline that it captured put it where no share can be above."""
        return silent_line(self._wires, self._state)

    def after_update(self, update: UpdateResult, drift: Drift | None, spent: Spent) -> list[Firing]:
        """Judge an update that was tried; the policy has moved already unless the update was skipped or undone."""
        facts = UpdateFacts(
            finite=update.finite,
            anchor_kl=drift.anchor_kl if drift and not update.rolled_back else None,
            entropy=update.entropy,
            clip_fraction=update.ratios["clip_fraction"],
        )
        self._state, firings = judge_update(self._wires, self._state, facts)
        return [*firings, *self.over_budget(spent)]

    def after_eval(self, episodes: Iterable[Mapping[str, Any]]) -> list[Firing]:
        """Judge a held-out evaluation against the first one, which this one becomes if there was none.

        Args:
            episodes: its rows of `episodes.jsonl`.
        """
        known = ((row["seed"], row.get("reward")) for row in episodes)
        rewards = {seed: float(reward) for seed, reward in known if reward is not None and math.isfinite(reward)}
        if self._first is None:
            self._first = rewards
            return []
        return judge_heldout(self._wires, self._first, rewards)

    def over_budget(self, spent: Spent) -> list[Firing]:
        """The limits that are reached, as firings of `budget.<key>`."""
        limits = {name: (value, getattr(self._budget, name)) for name, value in asdict(spent).items()}
        return [
            Firing(f"budget.{name}", ARMED, value, limit, 1)
            for name, (value, limit) in limits.items()
            if value is not None and limit is not None and value >= limit
        ]

    def _pace(self) -> list[Firing]:
        wall_s, line = self._clock() - self._since, self._wires.pace_episodes_per_min
        pace = projected_pace(predicts=self._predicts, wall_s=wall_s, episodes=self._ended, replans=self._replans)
        return [Firing("pace", self._wires.pace, pace, line, 1)] if line is not None and pace < line else []

    # ---------------------------------------------------------------------------------------------- across launches
    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold, JSON-able."""
        return asdict(self._state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the memory of a checkpoint."""
        self._state = WireState.from_dict(state)

    def restore_first(self, episodes: Iterable[Mapping[str, Any]]) -> None:
        """Go on with the run's first evaluation, from the held-out rows of `episodes.jsonl`."""
        held_out = list(episodes)
        if held_out:
            first = min(row["step"] for row in held_out)
            self._first = None
            self.after_eval(row for row in held_out if row["step"] == first)


def armed(firings: Iterable[Firing]) -> bool:
    """Whether any of them stops the run."""
    return any(firing.armed for firing in firings)


def describe(firings: Iterable[Firing]) -> str:
    """Those that stop the run, in words."""
    return "; ".join(
        WORDS[f.wire]
        + (f" ({_number(f.value)}, the line is {_number(f.threshold)})" if f.threshold is not None else "")
        + (f", {f.streak} times in a row" if f.streak > 1 else "")
        for f in firings
        if f.armed
    )


def stopped(step: int, firings: Iterable[Firing], where: str) -> StoppedRun:
    """The error that ends a run after `firings` in `step`."""
    fired = [firing for firing in firings if firing.armed]
    final = any(firing.wire not in RESUMABLE for firing in fired)
    return StoppedRun(
        f"stopped in step {step}: {describe(fired)}",
        where=where,
        remedy="the run is over; what it has written is kept. To go on from one of its checkpoints, `vla-rl export` it "
        "(the newest; --step names another) and start a new run with policy.checkpoint"
        if final
        else "everything is kept; run.resume goes on, with a larger limit (e.g. budget.wall_h=8) if one was reached",
    )


def refuse_tripped(rows: Iterable[Mapping[str, Any]], where: str) -> None:
    """Refuse to go on with a run that one of its own wires has ended.

    A wire that can be walked past by starting again is none. Pace and budget are no such wires: the machine may be
    another one now, and a limit may be raised; both are judged anew.

    Args:
        rows: of `train.jsonl` and `eval.jsonl`.

    Raises:
        StoppedRun: naming the step and the wire.
    """
    for row in rows:
        fired = [Firing(**firing) for firing in row.get("tripwires", ())]
        if any(firing.armed and firing.wire not in RESUMABLE for firing in fired):
            raise stopped(row["step"], fired, where)


def _number(value: float | None) -> str:
    return "no number" if value is None else f"{value:.4g}"
