"""The budget: one pool for all rungs, arms, retries and evaluations.

In: a registration and its state. Out: what is spent, what is left, and whether one more launch of a rung still fits.
Whatever was started counts, however it ended. Units are those that the registration limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vla_rl.prereg.document import Registration
from vla_rl.prereg.state import State

UNITS = ("gpu_h", "wall_h")


@dataclass(frozen=True)
class Account:
    """Hours by unit.

    Attributes:
        limit: of the pool; units without a limit are left out everywhere.
        spent: by all attempts and evaluations that have ended.
        reserved: what the attempts that are running should cost: nobody else may spend it.
        expected: what one launch of each rung should cost.
    """

    limit: Mapping[str, float]
    spent: Mapping[str, float]
    reserved: Mapping[str, float]
    expected: Mapping[str, Mapping[str, float]]

    @property
    def left(self) -> dict[str, float]:
        """Neither spent nor reserved."""
        return {unit: limit - self.spent[unit] - self.reserved[unit] for unit, limit in self.limit.items()}

    def shortfall(self, rung: str) -> str | None:
        """Why one more launch of a rung does not fit, in words; None if it does."""
        for unit, limit in self.limit.items():
            needed = self.expected.get(rung, {}).get(unit, 0.0)
            total = self.spent[unit] + self.reserved[unit] + needed
            if total > limit:
                held = f", {self.reserved[unit]:.4g} are reserved for what is running" if self.reserved[unit] else ""
                return (
                    f"{self.spent[unit]:.4g} {unit} are spent{held} and a launch of {rung} should cost {needed:.4g}: "
                    f"{total:.4g} > {limit:.4g}"
                )
        return None


def account(registration: Registration, state: State) -> Account:
    """The pool as it stands."""
    pool = {unit: getattr(registration.budget, unit) for unit in UNITS}
    limit = {unit: hours for unit, hours in pool.items() if hours is not None}
    costs: list[Mapping[str, Any]] = [a.end for a in state.attempts if a.end is not None]
    costs += state.other_cost
    spent = {unit: sum(cost.get(unit) or 0.0 for cost in costs) for unit in limit}
    expected = {
        rung: {unit: hours for unit in limit if (hours := getattr(cost, unit)) is not None}
        for rung, cost in registration.budget.expected.items()
    }
    running = [expected.get(attempt.rung, {}) for attempt in state.running]
    reserved = {unit: sum(cost.get(unit, 0.0) for cost in running) for unit in limit}
    return Account(limit, spent, reserved, expected)
