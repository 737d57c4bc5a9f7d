"""Puts cameras and the wrist-camera bracket where a look wants them, before the model is compiled.

In: a model specification that holds the cameras ``top`` and ``wrist_cam``, and a look. Out: the same specification,
edited. The bracket is turned as a body in the specification, so the compiler sees the edit: turning its geoms in a
compiled model moves the collision boxes but leaves the visible mesh where it was, because the compiler has marked the
mesh as sharing the body's inertial frame. Its inertia moves along, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vla_rl.sim import documented, lens
from vla_rl.sim.gl import MjSpec, mujoco

if TYPE_CHECKING:
    from vla_rl.sim.look import Look

MOUNT, WRIST_CAMERA = "camera_mount", "wrist_cam"
HALF_TURN_X = (0.0, 1.0, 0.0, 0.0)


def arrange(spec: MjSpec, look: Look) -> None:
    """Apply a look's cameras, bracket and, for a lens, the wider field of view that it is rendered with."""
    if look.mount == "flipped":
        _flip_mounts(spec)
    if look.cameras == "documented":
        _place_documented(spec)
    if look.lens != "none":
        for camera in spec.cameras:
            camera.fovy = lens.source_fovy_deg(camera.fovy)


def _flip_mounts(spec: MjSpec) -> None:
    """Turn each bracket by 180 degrees about its own x; the camera stays where it was."""
    for body in [b for b in spec.bodies if b.name.endswith(MOUNT)]:
        for camera in list(body.cameras):
            # Upstream gives the bracket its parent's frame, so the camera keeps its numbers when it moves up.
            moved = body.parent.add_camera(pos=camera.pos, quat=camera.quat, fovy=camera.fovy)
            moved.alt.type, moved.alt.euler = camera.alt.type, camera.alt.euler
            name = camera.name
            spec.delete(camera)
            moved.name = name
        body.quat = HALF_TURN_X


def _place_documented(spec: MjSpec) -> None:
    pitch = math.radians(documented.CAMERAS["top_pitch_deg"])
    for camera in spec.cameras:
        camera.fovy = documented.CAMERAS["fovy_deg"]
        if camera.name.endswith(WRIST_CAMERA):
            camera.pos, camera.quat = documented.CAMERAS["wrist_pos_m"], documented.CAMERAS["wrist_quat"]
            camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT  # not upstream's Euler angles
        else:
            # Picture right is -y, picture up is +x leaning into the sky.
            camera.pos = documented.CAMERAS["top_pos_m"]
            camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
            camera.alt.xyaxes = (0.0, -1.0, 0.0, math.cos(pitch), 0.0, math.sin(pitch))
