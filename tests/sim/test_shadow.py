"""Pinhole geometry against MuJoCo's own pictures, and shadows against hand-computed feet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import ndimage

from vla_rl.sim import shadow
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.lens import focal_px
from vla_rl.sim.pinhole import Pinhole, Pose
from vla_rl.sim.scene import CAMERA_NAMES

# 0.6 m above the table, looking straight down; picture right is -y, picture up is +x.
OVERHEAD = Pose(np.array([0.0, 0.0, 0.6]), np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
EYE = Pinhole(101, 101, 200.0)
TABLE_M = (-1.0, 1.0, -1.0, 1.0)


def block(height_m: float, half_px: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Depth and mask of a square in the middle of the overhead picture, `height_m` above the table."""
    mask = np.zeros((101, 101), bool)
    mask[50 - half_px : 51 + half_px, 50 - half_px : 51 + half_px] = True
    return np.where(mask, 0.6 - height_m, 0.6), mask


def test_a_point_casts_its_shadow_along_the_documented_light() -> None:
    """From 0.1 m up the light travels 0.1 / 0.8660 of its direction: -x and +y."""
    foot = shadow.cast(np.array([[0.3, 0.1, 0.1]]))[0]
    np.testing.assert_allclose(foot, (0.3 - 0.02209, 0.1 + 0.05334, 0.0), atol=1e-5)


def test_the_shadow_lies_where_its_foot_is_seen() -> None:
    """Foot at x = -0.0221, y = +0.0533: right of the picture is -y, so 17.8 px left; up is +x, so 7.4 px down."""
    depth, mask = block(0.1)
    dark = shadow.contact_shadow(depth, mask, EYE, OVERHEAD, sigma_px=3.0, table_m=TABLE_M)
    rows, columns = np.mgrid[0:101, 0:101]
    assert (dark * columns).sum() / dark.sum() == pytest.approx(50 - 200 * 0.05334 / 0.6, abs=0.1)
    assert (dark * rows).sum() / dark.sum() == pytest.approx(50 + 200 * 0.02209 / 0.6, abs=0.1)
    assert 0.0 <= dark.min() and dark.max() <= 1.0


def test_the_edge_is_as_soft_as_stated_for_any_focal_length() -> None:
    depth, mask = block(0.1, half_px=0)
    dark = shadow.contact_shadow(depth, mask, EYE, OVERHEAD, sigma_px=12.0, table_m=TABLE_M)
    rows, _ = np.mgrid[0:101, 0:101]
    middle = (dark * rows).sum() / dark.sum()
    spread_px = np.sqrt((dark * (rows - middle) ** 2).sum() / dark.sum())
    assert spread_px == pytest.approx(12.0 * 200.0 / focal_px(480, 72.0), rel=0.08)


def test_what_rests_on_the_table_casts_nothing_and_no_shadow_leaves_the_table() -> None:
    depth, mask = block(0.002)
    assert not shadow.contact_shadow(depth, mask, EYE, OVERHEAD, sigma_px=3.0, table_m=TABLE_M).any()
    depth, mask = block(0.1)
    narrow = (-1.0, 1.0, -1.0, 0.02)  # the foot would be at y = 0.053
    assert not shadow.contact_shadow(depth, mask, EYE, OVERHEAD, sigma_px=3.0, table_m=narrow).any()


def test_an_empty_foreground_casts_nothing() -> None:
    depth = np.full((101, 101), 0.6)
    dark = shadow.contact_shadow(depth, depth < 0, EYE, OVERHEAD, sigma_px=3.0, table_m=TABLE_M)
    assert dark.shape == (101, 101) and not dark.any()


def test_splatting_loses_no_point_inside_the_picture() -> None:
    rng = np.random.default_rng(0)
    rows, columns = rng.uniform(-2, 12, 500), rng.uniform(-2, 9, 500)
    inside = (rows >= 0) & (rows <= 10) & (columns >= 0) & (columns <= 7)
    assert shadow.splat(rows, columns, (11, 8)).sum() == pytest.approx(inside.sum())
    assert shadow.splat(np.array([10.0]), np.array([7.0]), (11, 8))[10, 7] == 1.0


@pytest.mark.parametrize("camera", ["top", "wrist"])
def test_pixels_and_world_points_agree_with_mujocos_pictures(make_env: Callable[..., BoatToDisk], camera: str) -> None:
    env = make_env()
    env.reset(seed=326)
    scene, data = env.scene, env.data
    renderer = scene._renderer(112, 112)
    camera_id = scene.model.camera(CAMERA_NAMES[camera]).id
    pose = Pose(data.cam_xpos[camera_id], data.cam_xmat[camera_id].reshape(3, 3))
    eye = Pinhole(112, 112, focal_px(112, float(scene.model.cam_fovy[camera_id])))
    renderer.update_scene(data, CAMERA_NAMES[camera])
    renderer.enable_segmentation_rendering()
    ids = renderer.render()[..., 0]
    renderer.enable_depth_rendering()
    depth = renderer.render()
    renderer.disable_depth_rendering()
    rows, columns = np.nonzero(ids == scene.model.geom("table").id)
    points = eye.unproject(depth, rows, columns, pose)
    assert len(points) > 2000
    upper = points[:, 2] > -0.005  # the table's side faces are below
    assert upper.mean() > 0.9
    np.testing.assert_allclose(points[upper, 2], 0.0, atol=1e-3)
    back_rows, back_columns, back_depth = eye.project(points, pose)
    np.testing.assert_allclose(back_rows, rows, atol=1e-6)
    np.testing.assert_allclose(back_columns, columns, atol=1e-6)
    np.testing.assert_allclose(back_depth, depth[rows, columns], atol=1e-6)


def test_a_wide_blur_on_a_coarser_grid_is_the_blur() -> None:
    rng = np.random.default_rng(0)
    occupied = (rng.random((203, 170)) < 0.01).astype(float)
    occupied[60:100, 40:90] = 1.0
    for sigma_px in (3.0, 13.0, 28.0):
        exact = ndimage.gaussian_filter(occupied, sigma_px, mode="nearest", truncate=4.0)
        np.testing.assert_allclose(shadow.soften(occupied, sigma_px), exact, atol=0.02)
