"""Exact confidence intervals for counts.

In: successes and trials. Out: an interval. Plots may use other intervals; reads and tables use these.
"""

from __future__ import annotations

from scipy.stats import binomtest

from vla_rl.errors import UsageError


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval of a success rate (Clopper & Pearson 1934, Biometrika 26:404-413).

    Args:
        successes: number of successes, 0 <= successes <= trials.
        trials: number of trials, at least 1.
        level: confidence level.

    Raises:
        UsageError: counts that are no counts.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise UsageError(f"{successes} successes of {trials} trials is no count", where="Clopper-Pearson interval")
    interval = binomtest(successes, trials).proportion_ci(level, method="exact")
    return float(interval.low), float(interval.high)
