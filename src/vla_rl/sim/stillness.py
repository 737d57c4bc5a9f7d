"""Whether anything moves in an episode's pictures: pure numpy.

In: grey pictures of both cameras side by side, half a second apart. Out: their mean difference, and the verdict
*frozen*. Only a filmed episode has such pictures; for any other one the answer is None.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SAMPLE_S = 0.5
GREY_SIZE = (320, 120)  # width, height of the side-by-side picture
FROZEN_BELOW = 0.15  # grey levels of 255; the quietest real episode of the documented system reads 1.41


def picture_motion(grey_NHW: Sequence[np.ndarray]) -> float | None:
    """Mean |difference| of consecutive pictures in grey levels; None for fewer than two.

    Args:
        grey_NHW: uint8 pictures of one size, `SAMPLE_S` apart.
    """
    if len(grey_NHW) < 2:
        return None
    levels_NHW = np.stack([np.asarray(picture, dtype=np.float64) for picture in grey_NHW])
    return float(np.abs(np.diff(levels_NHW, axis=0)).mean())


def is_frozen(motion: float | None) -> bool | None:
    """`picture_motion` below 0.15; None where there is none."""
    return None if motion is None else motion < FROZEN_BELOW
