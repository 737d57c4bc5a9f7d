"""Bootstrap over training seeds first, then over episodes: what a claim about training has to be judged by.

In: for every training seed, the paired differences of its episodes. Out: mean difference and interval. Episodes of one
checkpoint are no independent evidence on what another training run would give. With few training seeds the interval is
too narrow (the percentile bootstrap of three values knows nothing beyond them), which its reader must be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vla_rl.errors import UsageError
from vla_rl.stats.bootstrap import resampled_means
from vla_rl.stats.exact import order_statistics


@dataclass(frozen=True)
class ClusterDifference:
    """Mean over training seeds of the mean difference of their episodes.

    Attributes:
        means: of every training seed, by name.
        episodes: of all training seeds together.
    """

    mean: float
    low: float
    high: float
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
    picked = rng.integers(0, len(names), (resamples, len(names)))
    means = np.empty((resamples, len(names)))
    for k, name in enumerate(names):
        where = np.nonzero(picked == k)  # every time that this training seed was drawn, its episodes are drawn anew
        if len(where[0]):
            means[where] = resampled_means(np.asarray(differences[name], dtype=np.float64), len(where[0]), rng)
    drawn = np.sort(means.mean(axis=1))
    own = {name: float(np.mean(np.asarray(differences[name], dtype=np.float64))) for name in names}
    return ClusterDifference(
        mean=float(np.mean(list(own.values()))),
        low=float(drawn[ranks[0]]),
        high=float(drawn[ranks[1]]),
        means=own,
        episodes=sum(len(d) for d in differences.values()),
        level=level,
        resamples=resamples,
    )


def smallest_p_over_clusters(clusters: int) -> float:
    """Smallest two-sided p that any exact sign test over so many training seeds can reach: ``2^(1 - k)``."""
    return 2.0 ** (1 - clusters)
