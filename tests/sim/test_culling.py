"""Shapes outside the picture are left out, and no pixel changes."""

from __future__ import annotations

import numpy as np
import pytest

from vla_rl.sim import scene as scene_module
from vla_rl.sim.culling import outside_frustum
from vla_rl.sim.gl import mujoco


@pytest.mark.parametrize(("width_px", "height_px"), [(96, 96), (160, 64), (64, 160)])
def test_no_pixel_changes_wherever_arm_and_boat_are(
    make_env, monkeypatch: pytest.MonkeyPatch, width_px: int, height_px: int
) -> None:
    env = make_env()
    model, data, rng, hidden = env.scene.model, env.data, np.random.default_rng(0), []
    env.begin(300)

    def pictures() -> list[np.ndarray]:
        return [env.get_frame(camera, width_px, height_px).copy() for camera in ("top", "wrist")]

    def counted(*args) -> int:
        hidden.append(hide_unseen(*args))
        return hidden[-1]

    hide_unseen = scene_module.hide_unseen
    for _ in range(12):
        data.qpos[:6] = rng.uniform(model.jnt_range[:6, 0], model.jnt_range[:6, 1])
        data.qpos[env.scene.boat_qpos :][:3] = rng.uniform((0.1, -0.1, 0.0), (0.4, 0.2, 0.2))
        mujoco.mj_forward(model, data)
        monkeypatch.setattr(scene_module, "hide_unseen", counted)
        drawn = pictures()
        monkeypatch.setattr(scene_module, "hide_unseen", lambda *args: 0)
        assert all(map(np.array_equal, drawn, pictures()))
    assert len(hidden) == 24 and np.mean(hidden) > 5  # of 26 that could be drawn


def test_a_sphere_is_outside_exactly_when_it_is_beyond_a_side_of_the_frustum() -> None:
    class Eye:
        pos, forward, up = np.zeros(3, np.float32), np.float32([0, 0, -1]), np.float32([0, 1, 0])
        frustum_near, frustum_far, frustum_center, frustum_width = 1.0, 10.0, 0.0, 0.0
        frustum_bottom, frustum_top = -1.0, 1.0  # 45 degrees up and down; twice as wide

    r = 1 / np.sqrt(2)  # a sphere of this radius at one unit beside the 45 degree plane just touches it
    centres = np.array(
        [[0, 0, -5], [0, 6, -5], [0, 6, -5], [0, -6, -5], [9, 0, -5], [12, 0, -5], [0, 0, 1], [0, 0, -12]]
    )
    radii = np.array([0.1, r - 0.01, r + 0.01, r - 0.01, 0.1, 0.1, 1.9, 1.9])
    outside = outside_frustum((Eye, Eye), centres, radii, aspect=2.0)
    assert outside.tolist() == [False, True, False, True, False, True, True, True]
    assert not outside_frustum((Eye, Eye), centres, np.zeros(8), aspect=2.0).any()  # a plane has no bounds
