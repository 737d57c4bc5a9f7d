"""A pinhole camera between pixels and the world, in MuJoCo's convention.

In: picture size and focal length, and the camera's world pose (columns of the matrix: picture right, picture up, away
from the view). Out: rays, world points of a planar depth picture, and pixels of world points. No lens: see `optics`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Pinhole:
    """Square pixels, principal point in the middle of the picture.

    Attributes:
        width_px, height_px: picture size.
        focal_px: focal length.
    """

    width_px: int
    height_px: int
    focal_px: float

    def directions(self, rows_N: np.ndarray, columns_N: np.ndarray) -> np.ndarray:
        """float64 [N, 3], camera frame, scaled so that the depth component is -1."""
        x = (columns_N - (self.width_px - 1) / 2.0) / self.focal_px
        y = (rows_N - (self.height_px - 1) / 2.0) / self.focal_px
        return np.stack([x, -y, -np.ones_like(x)], axis=-1)

    def unproject(self, depth_HW: np.ndarray, rows_N: np.ndarray, columns_N: np.ndarray, pose: Pose) -> np.ndarray:
        """World points [N, 3] in metres of some pixels of a depth picture (metres along the view axis)."""
        local_N3 = self.directions(rows_N, columns_N) * depth_HW[rows_N, columns_N, None]
        return pose.position_m + local_N3 @ pose.axes_33.T

    def project(self, points_N3: np.ndarray, pose: Pose) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, column, depth in metres) of world points; depth <= 0 is behind the camera and its pixel is void."""
        local_N3 = (points_N3 - pose.position_m) @ pose.axes_33
        depth = -local_N3[:, 2]
        safe = np.where(depth > 1e-6, depth, 1.0)
        column = (self.width_px - 1) / 2.0 + self.focal_px * local_N3[:, 0] / safe
        row = (self.height_px - 1) / 2.0 - self.focal_px * local_N3[:, 1] / safe
        return row, column, depth


@dataclass(frozen=True)
class Pose:
    """Where a camera is: position_m [3] and axes_33, whose columns are its right, up and backward axes in the world."""

    position_m: np.ndarray
    axes_33: np.ndarray
