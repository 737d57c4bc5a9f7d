"""Confidence intervals for counts.

In: successes and trials. Out: an interval of the rate. Reads, gates and tables use the exact ones; Wilson's is for
plots and inside Newcombe's interval of a difference.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

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
    tail = (1 - level) / 2
    return _lower(successes, trials, tail), _upper(successes, trials, tail)


def lower_bound(successes: int, trials: int, level: float = 0.95) -> float:
    """One-sided Clopper-Pearson lower bound: rates below it make so many successes too rare."""
    return _lower(successes, trials, 1 - level)


def upper_bound(successes: int, trials: int, level: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound: rates above it make so few successes too rare."""
    return _upper(successes, trials, 1 - level)


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (Wilson 1927, J Am Stat Assoc 22:209-212), without continuity correction."""
    _check(successes, trials, "Wilson interval")
    z, rate = _z(level), successes / trials
    middle = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if successes == 0 else low), (1.0 if successes == trials else high)


def newcombe(a: tuple[int, int], b: tuple[int, int], level: float = 0.95) -> tuple[float, float]:
    """Interval of the difference of two rates, b - a, of independent samples (Newcombe 1998, Stat Med 17:873-890,
    method 10: hybrid of two Wilson intervals).

    Args:
        a, b: (successes, trials) each.
    """
    rate_a, rate_b = a[0] / a[1] if a[1] else 0.0, b[0] / b[1] if b[1] else 0.0
    (low_a, high_a), (low_b, high_b) = wilson(*a, level), wilson(*b, level)
    difference = rate_b - rate_a
    low = difference - sqrt((rate_b - low_b) ** 2 + (high_a - rate_a) ** 2)
    high = difference + sqrt((high_b - rate_b) ** 2 + (rate_a - low_a) ** 2)
    return max(-1.0, low), min(1.0, high)


def _lower(successes: int, trials: int, tail: float) -> float:
    _check(successes, trials)
    if not 0 < tail < 1:
        raise UsageError("the confidence level lies between 0 and 1", where="Clopper-Pearson interval")
    from scipy.special import betaincinv

    return float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0


def _upper(successes: int, trials: int, tail: float) -> float:
    return 1.0 - _lower(trials - successes, trials, tail)


def _check(successes: int, trials: int, where: str = "Clopper-Pearson interval") -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise UsageError(f"{successes} successes of {trials} trials is no count", where=where)


def _z(level: float) -> float:
    if not 0 < level < 1:
        raise UsageError(f"{level} is no confidence level", where="Wilson interval")
    return NormalDist().inv_cdf(0.5 + level / 2)
