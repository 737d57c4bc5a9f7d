"""Paired percentile bootstrap of a mean difference.

In: one value per seed before and after, or how many pairs were won and lost. Out: mean difference and interval. Pairs
are matched by seed, never by position. The bias-corrected form is left out: on ties it follows float noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vla_rl.errors import UsageError
from vla_rl.stats.exact import order_statistics

if TYPE_CHECKING:
    import numpy as np

BATCH = 4_000_000  # resampled values held at once


@dataclass(frozen=True)
class PairedDifference:
    """Mean of the per-seed differences after - before, with its percentile interval."""

    mean: float
    low: float
    high: float
    pairs: int
    level: float
    resamples: int


def paired_bootstrap(
    before: Mapping[int, float],
    after: Mapping[int, float],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedDifference:
    """Percentile bootstrap of the mean of ``after[s] - before[s]`` over seeds (Efron & Tibshirani 1993, ch. 13).

    Seeds are sorted and resampled with ``default_rng(seed).integers(0, n, (resamples, n))``, so the interval is a pure
    function of its arguments.

    Raises:
        UsageError: the two sides do not hold the same seeds, or hold none.
    """
    import numpy as np

    if not before or set(before) != set(after):
        only = sorted(set(before) ^ set(after))
        raise UsageError(f"the two evaluations do not hold the same seeds ({only[:5]} …)", where="paired bootstrap")
    seeds = sorted(before)
    delta = np.array([after[s] - before[s] for s in seeds], dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, len(seeds), (resamples, len(seeds)))
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(delta[picks].mean(axis=1), [tail, 100 - tail])
    return PairedDifference(float(delta.mean()), float(low), float(high), len(seeds), level, resamples)


@dataclass(frozen=True)
class CountDifference:
    """Won minus lost pairs, with a percentile interval on the lattice of integers.

    Attributes:
        sum: won - lost.
        low, high: ends of the interval of the sum: integers, so that "above 0" is an exact comparison.
        pairs: all pairs, ties included.
    """

    sum: int
    low: int
    high: int
    pairs: int
    level: float
    resamples: int


def bootstrap_counts(
    won: int, lost: int, pairs: int, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> CountDifference:
    """Paired percentile bootstrap of a difference of success counts.

    Resampling pairs with values +1, -1 and 0 is drawing their three counts from a multinomial distribution. Ends
    are order statistics of the integer sums (`inverted_cdf`), so no float decides anything.

    Args:
        won, lost: pairs that only the one side, only the other side won.
        pairs: all pairs.

    Raises:
        UsageError: counts that are no counts, or no pairs.
    """
    import numpy as np

    if pairs < 1 or won < 0 or lost < 0 or won + lost > pairs:
        raise UsageError(f"{won} won and {lost} lost of {pairs} pairs is no count", where="paired bootstrap")
    ranks = order_statistics(level, resamples)
    shares = np.array([lost, pairs - won - lost, won]) / pairs
    drawn = np.random.default_rng(seed).multinomial(pairs, shares, size=resamples)
    sums = np.sort(drawn[:, 2] - drawn[:, 0])
    low, high = (int(sums[rank]) for rank in ranks)
    return CountDifference(won - lost, low, high, pairs, level, resamples)


def bootstrap_mean(
    values: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of a mean; a point where all values are equal.

    Raises:
        UsageError: no values.
    """
    import numpy as np

    if not values:
        raise UsageError("no values", where="bootstrap of a mean")
    ranks = order_statistics(level, resamples)
    data, rng = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    means = np.sort(resampled_sums(data, resamples, rng)) / len(data)
    return float(means[ranks[0]]), float(means[ranks[1]])


def resampled_sums(data: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """float64 [resamples]: sums of `data` drawn with replacement, in batches of bounded memory."""
    import numpy as np

    batch = max(1, BATCH // len(data))
    parts = [
        data[rng.integers(0, len(data), (min(batch, resamples - start), len(data)))].sum(axis=1)
        for start in range(0, resamples, batch)
    ]
    return np.concatenate(parts)
