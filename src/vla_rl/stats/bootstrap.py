"""Paired percentile bootstrap of a mean difference.

In: one value per seed before and after. Out: mean difference and interval. Pairs are matched by seed, never by
position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vla_rl.errors import UsageError


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
    if not before or set(before) != set(after):
        only = sorted(set(before) ^ set(after))
        raise UsageError(f"the two evaluations do not hold the same seeds ({only[:5]} …)", where="paired bootstrap")
    seeds = sorted(before)
    delta = np.array([after[s] - before[s] for s in seeds], dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, len(seeds), (resamples, len(seeds)))
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(delta[picks].mean(axis=1), [tail, 100 - tail])
    return PairedDifference(float(delta.mean()), float(low), float(high), len(seeds), level, resamples)
