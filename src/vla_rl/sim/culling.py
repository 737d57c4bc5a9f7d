"""Leaves out of a renderer's scene what its camera cannot see; the picture stays the same, bit for bit.

In: a scene that has just been refilled from the model. Out: the same scene, in which shapes outside the camera's
viewing frustum are marked as nothing. A software rasteriser transforms every vertex it is given, and most of the arm is
behind the wrist camera. Only for scenes without shadow maps and reflections, in which a shape shows nowhere but in its
own place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_rl.sim.gl import MjData, MjModel, Renderer, mujoco

_GEOM, _NOTHING = int(mujoco.mjtObj.mjOBJ_GEOM), int(mujoco.mjtGeom.mjGEOM_NONE)


def hide_unseen(renderer: Renderer, model: MjModel, data: MjData) -> int:
    """Mark the shapes of `model` that are outside the picture.

    Args:
        renderer: after `update_scene`.
        model, data: what its scene was filled from.

    Returns:
        How many shapes were marked.
    """
    scene, aspect = renderer.scene, renderer.width / renderer.height
    outside_G = outside_frustum(scene.camera, data.geom_xpos, model.geom_rbound, aspect)
    hidden = 0
    for geom in scene.geoms[: scene.ngeom]:
        if geom.objtype == _GEOM and 0 <= geom.objid < model.ngeom and outside_G[geom.objid]:
            geom.type = _NOTHING
            hidden += 1
    return hidden


def outside_frustum(camera: Any, centre_G3: np.ndarray, radius_G: np.ndarray, aspect: float) -> np.ndarray:
    """bool [G]: which spheres do not touch the viewing frustum (some that do not are missed, at its edges).

    Args:
        camera: the scene's pair of eyes; a monoscopic picture is taken from between them.
        centre_G3, radius_G: metres; radius 0 means without bounds.
    """
    left_eye, right_eye = camera
    position, forward, up = (
        (getattr(left_eye, name).astype(np.float64) + getattr(right_eye, name)) / 2 for name in ("pos", "forward", "up")
    )
    near, far = left_eye.frustum_near, left_eye.frustum_far
    bottom, top, middle = left_eye.frustum_bottom, left_eye.frustum_top, left_eye.frustum_center
    half = left_eye.frustum_width or aspect * (top - bottom) / 2
    offset_G3 = centre_G3 - position
    x_G, y_G, z_G = offset_G3 @ np.cross(forward, up), offset_G3 @ up, offset_G3 @ forward
    beyond_G = np.maximum(near - z_G, z_G - far)
    for sideways_G, edge in ((x_G, middle + half), (-x_G, half - middle), (y_G, top), (-y_G, -bottom)):
        beyond_G = np.maximum(beyond_G, (sideways_G * near - edge * z_G) / np.hypot(near, edge))
    return (beyond_G > radius_G) & (radius_G > 0)
