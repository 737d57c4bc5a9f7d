"""Sampling one picture at places of another, as a sparse matrix that is made once and applied to every picture.

In: places in a source picture. Out: bilinear weights, and from them a lens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from vla_rl.errors import ConfigError
from vla_rl.sim.lens import focal_px, lens_theta, source_fovy_deg, source_size


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
