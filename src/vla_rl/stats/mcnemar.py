"""McNemar's exact test of paired outcomes, which is the sign test of the pairs that differ.

In: how many pairs were won by one side only, and by the other only. Out: a p-value. Pairs that both or neither won say
nothing about which side is better and do not enter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vla_rl.errors import UsageError
from vla_rl.stats.binomial import lower_tail, masses, upper_tail


@dataclass(frozen=True)
class Signs:
    """How paired differences after - before fall: positive, negative, none."""

    won: int
    lost: int
    tied: int

    @property
    def pairs(self) -> int:
        return self.won + self.lost + self.tied


def signs(before: Mapping[int, float], after: Mapping[int, float]) -> Signs:
    """Compare by seed.

    Raises:
        UsageError: the two sides do not hold the same seeds.
    """
    if set(before) != set(after):
        only = sorted(set(before) ^ set(after))
        raise UsageError(f"the two evaluations do not hold the same seeds ({only[:5]} …)", where="paired test")
    won = sum(after[s] > before[s] for s in before)
    lost = sum(after[s] < before[s] for s in before)
    return Signs(won, lost, len(before) - won - lost)


def exact_mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p of the hypothesis that a discordant pair is as likely to be A's as B's (McNemar 1947, exact form).

    ``min(1, 2 P(X <= min(only_a, only_b)))`` with ``X ~ Binomial(only_a + only_b, 1/2)``; 1 without discordant pairs.

    Raises:
        UsageError: negative counts.
    """
    _check(only_a, only_b)
    return min(1.0, 2 * lower_tail(min(only_a, only_b), only_a + only_b, 0.5))


def one_sided_mcnemar(won: int, lost: int) -> float:
    """P(X >= won), ``X ~ Binomial(won + lost, 1/2)``: how surprising so many wins are if neither side is better."""
    _check(won, lost)
    return upper_tail(won, won + lost, 0.5)


def mid_p_mcnemar(won: int, lost: int, *, two_sided: bool = True) -> float:
    """The mid-p form: half of the probability of the count itself is left out (Lancaster 1961). Less conservative, and
    in small samples its size can exceed the nominal one, so whoever uses it names it."""
    _check(won, lost)
    pairs = won + lost
    if two_sided:
        few = min(won, lost)
        return min(1.0, 2 * lower_tail(few, pairs, 0.5) - float(masses(pairs, 0.5)[few]))
    return upper_tail(won, pairs, 0.5) - float(masses(pairs, 0.5)[won]) / 2


def sign_p(won: int, lost: int, *, two_sided: bool, mid_p: bool = False) -> float:
    """p of `won` against `lost` by the form that is asked for."""
    if mid_p:
        return mid_p_mcnemar(won, lost, two_sided=two_sided)
    return exact_mcnemar(won, lost) if two_sided else one_sided_mcnemar(won, lost)


def fewest_discordant(alpha: float, *, two_sided: bool, mid_p: bool = False) -> int:
    """Fewest pairs, all won by one side, that a test of size `alpha` calls a difference: 6 at two-sided 0.05, 5 at
    one-sided."""
    if not 0 < alpha < 1:
        raise UsageError(f"{alpha} is no size of a test", where="McNemar's test")
    pairs = 1
    while sign_p(pairs, 0, two_sided=two_sided, mid_p=mid_p) > alpha:
        pairs += 1
    return pairs


def _check(only_a: int, only_b: int) -> None:
    if only_a < 0 or only_b < 0:
        raise UsageError(f"{only_a} and {only_b} are no counts", where="McNemar's test")
