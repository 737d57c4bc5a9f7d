"""Steps whose rows are demonstrations: what extra supervision does where everything else is the trainer's own.

In: a callable that gives the rows of a step, and the policy that is to learn from them. Out: a `Wave` of rows without
episodes, each row with the log-probabilities of its tokens under the weights before the update, and the advantage 1 on
all of them. With it and a ratio of 1 the gradient of the clipped objective is that of the tokens' cross-entropy under
the grammar mask. Nobody plays, so there is no reward, no group and no outcome: what is about those does not apply, in
rows, wires and gates alike. Where the rows come from is not known here (`vla_rl.sft.demonstrated`).

Rows are scored at temperature 1, whatever `geometry.temperature` is: the tokens were not sampled at any temperature,
and 1 is the one at which a policy is supervised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from vla_rl.config.schema import GeometryConfig, LossConfig
from vla_rl.errors import ConfigError
from vla_rl.rl.advantage import Advantages
from vla_rl.rl.drift import log_probabilities
from vla_rl.rl.events import RowsScored
from vla_rl.rl.lessons import BatchLimits, micro_batches
from vla_rl.rl.loss import CONSTANT
from vla_rl.rl.settings import IN_REWARD
from vla_rl.rl.summary import Terms
from vla_rl.rollout.events import OnEvent
from vla_rl.rollout.records import EpisodeSpec, Row
from vla_rl.rollout.wave import Wave

SUPERVISED = 1.0
ADVANTAGE = 1.0

RowsOf = Callable[[int], Sequence[Row]]


def check_constants(loss: LossConfig, geometry: GeometryConfig) -> None:
    """Refuse constants that ask for something that demonstrations cannot give.

    Raises:
        ConfigError: naming the key.
    """
    wrong = {
        "loss.weighting": (
            loss.weighting == CONSTANT,
            "constant weighting divides by whole episodes, and rows of demonstrations are none",
            "loss.weighting=token, which is the supervised objective",
        ),
        "loss.kl_in": (
            loss.kl_in == IN_REWARD and bool(loss.kl_beta),
            "demonstrations have no reward that a KL term could be part of",
            "loss.kl_in=loss, or loss.kl_beta=0",
        ),
        "geometry.shuffle_advantages": (
            geometry.shuffle_advantages,
            "all rows of demonstrations have the same advantage: there is nothing to shuffle",
            "geometry.shuffle_advantages=false",
        ),
    }
    for key, (refused, what, remedy) in wrong.items():
        if refused:
            raise ConfigError(what, where=f"{key} with experience.demos", remedy=remedy)


@dataclass(frozen=True)
class DemonstratedStage:
    """Gives the steps of a run their demonstrations; stands where `waves.Stage` does.

    Attributes:
        policy: whose log-probabilities the rows carry.
        rows_of: the rows of an update (from 1), a function of that number alone; their `logp` is not read.
        limits: of a forward pass.
        on_event: told of progress; may raise to stop between two micro-batches.
    """

    policy: Any
    rows_of: RowsOf
    limits: BatchLimits
    on_event: OnEvent

    @property
    def temperature(self) -> float:
        """At which rows are scored."""
        return SUPERVISED

    def stored_rows(self, max_replans: int) -> int:
        """Most rows of a step that lie on the disk: none, they can be had again."""
        return 0

    def step(self, step: int, digest: str | None = None) -> DemonstratedStep:
        """The demonstrations of one step, under the weights as they are now."""
        return DemonstratedStep(self, step)

    def taught(self, wave: Wave, advantages: Advantages) -> dict[EpisodeSpec, float | tuple[float, ...]]:
        """What every demonstration of the wave is taught with."""
        return {row.spec: ADVANTAGE for row in wave.rows}


class DemonstratedStep:
    """The rows of a step; there is no second part, and nothing to compare with a sampler."""

    def __init__(self, stage: DemonstratedStage, step: int) -> None:
        self._stage, self._step = stage, step

    def first(self) -> Wave:
        """Read the step's rows and score them, by token length (which changes the padding only)."""
        started = perf_counter()
        rows = sorted(self._stage.rows_of(self._step), key=lambda row: len(row.bins))
        scored: list[Row] = []
        for part in micro_batches(
            [len(row.bins) for row in rows], self._stage.limits, self._stage.policy.prompt.length
        ):
            logp = log_probabilities(self._stage.policy, rows[part], temperature=SUPERVISED, limits=self._stage.limits)
            scored += [replace(row, logp=own.numpy()) for row, own in zip(rows[part], logp, strict=True)]
            self._stage.on_event(RowsScored(self._step, len(scored), len(rows)))
        return Wave((), tuple(scored), perf_counter() - started, 0, 0, None)

    def fresh(self, wave: Wave) -> list[Row]:
        """Rows that a sampler has to answer for: none."""
        return []

    def refill(self, wave: Wave, terms: list[Terms], advantages: Advantages) -> tuple[Wave, list[Terms], Advantages]:
        """There are no groups that could have been dropped."""
        return wave, terms, advantages
