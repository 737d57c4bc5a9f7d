"""The numbers that define the task: what is compared across runs must name one of these protocols.

In: a protocol id. Out: frozen constants (metres, degrees, seconds), the spawn of a seed, and their digest-ready form.

``sim100b`` is the documented sim100 task ("Pick up the toy boat and place it on the wooden disk.": spawn v1, disk,
success test, 40 g boat, 900 ticks) with these named deviations: control is exactly 30 Hz (8 steps of 1/240 s instead of
7 of 5 ms); the servo is the MuJoCo Menagerie one; the home pose keeps the jaws out of the spawn patch; the boat is made
of primitive shapes; one arm, no clutter, a fixed appearance, a closer top camera and no lens model.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.errors import ConfigError

TASK = "Pick up the toy boat and place it on the wooden disk."


@dataclass(frozen=True)
class Protocol:
    """Constants of one task definition; SI units unless the name says otherwise."""

    name: str
    substeps: int = 8
    timestep_s: float = 1.0 / 240.0
    home_deg: tuple[float, ...] = (0.0, -90.0, 50.0, 75.0, 0.0, 0.0)
    arm_settle_steps: int = 200
    boat_settle_steps: int = 30
    boat_mass_kg: float = 0.040
    boat_park_m: tuple[float, float, float] = (0.9, 0.1, 0.001)
    spawn_height_m: float = 0.001
    spawn_x_m: tuple[float, float] = (0.195, 0.27)
    spawn_y_m: tuple[float, float] = (-0.005, 0.04)
    disk_xy_m: tuple[float, float] = (0.22, 0.11)
    disk_radius_m: float = 0.040
    disk_top_m: float = 0.012
    top_camera_pos_m: tuple[float, float, float] = (0.50, 0.045, 0.40)
    top_camera_target_m: tuple[float, float, float] = (0.20, 0.05, 0.03)
    top_camera_fovy_deg: float = 30.0

    @property
    def tick_s(self) -> float:
        """Duration of one control tick in seconds."""
        return self.substeps * self.timestep_s

    def constants(self) -> dict[str, Any]:
        """Every constant, JSON-able: part of the scene's digest."""
        return dataclasses.asdict(self)


PROTOCOLS = {"sim100b": Protocol(name="sim100b")}


def protocol_named(name: str) -> Protocol:
    """Look a protocol up.

    Raises:
        ConfigError: no such protocol.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}", where="sim.protocol", remedy=f"one of: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


@dataclass(frozen=True)
class Spawn:
    """Initial pose of the boat on the table: metres and radians."""

    x_m: float
    y_m: float
    yaw_rad: float


def spawn_v1(seed: int, protocol: Protocol) -> Spawn:
    """Spawn v1: uniform x, y and yaw, drawn in this order from ``numpy.random.default_rng(seed)``."""
    rng = np.random.default_rng(seed)
    x_m = float(rng.uniform(*protocol.spawn_x_m))
    y_m = float(rng.uniform(*protocol.spawn_y_m))
    return Spawn(x_m, y_m, float(rng.uniform(-np.pi, np.pi)))
