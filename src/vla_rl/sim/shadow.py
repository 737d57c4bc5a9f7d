"""A soft contact shadow on the table, computed from what the camera sees.

In: a depth picture, the foreground's mask, the camera. Out: a map in [0, 1] of how much of the light the foreground
takes from each pixel of the table plane. Each visible foreground point is slid along the light onto the table, put back
into the picture and blurred. Left out: sides that the camera does not see cast nothing, and shadows fall on the table
only, never on robot, boat or disk.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from vla_rl.sim import documented
from vla_rl.sim.lens import focal_px
from vla_rl.sim.pinhole import Pinhole, Pose

COARSE_SIGMA_PX = 6.0
# The documented edge is quoted in pixels of the lens source: 480 rows, fovy 72 degrees.
REFERENCE_FOCAL_PX = focal_px(documented.REFERENCE_ROWS, documented.LENS_SOURCE_DEG)


def cast(points_N3: np.ndarray, light: tuple[float, float, float] = documented.SHADOW_LIGHT) -> np.ndarray:
    """Where the shadows of world points fall on the plane z = 0, float64 [N, 3] metres."""
    direction = np.asarray(light)
    return points_N3 - points_N3[:, 2:] / direction[2] * direction


def splat(rows_N: np.ndarray, columns_N: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Bilinear count of points per pixel, float64 `shape`; points outside the picture are dropped."""
    height, width = shape
    inside = (rows_N >= 0) & (rows_N <= height - 1) & (columns_N >= 0) & (columns_N <= width - 1)
    rows, columns = rows_N[inside], columns_N[inside]
    row0 = np.minimum(rows.astype(np.int64), height - 2)
    column0 = np.minimum(columns.astype(np.int64), width - 2)
    wr, wc = rows - row0, columns - column0
    out = np.zeros(height * width)
    for dr, dc, weight in ((0, 0, (1 - wr) * (1 - wc)), (0, 1, (1 - wr) * wc), (1, 0, wr * (1 - wc)), (1, 1, wr * wc)):
        out += np.bincount((row0 + dr) * width + column0 + dc, weights=weight, minlength=out.size)
    return out.reshape(shape)


def contact_shadow(
    depth_HW: np.ndarray,
    foreground_HW: np.ndarray,
    camera: Pinhole,
    pose: Pose,
    *,
    sigma_px: float,
    table_m: tuple[float, float, float, float],
) -> np.ndarray:
    """The shadow map of one picture, float32 [height, width] in [0, 1].

    Args:
        depth_HW: metres along the view axis.
        foreground_HW: bool.
        sigma_px: blur of the edge in pixels of a picture with the documented focal length (`REFERENCE_FOCAL_PX`);
            scaled to this camera, so that the edge has the same angle whatever size and field the picture has.
        table_m: x min, x max, y min, y max of the table; a shadow beyond it would fall on the floor.
    """
    rows, columns = np.nonzero(foreground_HW)
    points_N3 = camera.unproject(depth_HW, rows, columns, pose)
    feet_N3 = cast(points_N3[points_N3[:, 2] > documented.SHADOW_MIN_HEIGHT_M])
    x_min, x_max, y_min, y_max = table_m
    x, y = feet_N3[:, 0], feet_N3[:, 1]
    feet_N3 = feet_N3[(x >= x_min) & (x <= x_max) & (y >= y_min) & (y <= y_max)]
    row, column, depth = camera.project(feet_N3, pose)
    seen = depth > 1e-6
    occupied = np.minimum(splat(row[seen], column[seen], depth_HW.shape), 1.0)
    return soften(occupied, sigma_px * camera.focal_px / REFERENCE_FOCAL_PX)


def soften(map_HW: np.ndarray, sigma_px: float) -> np.ndarray:
    """Gaussian blur, float32; a wide one is done on a coarser grid, which its result does not resolve anyway."""
    step = max(1, int(sigma_px / COARSE_SIGMA_PX))
    height, width = map_HW.shape
    rows, columns = -(-height // step), -(-width // step)
    padded = np.pad(map_HW, ((0, rows * step - height), (0, columns * step - width)), mode="edge")
    coarse = padded.reshape(rows, step, columns, step).mean(axis=(1, 3))
    soft = ndimage.gaussian_filter(coarse, sigma_px / step, mode="nearest", truncate=2.5)
    if step > 1:
        soft = ndimage.zoom(soft, step, order=1, mode="nearest", grid_mode=True)[:height, :width]
    return np.asarray(soft, np.float32)
