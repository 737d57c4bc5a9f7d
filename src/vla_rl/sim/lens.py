"""Fields of view and focal lengths, and the formula of a lens.

In: degrees, pixels. Out: the same. A lens keeps the magnification that a pinhole of the camera's own field of view has
in the centre; it is made from a picture of a wider pinhole (`remap`).
"""

from __future__ import annotations

import math

import numpy as np

from vla_rl.sim import documented

# The source pinhole's half-height is wider by this factor, whatever the field of view: 52 degrees become 72.
WIDENING = math.tan(math.radians(documented.LENS_SOURCE_DEG) / 2) / math.tan(
    math.radians(documented.LENS_CENTRE_DEG) / 2
)


def focal_px(rows: int, fovy_deg: float) -> float:
    """Focal length in pixels of a pinhole with a vertical field of view: rows / 2 / tan(fovy / 2)."""
    return rows / 2.0 / math.tan(math.radians(fovy_deg) / 2.0)


def source_fovy_deg(fovy_deg: float) -> float:
    """Field of view of the pinhole picture from which a lens with centre field `fovy_deg` is made."""
    return 2.0 * math.degrees(math.atan(math.tan(math.radians(fovy_deg) / 2.0) * WIDENING))


def lens_fovy_deg(source_deg: float) -> float:
    """The inverse of `source_fovy_deg`."""
    return 2.0 * math.degrees(math.atan(math.tan(math.radians(source_deg) / 2.0) / WIDENING))


def source_size(size: int) -> int:
    """Rows (or columns) of the source picture, so that the centre of the lens is sampled about one to one."""
    return math.ceil(size * WIDENING)


def lens_theta(rho: np.ndarray, coefficients: tuple[float, float]) -> np.ndarray:
    """Angle off the axis in radians at radius ``rho`` = pixels / focal length."""
    k2, k4 = coefficients
    return rho * (1.0 + k2 * rho**2 + k4 * rho**4)
