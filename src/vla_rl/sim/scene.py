"""Builds the world: the Menagerie SO-101, a table, a toy boat of primitive shapes and a wooden disk.

In: a protocol. Out: a `Scene`: the compiled model, the indices that others need, a settled start state, contact codes
and pictures. One `Scene` (and one renderer a picture size) serves every environment of a process; an environment owns
only its `MjData`.

The contact settings are the ones that hold a boat: elliptic friction cone with impratio 10 (a pyramidal cone always
loses it), no noslip pass, vertical faces to grip.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vla_rl.sim import assets, cameras, lens
from vla_rl.sim.frames import to_radians
from vla_rl.sim.gl import MjData, MjModel, MjSpec, Renderer, mujoco, new_renderer, switch_effects_off
from vla_rl.sim.look import PLAIN, Look
from vla_rl.sim.protocol import Protocol, protocol_named
from vla_rl.sim.robot import robot_spec
from vla_rl.sim.spawn import mask_digest

if TYPE_CHECKING:
    from vla_rl.sim.painter import Painter

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
CAMERA_NAMES = {"top": "top", "wrist": "wrist_cam"}
# Bodies that count as one side of a pinch: the fixed jaw with its whole housing, and the moving jaw.
FIXED_SIDE, MOVING_SIDE = ("gripper", "camera_mount"), ("moving_jaw_so101_v1",)
FIXED_BIT, MOVING_BIT, BOAT_CODE = 1, 2, 4

# Boat parts in the frame of the keel centre, bow along +x: name, shape, half sizes (m), position (m), share of the
# mass, colour. The bow is a square prism turned by 45 degrees. All sides are vertical: flared ones tip the boat at
# release.
BOAT_PARTS = (
    ("hull", "box", (0.0210, 0.0145, 0.0090), (-0.0090, 0.0, 0.0090), 0.55, (0.80, 0.12, 0.10, 1.0)),
    ("bow", "bow", (0.01025, 0.01025, 0.0090), (0.0135, 0.0, 0.0090), 0.20, (0.80, 0.12, 0.10, 1.0)),
    ("cabin", "box", (0.0100, 0.0095, 0.0100), (-0.0060, 0.0, 0.0280), 0.15, (0.95, 0.95, 0.92, 1.0)),
    ("roof", "box", (0.0090, 0.0085, 0.0015), (-0.0060, 0.0, 0.0395), 0.05, (0.10, 0.22, 0.60, 1.0)),
    ("chimney", "cylinder", (0.0035, 0.0045, 0.0), (-0.0100, 0.0, 0.0455), 0.05, (0.10, 0.10, 0.12, 1.0)),
)
BOAT_CONTACT = {"condim": 6, "friction": (1.0, 0.02, 0.001), "solref": (0.01, 1.0)}
TABLE_COLOUR, DISK_COLOUR, FLOOR_COLOUR = (0.60, 0.63, 0.66, 1.0), (0.50, 0.30, 0.14, 1.0), (0.25, 0.25, 0.27, 1.0)
LIGHT = {"pos": (0.4, 0.4, 1.2), "dir": (-0.2, -0.35, -1.0), "diffuse": (0.6, 0.6, 0.6), "headlight": 0.4}
MAX_PICTURE_PX = 1024
SOLVER = {"impratio": 10.0, "iterations": 10, "ls_iterations": 20}


def _add_boat(spec: MjSpec, protocol: Protocol) -> None:
    boat = spec.worldbody.add_body(name="boat", pos=protocol.boat_park_m)
    boat.add_freejoint(name="boat")
    shapes = {
        "box": mujoco.mjtGeom.mjGEOM_BOX,
        "bow": mujoco.mjtGeom.mjGEOM_BOX,
        "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    }
    for name, shape, size_m, pos_m, mass_share, rgba in BOAT_PARTS:
        yaw = np.pi / 4 if shape == "bow" else 0.0
        boat.add_geom(
            name=f"boat_{name}",
            type=shapes[shape],
            size=size_m,
            pos=pos_m,
            quat=(np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)),
            mass=mass_share * protocol.boat_mass_kg,
            rgba=rgba,
            **BOAT_CONTACT,
        )


def _add_furniture(spec: MjSpec, protocol: Protocol) -> None:
    world, geom = spec.worldbody, mujoco.mjtGeom
    world.add_light(
        name="key",
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        pos=LIGHT["pos"],
        dir=LIGHT["dir"],
        diffuse=LIGHT["diffuse"],
        specular=(0.0, 0.0, 0.0),
        castshadow=False,
    )
    world.add_geom(
        name="table",
        type=geom.mjGEOM_BOX,
        size=(1.2, 0.5, 0.02),
        pos=(1.144, -0.22, -0.02),
        rgba=TABLE_COLOUR,
        friction=(1.0, 0.005, 0.0001),
    )
    world.add_geom(name="floor", type=geom.mjGEOM_PLANE, size=(5.0, 5.0, 0.1), pos=(0.0, 0.0, -0.8), rgba=FLOOR_COLOUR)
    half_m = protocol.disk_top_m / 2
    # Spawn v1: part of the world. Spawn v2: each episode has its own place for it, so each `MjData` must.
    fixed = protocol.spawn == "v1"
    holder = world if fixed else world.add_body(name="disk", mocap=True)
    holder.add_geom(
        name="disk",
        type=geom.mjGEOM_CYLINDER,
        size=(protocol.disk_radius_m, half_m, 0.0),
        pos=(*(protocol.disk_xy_m if fixed else (0.0, 0.0)), half_m),
        rgba=DISK_COLOUR,
    )


def _add_top_camera(spec: MjSpec, protocol: Protocol) -> None:
    """A camera that looks from `top_camera_pos_m` at `top_camera_target_m` with the world's z up in the picture."""
    position = np.array(protocol.top_camera_pos_m)
    back = position - np.array(protocol.top_camera_target_m)
    back /= np.linalg.norm(back)
    right = np.cross((0.0, 0.0, 1.0), back)
    right /= np.linalg.norm(right)
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, np.stack([right, np.cross(back, right), back], axis=1).ravel())
    spec.worldbody.add_camera(name="top", pos=position, quat=quat, fovy=protocol.top_camera_fovy_deg)


def build_model(protocol: Protocol, look: Look) -> MjModel:
    """Compile the world of `protocol` with the cameras and bracket of `look`.

    Raises:
        MachineError: the robot model is not installed.
    """
    spec = robot_spec(protocol)
    _add_furniture(spec, protocol)
    _add_boat(spec, protocol)
    _add_top_camera(spec, protocol)
    cameras.arrange(spec, look)
    option, visual = spec.option, spec.visual
    option.timestep = protocol.timestep_s
    option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.impratio, option.iterations, option.ls_iterations = (
        SOLVER["impratio"],
        SOLVER["iterations"],
        SOLVER["ls_iterations"],
    )
    visual.quality.offsamples, visual.quality.shadowsize = 0, 0
    visual.headlight.ambient = visual.headlight.diffuse = [LIGHT["headlight"]] * 3
    visual.headlight.specular = [0.0] * 3
    spec.stat.extent, visual.map.znear, visual.map.zfar = 1.0, 0.01, 20.0
    source_px = MAX_PICTURE_PX if look.lens == "none" else lens.source_size(MAX_PICTURE_PX)
    visual.global_.offwidth = visual.global_.offheight = source_px
    return spec.compile()


@dataclass(frozen=True)
class Scene:
    """A compiled world and what is known about it. Shared within a process; holds no episode.

    Attributes:
        look: its appearance.
        model: the MuJoCo model.
        painter: makes the pictures of a look that is more than cameras; None: they come straight from the renderer.
        boat_qpos, boat_qvel: first index of the boat's 7 positions and 6 velocities.
        boat_body: body id of the boat.
        ctrl_low_rad, ctrl_high_rad: float64 [6], range of the servo targets.
        contact_code_G: int [geom], BOAT_CODE, FIXED_BIT, MOVING_BIT or 0.
        body_of_geom_G: int [geom], body id (0 is the world, which a disk that can be moved belongs to as well).
    """

    protocol: Protocol
    look: Look
    model: MjModel
    painter: Painter | None
    boat_qpos: int
    boat_qvel: int
    boat_body: int
    ctrl_low_rad: np.ndarray
    ctrl_high_rad: np.ndarray
    contact_code_G: np.ndarray
    body_of_geom_G: np.ndarray
    _renderers: dict[tuple[int, int], Renderer] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def settled_state(self) -> np.ndarray:
        """Integration state with the arm at rest at home and the boat parked, where the disk is part of the world."""
        data = mujoco.MjData(self.model)
        self._settle(data, to_radians(np.array(self.protocol.home_deg)))
        return self.integration_state(data)

    def _settle(self, data: MjData, target_rad: np.ndarray) -> None:
        """Bring the arm to a target: from the target itself, or from where the protocol says."""
        start_deg = self.protocol.settle_from_deg
        data.qpos[:6] = target_rad if start_deg is None else to_radians(np.array(start_deg))
        data.qvel[:6], data.ctrl[:6] = 0.0, target_rad
        mujoco.mj_step(self.model, data, self.protocol.arm_settle_steps)
        data.time = 0.0

    def integration_state(self, data: MjData) -> np.ndarray:
        """All that the next physics step depends on; float64 [n]."""
        state = np.empty(mujoco.mj_stateSize(self.model, INTEGRATION))
        mujoco.mj_getState(self.model, data, state, INTEGRATION)
        return state

    def park(self, data: MjData, disk_xy_m: tuple[float, float], arm_deg: np.ndarray | None) -> None:
        """The state before the boat is placed: disk at its place, boat parked, arm settled at home or at `arm_deg`."""
        mujoco.mj_resetData(self.model, data)
        arm_rad = None if arm_deg is None else np.clip(to_radians(arm_deg), self.ctrl_low_rad, self.ctrl_high_rad)
        if self.disk_is_fixed:
            mujoco.mj_setState(self.model, data, self.settled_state, INTEGRATION)
        else:  # parked jaws may rest on the disk
            data.mocap_pos[0] = (*disk_xy_m, 0.0)
            self._settle(data, to_radians(np.array(self.protocol.home_deg)))
        if arm_rad is None:
            return
        if self.protocol.settle_from_deg is None:
            data.qpos[:6] = data.ctrl[:6] = arm_rad
            data.qvel[:6] = 0.0
        else:
            self._settle(data, arm_rad)

    @property
    def disk_is_fixed(self) -> bool:
        """Whether the disk is part of the world; otherwise each `MjData` says where it is."""
        return self.model.nmocap == 0

    def disk_xy_m(self, data: MjData) -> tuple[float, float]:
        """Centre of the disk on the table, in metres."""
        if self.disk_is_fixed:
            return self.protocol.disk_xy_m
        x_m, y_m, _ = data.mocap_pos[0].tolist()
        return x_m, y_m

    def grip_code(self, data: MjData) -> int:
        """1: the boat touches the fixed jaw or its housing; 2: the moving jaw; 3: both; 0: neither."""
        if data.ncon == 0:
            return 0
        code_C2 = self.contact_code_G[data.contact.geom]
        pair_C = code_C2[:, 0] + code_C2[:, 1]
        touching_C = pair_C[data.contact.dist <= 0.0]
        return FIXED_BIT * bool((touching_C == BOAT_CODE + FIXED_BIT).any()) + MOVING_BIT * bool(
            (touching_C == BOAT_CODE + MOVING_BIT).any()
        )

    def boat_strikes(self, data: MjData) -> int:
        """Number of contact points between the boat and any body that is not part of the world."""
        if data.ncon == 0:
            return 0
        bodies_C2 = self.body_of_geom_G[data.contact.geom]
        return int((((bodies_C2 == self.boat_body).any(axis=1)) & (bodies_C2 != 0).all(axis=1)).sum())

    def picture(self, data: MjData, camera: str, width_px: int, height_px: int, *, seed: int, tick: int) -> np.ndarray:
        """uint8 [height, width, 3] from camera ``"top"`` or ``"wrist"``; no shadow map, no multisampling.

        Args:
            seed: environment seed; decides what the look draws for the episode.
            tick: control ticks since reset; with the seed it keys the sensor noise.

        Raises:
            MachineError: this machine cannot render.
        """
        if self.painter is not None:
            return self.painter.paint(self._renderer, data, camera, (width_px, height_px), seed=seed, tick=tick)
        renderer = self._renderer(width_px, height_px)
        renderer.update_scene(data, CAMERA_NAMES[camera])
        switch_effects_off(renderer.scene)
        return renderer.render()

    def _renderer(self, width_px: int, height_px: int) -> Renderer:
        size = (width_px, height_px)
        if size not in self._renderers:
            self._renderers[size] = new_renderer(self.model, width_px, height_px)
        return self._renderers[size]


def shared_scene(protocol: str | Protocol, look: Look = PLAIN) -> Scene:
    """The process's one `Scene` of a look and a protocol, given by id or (for ablations) by its constants.

    Raises:
        ConfigError: no protocol has this id.
    """
    return _scene(protocol_named(protocol) if isinstance(protocol, str) else protocol, look)


@functools.cache
def _scene(protocol: Protocol, look: Look) -> Scene:
    model = build_model(protocol, look)
    code_of_body = {model.body("boat").id: BOAT_CODE}
    code_of_body |= {model.body(name).id: FIXED_BIT for name in FIXED_SIDE} | {
        model.body(name).id: MOVING_BIT for name in MOVING_SIDE
    }
    body_of_geom_G = np.array(model.geom_bodyid)
    body_of_geom_G[model.geom("disk").id] = 0
    return Scene(
        protocol=protocol,
        look=look,
        model=model,
        painter=_painter(look, model) if look.painted else None,
        boat_qpos=int(model.jnt_qposadr[model.joint("boat").id]),
        boat_qvel=int(model.jnt_dofadr[model.joint("boat").id]),
        boat_body=model.body("boat").id,
        ctrl_low_rad=np.array(model.actuator_ctrlrange[:, 0]),
        ctrl_high_rad=np.array(model.actuator_ctrlrange[:, 1]),
        contact_code_G=np.array([code_of_body.get(int(body), 0) for body in body_of_geom_G]),
        body_of_geom_G=body_of_geom_G,
    )


def _painter(look: Look, model: MjModel) -> Painter:
    # Imported when a look needs it: filters, matrices and picture files would double the start-up of every worker.
    from vla_rl.sim.painter import Painter

    return Painter(look, model, CAMERA_NAMES)


def scene_digest(protocol: Protocol, look: Look = PLAIN) -> str:
    """SHA-256 of all that decides physics and pictures, except MuJoCo's version. Differs between any two protocols."""
    world = [BOAT_PARTS, BOAT_CONTACT, TABLE_COLOUR, DISK_COLOUR, FLOOR_COLOUR, LIGHT, SOLVER]
    content = [protocol.constants(), look.constants(), assets.robot_digest(), assets.simplification(), world]
    if protocol.spawn == "v2":
        content.append(mask_digest())
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
