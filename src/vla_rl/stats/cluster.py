"""Bootstrap over training seeds first, then over episodes: what a claim about training has to be judged by.

In: for every training seed, the paired differences of its episodes. Out: mean difference and interval. Episodes of one
checkpoint are no independent evidence on what another training run would give. With few training seeds the interval is
too narrow (the percentile bootstrap of three values knows nothing beyond them), which its reader must be told. Ends are
exact where all differences are whole numbers, so that an end at the very line is decided as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from vla_rl.errors import UsageError
from vla_rl.stats.bootstrap import resampled_sums
from vla_rl.stats.exact import order_statistics


@dataclass(frozen=True)
class ClusterDifference:
    """Mean over training seeds of the mean difference of their episodes.

    Attributes:
        low, high: ends of its interval.
        means: of every training seed, by name.
        episodes: of all training seeds together.
    """

    mean: float
    low: Fraction
    high: Fraction
    means: dict[str, float]
    episodes: int
    level: float
    resamples: int


def cluster_bootstrap(
    differences: Mapping[str, Sequence[float]], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> ClusterDifference:
    """Two-stage percentile bootstrap (Davison & Hinkley 1997, section 3.8: both stages with replacement).

    Every resample draws as many training seeds as there are, and for each drawn one its episodes anew. Training seeds
    weigh the same, however many episodes they have.

    Args:
        differences: paired differences after - before by training seed; at least two training seeds.

    Raises:
        UsageError: fewer than two training seeds, or one without episodes.
    """
    import numpy as np

    if len(differences) < 2 or not all(len(d) for d in differences.values()):
        raise UsageError(
            f"{len(differences)} training seeds, or one without episodes",
            where="cluster bootstrap",
            remedy="at least two training seeds with episodes each",
        )
    ranks = order_statistics(level, resamples)
    rng, names = np.random.default_rng(seed), sorted(differences)
    data = {name: np.asarray(differences[name], dtype=np.float64) for name in names}
    # A mean of means over one denominator: its numerators are whole numbers if the differences are, and floats add
    # those without error.
    common = lcm(*(len(each) for each in data.values()))
    picked = rng.integers(0, len(names), (resamples, len(names)))
    numerators = np.empty((resamples, len(names)))
    for k, name in enumerate(names):
        where = np.nonzero(picked == k)  # every time that this training seed was drawn, its episodes are drawn anew
        if len(where[0]):
            weight = common // len(data[name])
            numerators[where] = resampled_sums(data[name], len(where[0]), rng) * weight
    drawn = np.sort(numerators.sum(axis=1))
    low, high = (Fraction(float(drawn[rank])) / (common * len(names)) for rank in ranks)
    own = {name: float(each.mean()) for name, each in data.items()}
    return ClusterDifference(
        mean=float(np.mean(list(own.values()))),
        low=low,
        high=high,
        means=own,
        episodes=sum(len(d) for d in differences.values()),
        level=level,
        resamples=resamples,
    )


def smallest_p_over_clusters(clusters: int) -> float:
    """Smallest two-sided p that any exact sign test over so many training seeds can reach: ``2^(1 - k)``."""
    return 2.0 ** (1 - clusters)
