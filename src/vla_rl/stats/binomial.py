"""Exact tails of the binomial distribution, and the counts at which a test of given size begins to fire.

In: counts, a rate, a size. Out: probabilities and critical counts. Critical counts are found by the tail itself: the
quantile function answers another question, and is one too high.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vla_rl.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

WHERE = "binomial tail"


def lower_tail(count: int, trials: int, rate: float) -> float:
    """P(X <= count), X ~ Binomial(trials, rate)."""
    _check(trials, rate)
    if count < 0:
        return 0.0
    from scipy.special import bdtr

    return float(bdtr(min(count, trials), trials, rate))


def upper_tail(count: int, trials: int, rate: float) -> float:
    """P(X >= count), X ~ Binomial(trials, rate)."""
    _check(trials, rate)
    if count <= 0:
        return 1.0
    if count > trials:
        return 0.0
    from scipy.special import bdtrc

    return float(bdtrc(count - 1, trials, rate))


def masses(trials: int, rate: float) -> np.ndarray:
    """float64 [trials + 1]: P(X = k) for every k."""
    import numpy as np

    _check(trials, rate)
    from scipy.special import gammaln, xlog1py, xlogy

    k = np.arange(trials + 1)
    ways = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    return np.exp(ways + xlogy(k, rate) + xlog1py(trials - k, -rate))


def critical_low(trials: int, rate: float, alpha: float) -> int:
    """Largest k with P(X <= k) <= alpha; -1 if there is none, so no count is surprisingly low."""
    _check_size(alpha)
    k = -1
    while k < trials and lower_tail(k + 1, trials, rate) <= alpha:
        k += 1
    return k


def critical_high(trials: int, rate: float, alpha: float) -> int:
    """Smallest k with P(X >= k) <= alpha; trials + 1 if there is none, so no count is surprisingly high."""
    _check_size(alpha)
    k = trials + 1
    while k > 0 and upper_tail(k - 1, trials, rate) <= alpha:
        k -= 1
    return k


def trials_without_event(bound: float, level: float = 0.95) -> int:
    """Fewest trials which, all without event, put the one-sided upper bound of the rate at or below `bound`.

    The closed form ``1 - (1 - level)^(1 / n)`` of Clopper-Pearson at zero events.
    """
    import numpy as np

    if not 0 < bound < 1 or not 0 < level < 1:
        raise UsageError(f"{bound} is no bound of a rate, or {level} no level", where="trials without event")
    n = max(1, int(np.log(1 - level) / np.log1p(-bound)) - 1)
    while (1 - bound) ** n > 1 - level:
        n += 1
    return n


def _check(trials: int, rate: float) -> None:
    if trials < 0 or not 0 <= rate <= 1:
        raise UsageError(f"{trials} is no number of trials, or {rate} no rate", where=WHERE)


def _check_size(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise UsageError(f"{alpha} is no size of a test", where=WHERE, remedy="a number between 0 and 1, such as 0.05")
