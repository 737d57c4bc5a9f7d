"""Lens, grade, blur and sensor noise as pure functions of pictures.

In: float32 pictures [height, width, channel] in counts of 255, camera constants. Out: the same. Pixel sizes are quoted
for a picture with 480 rows and scaled with the number of rows. Nothing is random except `noise`, whose stream is keyed
by what is seen and not by how often a picture was taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import ndimage, sparse

from vla_rl import seeds
from vla_rl.errors import ConfigError
from vla_rl.sim.frames import CAMERAS

REFERENCE_ROWS = 480
MIN_BLUR_PX = 0.22
# A lens is rendered with a pinhole whose half-height is wider by this factor; it turns fovy 52 degrees into 72.
LENS_WIDENING = math.tan(math.radians(36.0)) / math.tan(math.radians(26.0))
# theta = rho (1 + k2 rho^2 + k4 rho^4) with rho = r / f.
EQUIDISTANT, FITTED_WRIST = (0.0, 0.0), (0.10135, -0.03567)
# Per camera: gain of each channel, bias of each channel in counts.
DOCUMENTED_GRADE = {
    "top": ((0.8149, 0.8607, 0.8889), (30.61, 26.29, 29.44)),
    "wrist": ((0.7432, 0.7720, 0.8600), (57.88, 54.04, 47.57)),
}


def focal_px(rows: int, fovy_deg: float) -> float:
    """Focal length in pixels of a pinhole with a vertical field of view: rows / 2 / tan(fovy / 2)."""
    return rows / 2.0 / math.tan(math.radians(fovy_deg) / 2.0)


def source_fovy_deg(fovy_deg: float) -> float:
    """Field of view of the pinhole picture from which a lens with centre field `fovy_deg` is made."""
    return 2.0 * math.degrees(math.atan(math.tan(math.radians(fovy_deg) / 2.0) * LENS_WIDENING))


def lens_fovy_deg(source_deg: float) -> float:
    """The inverse of `source_fovy_deg`."""
    return 2.0 * math.degrees(math.atan(math.tan(math.radians(source_deg) / 2.0) / LENS_WIDENING))


def source_size(size: int) -> int:
    """Rows (or columns) of the source picture, so that the centre of the lens is sampled about one to one."""
    return math.ceil(size * LENS_WIDENING)


def lens_theta(rho: np.ndarray, coefficients: tuple[float, float]) -> np.ndarray:
    """Angle off the axis in radians at radius ``rho`` = pixels / focal length."""
    k2, k4 = coefficients
    return rho * (1.0 + k2 * rho**2 + k4 * rho**4)


@dataclass(frozen=True)
class Remap:
    """A lens as a sparse matrix: each pixel of the result is a bilinear mix of four source pixels.

    Attributes:
        weights: float32 [result pixel, source pixel].
        shape: rows and columns of the result.
    """

    weights: sparse.csr_array
    shape: tuple[int, int]

    def __call__(self, picture_HWC: np.ndarray) -> np.ndarray:
        """float32 [rows, columns, channel] sampled from a source picture."""
        return (self.weights @ picture_HWC.reshape(-1, picture_HWC.shape[2])).reshape(*self.shape, -1)


def lens_remap(width_px: int, height_px: int, fovy_deg: float, coefficients: tuple[float, float]) -> Remap:
    """The table of a lens that keeps the centre's magnification of a pinhole with field `fovy_deg`.

    Output radius r shows the ray at ``lens_theta(r / f)``; the source pinhole shows it at radius f_source tan(theta).

    Raises:
        ConfigError: the picture is so wide that its corners look past the source.
    """
    source_w, source_h = source_size(width_px), source_size(height_px)
    rows, columns = np.mgrid[0:height_px, 0:width_px].astype(np.float64)
    x, y = columns - (width_px - 1) / 2.0, rows - (height_px - 1) / 2.0
    radius = np.hypot(x, y)
    focal, source_focal = focal_px(height_px, fovy_deg), focal_px(source_h, source_fovy_deg(fovy_deg))
    theta = lens_theta(radius / focal, coefficients)
    centre = radius < 1e-9
    scale = np.where(centre, source_focal / focal, source_focal * np.tan(theta) / np.where(centre, 1.0, radius))
    source_x, source_y = x * scale + (source_w - 1) / 2.0, y * scale + (source_h - 1) / 2.0
    outside = max(-source_x.min(), -source_y.min(), source_x.max() - source_w + 1, source_y.max() - source_h + 1)
    if theta.max() >= math.pi / 2 or outside > 0.5:
        raise ConfigError(
            f"a lens picture of {width_px} x {height_px} px looks past what is rendered for it",
            where="sim.look.lens",
            remedy="use pictures that are at most 4:3 wide, or sim.look.lens=none",
        )
    return Remap(bilinear_weights(source_y.ravel(), source_x.ravel(), (source_h, source_w)), (height_px, width_px))


def bilinear_weights(rows_N: np.ndarray, columns_N: np.ndarray, shape: tuple[int, int]) -> sparse.csr_array:
    """Sparse float32 [N, pixels] that samples a picture of `shape` at N places; places outside repeat the edge."""
    height, width = shape
    row0 = np.clip(np.floor(rows_N), 0, height - 2).astype(np.int32)
    column0 = np.clip(np.floor(columns_N), 0, width - 2).astype(np.int32)
    wr, wc = np.clip(rows_N - row0, 0.0, 1.0), np.clip(columns_N - column0, 0.0, 1.0)
    first = row0 * np.int32(width) + column0
    pixels_N4 = np.stack([first, first + 1, first + width, first + width + 1], axis=1).astype(np.int32)
    weights_N4 = np.stack([(1 - wr) * (1 - wc), (1 - wr) * wc, wr * (1 - wc), wr * wc], axis=1).astype(np.float32)
    row_starts = np.arange(0, 4 * len(rows_N) + 1, 4, dtype=np.int32)
    return sparse.csr_array((weights_N4.ravel(), pixels_N4.ravel(), row_starts), shape=(len(rows_N), height * width))


def grade(picture_HW3: np.ndarray, camera: str) -> np.ndarray:
    """Per-channel ``out = gain * in + bias`` with the documented numbers of a camera; not clipped."""
    gain, bias = (np.asarray(numbers, np.float32) for numbers in DOCUMENTED_GRADE[camera])
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
