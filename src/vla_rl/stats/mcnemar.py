"""McNemar's exact test of paired outcomes.

In: how many pairs were won by one side only, and by the other only. Out: a p-value. Pairs that both or neither won say
nothing about which side is better and do not enter.
"""

from __future__ import annotations

from scipy.stats import binomtest

from vla_rl.errors import UsageError


def exact_mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p of the hypothesis that a discordant pair is as likely to be A's as B's (McNemar 1947, exact form).

    ``min(1, 2 P(X <= min(only_a, only_b)))`` with ``X ~ Binomial(only_a + only_b, 1/2)``; 1 without discordant pairs.

    Raises:
        UsageError: negative counts.
    """
    if only_a < 0 or only_b < 0:
        raise UsageError(f"{only_a} and {only_b} are no counts", where="McNemar's test")
    pairs = only_a + only_b
    return float(binomtest(only_a, pairs, 0.5).pvalue) if pairs else 1.0
