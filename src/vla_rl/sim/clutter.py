"""The things that lie about on the table: which, where, how often, and their stand-in shapes.

In: a camera set and a random stream, or a renderer's scene. Out: what is there in an episode, and geoms added to that
scene alone. Clutter is only seen: it is no part of the model, so physics cannot touch it and nothing is left behind
for the next picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.sim.gl import mujoco


@dataclass(frozen=True)
class Thing:
    """A kind of clutter and its stand-in.

    Attributes:
        name: what it is; also names its cut-out.
        shape: ``ellipsoid``, ``cylinder`` or ``box``.
        half_m: half extents along the thing's own x, y and z (a cylinder: radius, radius, half height).
        rgb: colour in [0, 1].
    """

    name: str
    shape: str
    half_m: tuple[float, float, float]
    rgb: tuple[float, float, float]


@dataclass(frozen=True)
class Place:
    """How often and where a thing lies.

    Attributes:
        presence: probability that it is there.
        x_m, y_m: ranges of its centre, uniform.
        yaw_rad: middle of its yaw.
        yaw_jitter_rad: the yaw is uniform within this of the middle.
    """

    presence: float
    x_m: tuple[float, float]
    y_m: tuple[float, float]
    yaw_rad: float
    yaw_jitter_rad: float


@dataclass(frozen=True)
class Placed:
    """A thing in an episode: index into `THINGS`, centre on the table in metres, yaw in radians."""

    thing: int
    x_m: float
    y_m: float
    yaw_rad: float


# Mouse and mug as documented; laptop and circuit board are ours.
THINGS = (
    Thing("mouse", "ellipsoid", (0.032, 0.055, 0.020), (0.35, 0.36, 0.38)),
    Thing("mug", "cylinder", (0.042, 0.042, 0.045), (0.92, 0.91, 0.88)),
    Thing("laptop", "box", (0.110, 0.155, 0.009), (0.22, 0.23, 0.25)),
    Thing("pcb", "box", (0.013, 0.020, 0.001), (0.08, 0.33, 0.16)),
)
_PRESENCE = {"mouse": 0.269, "mug": 0.154, "laptop": 0.769, "pcb": 1.0}
# Documented places lie in the documented top camera's picture. The close camera sees only the middle of the table, so
# there the same things with the same presence lie beside the arm's base and at the near right edge.
PLACES = {
    "documented": {
        "mouse": Place(_PRESENCE["mouse"], (0.4846, 0.5554), (-0.2329, -0.0746), 0.4, 0.3),
        "mug": Place(_PRESENCE["mug"], (0.4444, 0.5458), (-0.0140, 0.1142), 0.0, 0.0),
        "laptop": Place(_PRESENCE["laptop"], (-0.0012, 0.1049), (-0.5015, -0.4358), 0.0, 0.15),
        "pcb": Place(_PRESENCE["pcb"], (0.1449, 0.1449), (-0.0121, -0.0121), 0.0, 0.0),
    },
    "close": {
        "mouse": Place(_PRESENCE["mouse"], (0.05, 0.09), (0.12, 0.16), 0.4, 0.3),
        "mug": Place(_PRESENCE["mug"], (0.04, 0.08), (-0.10, -0.08), 0.0, 0.0),
        "laptop": Place(_PRESENCE["laptop"], (0.30, 0.36), (-0.22, -0.20), 0.0, 0.15),
        "pcb": Place(_PRESENCE["pcb"], (0.1449, 0.1449), (-0.0121, -0.0121), 0.0, 0.0),
    },
}


def place_things(rng: np.random.Generator, cameras: str) -> tuple[Placed, ...]:
    """What lies where in one episode; every thing takes its four draws, whether it is there or not."""
    placed = []
    for index, thing in enumerate(THINGS):
        place = PLACES[cameras][thing.name]
        is_there = rng.random() < place.presence
        x_m, y_m = float(rng.uniform(*place.x_m)), float(rng.uniform(*place.y_m))
        yaw_rad = place.yaw_rad + float(rng.uniform(-place.yaw_jitter_rad, place.yaw_jitter_rad))
        if is_there:
            placed.append(Placed(index, x_m, y_m, yaw_rad))
    return tuple(placed)


def add_standins(scene: Any, placed: Sequence[Placed], first_id: int) -> None:
    """Append the shapes of `placed` to a renderer's scene, after `update_scene`, which will remove them again.

    Args:
        scene: the renderer's `MjvScene`.
        first_id: object id for `THINGS[0]` in segmentation pictures; the model's own ids lie below it.
    """
    shapes = {
        "ellipsoid": mujoco.mjtGeom.mjGEOM_ELLIPSOID,
        "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
        "box": mujoco.mjtGeom.mjGEOM_BOX,
    }
    for item in placed:
        thing = THINGS[item.thing]
        cos, sin = np.cos(item.yaw_rad), np.sin(item.yaw_rad)
        geom = scene.geoms[scene.ngeom]
        mujoco.mjv_initGeom(
            geom,
            type=shapes[thing.shape],
            size=np.array(thing.half_m),
            pos=np.array([item.x_m, item.y_m, thing.half_m[2]]),
            mat=np.array([cos, -sin, 0.0, sin, cos, 0.0, 0.0, 0.0, 1.0]),
            rgba=np.array([*thing.rgb, 1.0], np.float32),
        )
        geom.objtype, geom.objid, geom.segid = mujoco.mjtObj.mjOBJ_GEOM, first_id + item.thing, scene.ngeom
        scene.ngeom += 1
