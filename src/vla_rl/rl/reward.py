"""Rewards: one number an episode from its metrics, in centimetres, with every term named.

In: the flat metrics of an episode. Out: a dict of signed terms and their `total`; None where a term cannot be computed.
Left out: grouping and normalisation (`advantage`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

TIPPED_UPRIGHT = 0.9  # below this cosine of the boat's tilt at the end it counts as tipped


class Reward(Protocol):
    """What the trainer needs of a reward."""

    def terms(self, metrics: Mapping[str, Any]) -> dict[str, float | None]: ...


class RewardV1:
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
        self._success_bonus = float(success_bonus)
        self._tip_penalty = float(tip_penalty)
        self._strike_penalty = float(strike_penalty)
        self._floor_cm = progress_floor_cm

    def terms(self, metrics: Mapping[str, Any]) -> dict[str, float | None]:
        """The signed terms `progress`, `success`, `tip`, `strike` and their sum `total`, in cm.

        `total` is None, "unscorable", when the progress or the final tilt is missing or not finite.
        """
        progress_cm, upright = _finite(metrics["progress_final_cm"]), _finite(metrics["final_upright"])
        if progress_cm is not None and self._floor_cm is not None:
            progress_cm = max(progress_cm, self._floor_cm)
        tip = None if upright is None else -self._tip_penalty * (upright < TIPPED_UPRIGHT)
        success = self._success_bonus * bool(metrics["success"])
        strike = -self._strike_penalty * (metrics["reset_strikes"] > 0)
        total = None if progress_cm is None or tip is None else progress_cm + success + tip + strike
        return {"progress": progress_cm, "success": success, "tip": tip, "strike": strike, "total": total}


def documented_reward() -> RewardV1:
    """Reward v1 with its documented constants: what held-out reads are scored with, whatever a run trains on."""
    return RewardV1(success_bonus=10.0, tip_penalty=2.0, strike_penalty=5.0, progress_floor_cm=None)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
