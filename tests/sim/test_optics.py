"""Lens, grade, blur, noise: hand-computed numbers and statistics."""

from __future__ import annotations

import numpy as np
import pytest

from vla_rl.errors import ConfigError
from vla_rl.sim import documented, lens, optics
from vla_rl.sim.remap import lens_remap


def test_the_documented_focal_length_and_source_field_come_out() -> None:
    assert lens.focal_px(480, 52.0) == pytest.approx(492.07, abs=0.01)
    assert lens.source_fovy_deg(52.0) == pytest.approx(72.0, abs=1e-9)
    assert lens.lens_fovy_deg(lens.source_fovy_deg(30.0)) == pytest.approx(30.0)


def angle_field(width_px: int, height_px: int, fovy_deg: float) -> np.ndarray:
    """A source picture whose channels are each pixel's angle off the axis and its direction in the picture (x, y)."""
    width, height = lens.source_size(width_px), lens.source_size(height_px)
    rows, columns = np.mgrid[0:height, 0:width]
    x, y = columns - (width - 1) / 2, rows - (height - 1) / 2
    focal = lens.focal_px(height, lens.source_fovy_deg(fovy_deg))
    return np.stack([np.arctan(np.hypot(x, y) / focal), x, y], axis=2).astype(np.float32)


@pytest.mark.parametrize(
    ("coefficients", "rho", "theta"),
    [(documented.EQUIDISTANT, 0.5, 0.5), (documented.FITTED_WRIST, 0.5, 0.5 * (1 + 0.10135 * 0.25 - 0.03567 * 0.0625))],
)
def test_a_lens_shows_at_a_radius_the_ray_that_its_formula_says(coefficients, rho, theta) -> None:
    """Equidistant: r = f theta. A pinhole would show atan(0.5) = 0.4636 there."""
    remap = lens_remap(641, 481, 52.0, coefficients)
    seen = remap(angle_field(641, 481, 52.0))
    radius = rho * lens.focal_px(481, 52.0)
    for direction in (0.0, 0.9, 2.2, 4.0):
        row, column = 240 + radius * np.sin(direction), 320 + radius * np.cos(direction)
        r0, c0 = int(row), int(column)
        nearby = seen[r0 : r0 + 2, c0 : c0 + 2]
        wr, wc = row - r0, column - c0
        weights = np.array([[(1 - wr) * (1 - wc), (1 - wr) * wc], [wr * (1 - wc), wr * wc]])
        angle, x, y = (weights[..., None] * nearby).sum(axis=(0, 1))
        assert angle == pytest.approx(theta, abs=2e-4)
        assert np.arctan2(y, x) % (2 * np.pi) == pytest.approx(direction, abs=2e-3)


def test_a_lens_leaves_the_centre_where_it_is_and_as_large_as_it_is() -> None:
    remap = lens_remap(113, 113, 52.0, documented.EQUIDISTANT)
    seen = remap(angle_field(113, 113, 52.0))
    np.testing.assert_allclose(seen[56, 56], 0.0, atol=1e-6)
    focal = lens.focal_px(113, 52.0)  # one pixel off the centre: magnification of the pinhole, to second order
    assert seen[56, 57, 0] == pytest.approx(1 / focal, rel=1e-3)
    assert seen[57, 56, 2] == pytest.approx(1.0, abs=0.01) and seen[57, 56, 1] == pytest.approx(0.0, abs=1e-6)


def test_a_lens_keeps_an_even_picture_even() -> None:
    picture = np.full((lens.source_size(48), lens.source_size(64), 3), 77.0, np.float32)
    np.testing.assert_allclose(lens_remap(64, 48, 52.0, documented.FITTED_WRIST)(picture), 77.0, rtol=1e-6)


def test_a_picture_that_is_too_wide_for_the_lens_is_refused() -> None:
    lens_remap(640, 480, 52.0, documented.FITTED_WRIST)
    with pytest.raises(ConfigError, match="looks past"):
        lens_remap(1280, 480, 52.0, documented.EQUIDISTANT)


def test_the_grade_is_the_documented_affine_map_per_channel() -> None:
    grey = np.full((1, 1, 3), 100.0, np.float32)
    np.testing.assert_allclose(optics.grade(grey, "top")[0, 0], (112.10, 112.36, 118.33), atol=1e-3)
    np.testing.assert_allclose(optics.grade(grey, "wrist")[0, 0], (132.20, 131.24, 133.57), atol=1e-3)


def test_blur_keeps_light_spreads_it_by_sigma_and_keeps_channels_apart() -> None:
    picture = np.zeros((41, 41, 3), np.float32)
    picture[20, 20, 1] = 1000.0
    out = optics.blur(picture, 2.0)
    assert out[..., 1].sum() == pytest.approx(1000.0, rel=1e-5)
    assert not out[..., 0].any() and not out[..., 2].any()
    rows, columns = np.mgrid[0:41, 0:41] - 20
    for axis in (rows, columns):
        assert (out[..., 1] * axis**2).sum() / 1000.0 == pytest.approx(4.0, rel=0.03)
    np.testing.assert_allclose(optics.blur(np.full((9, 9, 3), 50.0, np.float32), 1.5), 50.0, rtol=1e-6)


def test_a_blur_too_small_to_see_changes_nothing() -> None:
    picture = np.random.default_rng(0).uniform(0, 255, (16, 16, 3)).astype(np.float32)
    assert optics.blur(picture, 0.7 * 112 / 480) is picture
    assert optics.blur(picture, 0.7) is not picture


def test_noise_has_the_stated_spread_and_is_drawn_anew_for_each_seed_tick_and_camera() -> None:
    def draw(seed: int, tick: int, camera: str) -> np.ndarray:
        return optics.noise((100, 100, 3), 2.0, seed=seed, tick=tick, camera=camera)

    first = draw(300, 0, "top")
    assert first.mean() == pytest.approx(0.0, abs=0.05) and first.std() == pytest.approx(2.0, rel=0.02)
    np.testing.assert_array_equal(first, draw(300, 0, "top"))
    for other in (draw(301, 0, "top"), draw(300, 1, "top"), draw(300, 0, "wrist")):
        assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.03


def test_counts_are_rounded_and_clipped() -> None:
    out = optics.to_counts(np.array([-3.0, 0.4, 0.6, 254.7, 300.0]))
    assert out.dtype == np.uint8 and out.tolist() == [0, 0, 1, 255, 255]
