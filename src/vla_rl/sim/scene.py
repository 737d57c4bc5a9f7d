"""Builds the world: the Menagerie SO-101, a table, a toy boat of primitive shapes and a wooden disk.

In: a protocol. Out: a `Scene`: the compiled model, the indices that others need, a settled start state, contact codes
and pictures. One `Scene` (and one renderer a picture size) serves every environment of a process; an environment owns
only its `MjData`. Edited through `MjSpec`, so no third-party XML or mesh is stored here.

The contact settings are the ones that hold a boat: elliptic friction cone with impratio 10 (a pyramidal cone always
loses it), no noslip pass, vertical faces to grip.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field

import numpy as np

from vla_rl.sim import assets
from vla_rl.sim.culling import hide_unseen
from vla_rl.sim.frames import to_radians
from vla_rl.sim.gl import MjData, MjModel, MjSpec, Renderer, mujoco, new_renderer
from vla_rl.sim.protocol import Protocol, protocol_named

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


def _lighten_robot(spec: MjSpec) -> None:
    """Swap the meshes that only cameras see for simplified ones; drop meshes that nothing uses.

    A mesh that collides, or that a body's inertia is inferred from, stays as it is: physics is that of the source
    model.
    """
    heavy = {g.meshname for g in spec.geoms if g.contype or g.conaffinity or not g.parent.explicitinertial}
    used = {g.meshname for g in spec.geoms if g.type == mujoco.mjtGeom.mjGEOM_MESH}
    names = tuple(sorted(used - heavy))
    light = assets.light_meshes(names)
    for mesh in list(spec.meshes):
        if mesh.name in light:
            mesh.file = ""
            mesh.uservert = light[mesh.name].vertices_V3.ravel()
            mesh.userface = light[mesh.name].faces_F3.ravel()
        elif mesh.name not in used:
            spec.delete(mesh)


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
    world.add_geom(
        name="disk",
        type=geom.mjGEOM_CYLINDER,
        size=(protocol.disk_radius_m, half_m, 0.0),
        pos=(*protocol.disk_xy_m, half_m),
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


def build_model(protocol: Protocol) -> MjModel:
    """Compile the world of `protocol`.

    Raises:
        MachineError: the robot model is not installed.
    """
    spec = mujoco.MjSpec.from_file(str(assets.robot_dir() / "so101.xml"))
    _lighten_robot(spec)
    # Upstream lets the wrist-roll servo aim beyond the joint's own range.
    joint_range = {joint.name: joint.range for joint in spec.joints}
    for actuator in spec.actuators:
        low, high = joint_range[actuator.target]
        actuator.ctrlrange = (max(actuator.ctrlrange[0], low), min(actuator.ctrlrange[1], high))
    _add_furniture(spec, protocol)
    _add_boat(spec, protocol)
    _add_top_camera(spec, protocol)
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
    visual.global_.offwidth = visual.global_.offheight = MAX_PICTURE_PX
    return spec.compile()


@dataclass(frozen=True)
class Scene:
    """A compiled world and what is known about it. Shared within a process; holds no episode.

    Attributes:
        model: the MuJoCo model.
        boat_qpos, boat_qvel: first index of the boat's 7 positions and 6 velocities.
        boat_body: body id of the boat.
        ctrl_low_rad, ctrl_high_rad: float64 [6], range of the servo targets.
        contact_code_G: int [geom], BOAT_CODE, FIXED_BIT, MOVING_BIT or 0.
        body_of_geom_G: int [geom], body id (0 is the world).
    """

    protocol: Protocol
    model: MjModel
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
        """Integration state with the arm at rest at home and the boat parked: the start of every episode."""
        data, home_rad = mujoco.MjData(self.model), to_radians(np.array(self.protocol.home_deg))
        data.qpos[:6] = data.ctrl[:6] = home_rad
        mujoco.mj_step(self.model, data, self.protocol.arm_settle_steps)
        data.time = 0.0
        state = np.empty(mujoco.mj_stateSize(self.model, mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_getState(self.model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        return state

    @functools.cached_property
    def _contact_code(self) -> list[int]:
        return self.contact_code_G.tolist()

    def grip_code(self, data: MjData) -> int:
        """1: the boat touches the fixed jaw or its housing; 2: the moving jaw; 3: both; 0: neither."""
        contact, code, touching = data.contact, self._contact_code, 0
        # Plain numbers: arrays of some twenty contacts cost several times as much, once a tick.
        for (first, second), distance_m in zip(contact.geom.tolist(), contact.dist.tolist(), strict=True):
            if distance_m <= 0.0:
                touching |= 1 << (code[first] + code[second])
        fixed, moving = touching >> (BOAT_CODE + FIXED_BIT) & 1, touching >> (BOAT_CODE + MOVING_BIT) & 1
        return FIXED_BIT * fixed + MOVING_BIT * moving

    def boat_strikes(self, data: MjData) -> int:
        """Number of contact points between the boat and any body that is not part of the world."""
        if data.ncon == 0:
            return 0
        bodies_C2 = self.body_of_geom_G[data.contact.geom]
        return int((((bodies_C2 == self.boat_body).any(axis=1)) & (bodies_C2 != 0).all(axis=1)).sum())

    def picture(self, data: MjData, camera: str, width_px: int, height_px: int) -> np.ndarray:
        """uint8 [height, width, 3] from camera ``"top"`` or ``"wrist"``; no shadows, no multisampling.

        Raises:
            MachineError: this machine cannot render.
        """
        size = (width_px, height_px)
        if size not in self._renderers:
            self._renderers[size] = new_renderer(self.model, width_px, height_px)
        renderer = self._renderers[size]
        renderer.update_scene(data, CAMERA_NAMES[camera])
        for flag in (
            mujoco.mjtRndFlag.mjRND_SHADOW,
            mujoco.mjtRndFlag.mjRND_REFLECTION,
            mujoco.mjtRndFlag.mjRND_SKYBOX,
        ):
            renderer.scene.flags[flag] = 0
        hide_unseen(renderer.scene, self.model, data, width_px / height_px)
        return renderer.render()


@functools.cache
def shared_scene(protocol_name: str) -> Scene:
    """The process's one `Scene` of a protocol."""
    protocol = protocol_named(protocol_name)
    model = build_model(protocol)
    code_of_body = {model.body("boat").id: BOAT_CODE}
    code_of_body |= {model.body(name).id: FIXED_BIT for name in FIXED_SIDE} | {
        model.body(name).id: MOVING_BIT for name in MOVING_SIDE
    }
    body_of_geom_G = np.array(model.geom_bodyid)
    return Scene(
        protocol=protocol,
        model=model,
        boat_qpos=int(model.jnt_qposadr[model.joint("boat").id]),
        boat_qvel=int(model.jnt_dofadr[model.joint("boat").id]),
        boat_body=model.body("boat").id,
        ctrl_low_rad=np.array(model.actuator_ctrlrange[:, 0]),
        ctrl_high_rad=np.array(model.actuator_ctrlrange[:, 1]),
        contact_code_G=np.array([code_of_body.get(int(body), 0) for body in body_of_geom_G]),
        body_of_geom_G=body_of_geom_G,
    )


def scene_digest(protocol: Protocol) -> str:
    """SHA-256 of all that decides physics and pictures, except MuJoCo's version."""
    world = [BOAT_PARTS, BOAT_CONTACT, TABLE_COLOUR, DISK_COLOUR, FLOOR_COLOUR, LIGHT, SOLVER]
    content = [protocol.constants(), assets.robot_digest(), assets.simplification(), world]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
