"""Rewards: one number an episode from its metrics, in centimetres, with every term named; and the same tick by tick.

In: the flat metrics of an episode, or its trace. Out: a dict of signed terms and their `total`, or of one array a term
that sums to it. Left out: grouping and normalisation (`advantage`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from vla_rl.errors import UsageError
from vla_rl.sim.funnel import PINCH
from vla_rl.sim.metrics import MIN_UPRIGHT, TickSample, distances_cm, grips

Terms = dict[str, float | None]


class Reward(Protocol):
    """What the trainer needs of a reward."""

    def terms(self, metrics: Mapping[str, Any]) -> dict[str, float | None]: ...


class _DocumentedReward:
    """What v1 and v2 share: a bonus for success, penalties for a tipped boat and a reset that touched it."""

    def __init__(self, *, success_bonus: float, tip_penalty: float, strike_penalty: float) -> None:
        self.success_bonus = float(success_bonus)
        self.tip_penalty = float(tip_penalty)
        self.strike_penalty = float(strike_penalty)

    def terms(self, metrics: Mapping[str, Any]) -> Terms:
        """The signed terms of the boat's way, then `success`, `tip`, `strike`, and their sum `total`, in cm.

        `total` is None, "unscorable", when a number that a term is made of is missing or not finite.
        """
        upright = _finite(metrics["final_upright"])
        terms = {
            **self.way(metrics),
            "success": self.success_bonus * bool(metrics["success"]),
            "tip": None if upright is None else -self.tip_penalty * (upright < MIN_UPRIGHT),
            "strike": -self.strike_penalty * (metrics["reset_strikes"] > 0),
        }
        values = [value for value in terms.values() if value is not None]
        return {**terms, "total": sum(values) if len(values) == len(terms) else None}

    def way(self, metrics: Mapping[str, Any]) -> Terms:
        """The terms that price where the boat went."""
        raise NotImplementedError

    def way_ticks(self, distance_cm_T: np.ndarray, grip_T: np.ndarray | None) -> dict[str, np.ndarray]:
        """The same tick by tick: arrays one shorter than the trace."""
        raise NotImplementedError


class RewardV1(_DocumentedReward):
    """Documented reward v1: ``progress_final + 10 [success] - 2 [upright < 0.9] - 5 [reset strikes > 0]``.

    Args:
        success_bonus: cm granted for success (by the test that the environment was told to use).
        tip_penalty: cm taken if the boat ends tipped.
        strike_penalty: cm taken if the reset touched the boat.
        progress_floor_cm: lower bound of the progress term; None is the documented reward. A boat knocked off the table
            "progresses" by minus thousands of cm, and one such episode would decide the sign of its whole group.
    """

    def __init__(
        self, *, success_bonus: float, tip_penalty: float, strike_penalty: float, progress_floor_cm: float | None
    ) -> None:
        super().__init__(success_bonus=success_bonus, tip_penalty=tip_penalty, strike_penalty=strike_penalty)
        self.progress_floor_cm = progress_floor_cm

    def way(self, metrics: Mapping[str, Any]) -> Terms:
        progress_cm = _finite(metrics["progress_final_cm"])
        if progress_cm is not None and self.progress_floor_cm is not None:
            progress_cm = max(progress_cm, self.progress_floor_cm)
        return {"progress": progress_cm}

    def way_ticks(self, distance_cm_T: np.ndarray, grip_T: np.ndarray | None) -> dict[str, np.ndarray]:
        so_far_cm_T = distance_cm_T[0] - distance_cm_T
        if self.progress_floor_cm is not None:
            so_far_cm_T = np.maximum(so_far_cm_T, self.progress_floor_cm)
        return {"progress": np.diff(so_far_cm_T)}


class RewardV2(_DocumentedReward):
    """Documented reward v2: what was carried counts, what was pushed costs.

    ``grasped_progress - 0.5 ungrasped_displacement + 10 [success] - 2 [upright < 0.9] - 5 [reset strikes > 0]``

    Args:
        success_bonus: cm granted for success (by the test that the environment was told to use).
        tip_penalty: cm taken if the boat ends tipped.
        strike_penalty: cm taken if the reset touched the boat.
        shove_penalty: cm taken for each cm of ungrasped displacement.

    Raises:
        UsageError: from `terms` and `tick_terms`, for an episode without a grip trace. A missing trace is no grasp, and
            a zero in its place would be a price that nobody set.
    """

    def __init__(
        self, *, success_bonus: float, tip_penalty: float, strike_penalty: float, shove_penalty: float
    ) -> None:
        super().__init__(success_bonus=success_bonus, tip_penalty=tip_penalty, strike_penalty=strike_penalty)
        self.shove_penalty = float(shove_penalty)

    def way(self, metrics: Mapping[str, Any]) -> Terms:
        earned_cm = _finite(metrics.get("grasped_progress_cm"))
        shoved_cm = _finite(metrics.get("ungrasped_displacement_cm"))
        if earned_cm is None or shoved_cm is None:
            raise _no_grips("grasped_progress_cm, ungrasped_displacement_cm")
        return {"earned": earned_cm, "shoved": -self.shove_penalty * shoved_cm}

    def way_ticks(self, distance_cm_T: np.ndarray, grip_T: np.ndarray | None) -> dict[str, np.ndarray]:
        if grip_T is None:
            raise _no_grips("trace")
        closed_cm, pinched = -np.diff(distance_cm_T), grip_T[1:] == PINCH
        return {
            "earned": np.where(pinched, closed_cm, 0.0),
            "shoved": np.where(pinched, 0.0, -self.shove_penalty * np.abs(closed_cm)),
        }


def tick_terms(
    trace: Sequence[TickSample], *, success_tick: int | None, reset_strikes: int, reward: RewardV1 | RewardV2
) -> dict[str, np.ndarray]:
    """The reward of an episode spread over its ticks.

    Way terms fall on the tick that moved the boat, `success` on the success tick, `tip` on the last tick, `strike` on
    the first. Each array sums to its term in ``reward.terms``, whatever the order: distances lie on a binary grid
    (`metrics.GRID_PER_CM`), so that nothing is rounded while weights and floors are such as 10, 0.5 or -4.

    Args:
        trace: samples with `distance_m`, `upright` and `grip`; index 0 is the state after reset.
        success_tick: 0-based tick of the success that is rewarded, or None.
        reset_strikes: counted while resetting.
        reward: whose terms.

    Returns:
        one float64 array [ticks] a term; there is no `total`, so that the sum of all values is the reward.

    Raises:
        ValueError: a trace without a tick, or a success outside it.
        UsageError: v2 without grips.
    """
    return spread(
        distances_cm(trace), grips(trace), upright=trace[-1].upright, success_tick=success_tick,
        reset_strikes=reset_strikes, reward=reward,
    )  # fmt: skip


def spread(
    distance_cm_T: np.ndarray,
    grip_T: np.ndarray | None,
    *,
    upright: float,
    success_tick: int | None,
    reset_strikes: int,
    reward: RewardV1 | RewardV2,
) -> dict[str, np.ndarray]:
    """`tick_terms` from the columns of a trace; `upright` is that of its end."""
    ticks = len(distance_cm_T) - 1
    if ticks < 1 or not (success_tick is None or 0 <= success_tick < ticks):
        raise ValueError(f"success at tick {success_tick} in a trace of {ticks} ticks")
    terms = reward.way_ticks(distance_cm_T, grip_T)
    terms |= {name: np.zeros(ticks) for name in ("success", "tip", "strike")}
    if success_tick is not None:
        terms["success"][success_tick] = reward.success_bonus
    if upright < MIN_UPRIGHT:
        terms["tip"][-1] = -reward.tip_penalty
    if reset_strikes > 0:
        terms["strike"][0] = -reward.strike_penalty
    return terms


def documented_reward() -> RewardV1:
    """Reward v1 with its documented constants: what held-out reads are scored with, whatever a run trains on."""
    return RewardV1(success_bonus=10.0, tip_penalty=2.0, strike_penalty=5.0, progress_floor_cm=None)


def _no_grips(where: str) -> UsageError:
    return UsageError(
        "reward v2 needs the grip trace, and this episode has none",
        where=where,
        remedy="use reward=v1, or a simulator that records which jaws touch the boat",
    )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
