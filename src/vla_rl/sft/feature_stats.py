"""Statistics of dataset columns in the form in which LeRobot keeps them: per feature, per dimension, exact.

In: the values of a column, or histograms of 8-bit pictures. Out: ``min, max, mean, std`` (population), ``count`` and
the quantiles ``q01 .. q99``. Quantiles interpolate between order statistics as `numpy.quantile` does. LeRobot itself
estimates them (histograms of 5 000 bins, averages over episodes); these are those of the values.

Shapes: N values, D dimensions, C colour channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


def vector_stats(values_ND: np.ndarray) -> dict[str, list[Any]]:
    """Statistics of every dimension: lists of D numbers, `count` a list of one."""
    values = np.asarray(values_ND, dtype=np.float64)
    quantiles = np.quantile(values, list(QUANTILES.values()), axis=0)
    stats = {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }
    return {"count": [len(values)], **{name: value.tolist() for name, value in stats.items()}}


def picture_histogram(picture: np.ndarray) -> np.ndarray:
    """Pixels of each level, int64 [C, 256], of a uint8 [height, width, C] picture."""
    return np.stack([np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(picture, -1, 0)])


def picture_stats(histogram_CL: np.ndarray, pictures: int) -> dict[str, list[Any]]:
    """Statistics of each channel scaled to 0..1, nested [C][1][1] as LeRobot wants; `count` counts pictures."""
    levels = np.arange(256) / 255.0
    total = histogram_CL.sum(axis=1)
    mean = histogram_CL @ levels / total
    present = histogram_CL > 0
    stats = {
        "min": levels[present.argmax(axis=1)],
        "max": levels[255 - present[:, ::-1].argmax(axis=1)],
        "mean": mean,
        "std": np.sqrt((histogram_CL * (levels - mean[:, None]) ** 2).sum(axis=1) / total),
        **{name: np.array([_quantile(row, levels, q) for row in histogram_CL]) for name, q in QUANTILES.items()},
    }
    return {"count": [pictures], **{name: value.reshape(-1, 1, 1).tolist() for name, value in stats.items()}}


def _quantile(counts_L: np.ndarray, levels: np.ndarray, quantile: float) -> float:
    """Linear interpolation between the two order statistics around ``quantile * (n - 1)``."""
    ends = np.cumsum(counts_L)
    last = ends[-1] - 1
    position = quantile * last
    ranks = (np.floor(position), min(np.floor(position) + 1, last))
    below, above = (levels[np.searchsorted(ends, rank, side="right")] for rank in ranks)
    return float(below + (position % 1.0) * (above - below))
