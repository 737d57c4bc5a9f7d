"""Power: how probably a rule fires if an effect of a given size is there.

In: n, the effect, what else the rule depends on. Out: a probability, for counts exact by enumeration. Nothing is
simulated, so a power can be compared and stored; the paired interval is taken in the limit of many resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor
from statistics import NormalDist

from vla_rl.errors import UsageError
from vla_rl.stats.binomial import critical_high, critical_low, lower_tail, masses, upper_tail
from vla_rl.stats.exact import written
from vla_rl.stats.mcnemar import sign_p

LARGEST = 2000  # pairs; beyond, enumeration takes seconds


def power_of_tail(trials: int, rate: float, effect: float, alpha: float) -> float:
    """Of the exact one-sided binomial test against `rate` at the true rate ``rate + effect``, whose sign chooses the
    tail; the true rate is kept inside [0, 1]."""
    true = min(1.0, max(0.0, rate + effect))
    if effect < 0:
        return lower_tail(critical_low(trials, rate, alpha), trials, true)
    return upper_tail(critical_high(trials, rate, alpha), trials, true)


def power_of_mcnemar(
    pairs: int, effect: float, discordant: float, alpha: float, *, two_sided: bool, mid_p: bool = False
) -> float:
    """Of the exact paired test firing in the direction of a gain.

    Args:
        pairs: all pairs, n.
        effect: P(only after) - P(only before), positive.
        discordant: P(only after) + P(only before), at least `effect`.

    Returns:
        ``sum over d of P(D = d) P(W >= w(d) | d)`` with ``D ~ Binomial(n, discordant)`` and
        ``W ~ Binomial(d, (discordant + effect) / (2 discordant))``.
    """
    wins = _share_of_wins(effect, discordant)

    def fires(won: int, lost: int) -> bool:
        return won > lost and sign_p(won, lost, two_sided=two_sided, mid_p=mid_p) <= alpha

    return _over_discordant(pairs, discordant, wins, fires)


def power_of_paired_interval(
    pairs: int, effect: float, discordant: float, *, level: float = 0.95, line: float = 0.0
) -> float:
    """Of the paired bootstrap of counts having its lower end above `line` (a mean difference); arguments as above.

    In the limit of many resamples the lower end lies above the line if and only if the multinomial distribution of the
    resampled sum has ``P(sum <= line n) < (1 - level) / 2``.
    """
    wins, tail = _share_of_wins(effect, discordant), float((1 - written(level)) / 2)
    at_most = floor(written(line) * pairs)
    return _over_discordant(pairs, discordant, wins, lambda w, lost: sum_tail(w, lost, pairs, at_most) < tail)


def power_of_mean_interval(n: int, away: float, deviation: float, *, level: float = 0.95) -> float:
    """Of the interval of a mean lying wholly on the far side of a line, by the normal approximation.

    Args:
        away: true distance of the mean from the line.
        deviation: standard deviation of one value, positive.

    Returns:
        ``Phi(away sqrt(n) / deviation - z)``, z the quantile at ``(1 + level) / 2``.
    """
    if n < 1 or deviation <= 0 or not 0 < level < 1:
        raise UsageError(f"no power of {n} values with deviation {deviation} at level {level}", where="power")
    normal = NormalDist()
    return normal.cdf(away * n**0.5 / deviation - normal.inv_cdf(0.5 + level / 2))


def sum_tail(won: int, lost: int, pairs: int, at_most: int) -> float:
    """P(sum <= at_most) of `pairs` independent draws of +1, -1 and 0 with shares won/n, lost/n and the rest.

    The n-fold convolution, by the discrete Fourier transform of the probabilities on the 2n + 1 possible sums.
    """
    import numpy as np

    if at_most >= pairs:
        return 1.0
    if at_most < -pairs:
        return 0.0
    size = 2 * pairs + 1
    once = np.zeros(size)
    once[-1], once[0], once[1] = lost / pairs, (pairs - won - lost) / pairs, won / pairs
    chances = np.fft.ifft(np.fft.fft(once) ** pairs).real  # index s holds sum s, index -s holds sum -s
    ordered = np.concatenate([chances[pairs + 1 :], chances[: pairs + 1]])  # sums -n..n
    return float(np.clip(ordered[: at_most + pairs + 1].sum(), 0.0, 1.0))


def _over_discordant(pairs: int, discordant: float, wins: float, fires: Callable[[int, int], bool]) -> float:
    """Sum over the number of discordant pairs; at a given number, more wins never make a rule stop firing."""
    if not 1 <= pairs <= LARGEST:
        raise UsageError(f"power is computed for 1 to {LARGEST} pairs, not {pairs}", where="power")
    total = 0.0
    for d, chance in enumerate(masses(pairs, discordant)):
        if chance < 1e-12 or not fires(d, 0):
            continue
        low, high = 0, d  # fires at high; find the fewest wins
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fires(middle, d - middle) else (middle + 1, high)
        total += float(chance) * upper_tail(high, d, wins)
    return min(1.0, total)


def _share_of_wins(effect: float, discordant: float) -> float:
    exact, share = written(effect), written(discordant)
    if not 0 < share <= 1 or not 0 <= exact <= share:
        raise UsageError(
            f"an effect of {effect} needs a share of discordant pairs between it and 1, not {discordant}", where="power"
        )
    return float((share + exact) / (2 * share))
