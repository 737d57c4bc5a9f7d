"""Grade, blur and sensor noise as pure functions of pictures.

In: float32 pictures [height, width, channel] in counts of 255. Out: the same. Nothing is random except `noise`, whose
stream is keyed by what is seen and not by how often a picture was taken. The lens is in `lens` and `remap`.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from vla_rl import seeds
from vla_rl.sim import documented
from vla_rl.sim.frames import CAMERAS

MIN_BLUR_PX = 0.22


def grade(picture_HW3: np.ndarray, camera: str) -> np.ndarray:
    """Per-channel ``out = gain * in + bias`` with the documented numbers of a camera; not clipped."""
    gain, bias = (np.asarray(numbers, np.float32) for numbers in documented.GRADE[camera])
    return picture_HW3 * gain + bias


def blur(picture_HWC: np.ndarray, sigma_px: float) -> np.ndarray:
    """Gaussian point spread of `sigma_px` pixels of this very picture; edges repeat; channels stay apart.

    A spread under 0.22 px gives a neighbour less than 0.01 of 255 counts: the picture is returned as it is.
    """
    if sigma_px < MIN_BLUR_PX:
        return picture_HWC
    sigmas = (sigma_px, sigma_px, 0.0)[: picture_HWC.ndim]
    return ndimage.gaussian_filter(picture_HWC, sigmas, mode="nearest", truncate=3.0)


def noise(shape: tuple[int, ...], sigma_counts: float, *, seed: int, tick: int, camera: str) -> np.ndarray:
    """Independent normal noise in counts, float32: one draw per environment seed, tick and camera.

    Keyed rather than running, so that a picture taken for a video does not change what a policy sees next.
    """
    rng = seeds.stream("camera-noise", seed, tick, CAMERAS.index(camera))
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(sigma_counts)


def to_counts(picture_HW3: np.ndarray) -> np.ndarray:
    """uint8, rounded to the nearest count and clipped."""
    return np.clip(np.rint(picture_HW3), 0, 255).astype(np.uint8)
