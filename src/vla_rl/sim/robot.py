"""The robot of a protocol: the Menagerie SO-101, lightened for the cameras, with the protocol's servo and limits.

In: a protocol. Out: an `MjSpec` to which a scene adds the rest. The installed model is edited in memory, so no
third-party XML or mesh is stored here.
"""

from __future__ import annotations

import numpy as np

from vla_rl.sim import assets
from vla_rl.sim.gl import MjSpec, mujoco
from vla_rl.sim.protocol import Protocol


def robot_spec(protocol: Protocol) -> MjSpec:
    """The robot alone.

    Raises:
        MachineError: the robot model is not installed.
    """
    spec = mujoco.MjSpec.from_file(str(assets.robot_dir() / "so101.xml"))
    _lighten_robot(spec)
    _apply_protocol(spec, protocol)
    return spec


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


def _apply_protocol(spec: MjSpec, protocol: Protocol) -> None:
    """Joint limits, servo and contact exclusions of the protocol; what it leaves open stays the source model's."""
    limits_rad = {name: np.deg2rad(limit_deg) for name, limit_deg in protocol.joint_limits_deg}
    for joint in spec.joints:
        if joint.name in limits_rad:
            joint.range = (-limits_rad[joint.name], limits_rad[joint.name])
        if servo := protocol.servo:
            joint.damping = np.array([servo.damping, 0.0, 0.0])
            joint.frictionloss, joint.armature = servo.frictionloss, servo.armature
    joint_range = {joint.name: joint.range for joint in spec.joints}
    for actuator in spec.actuators:
        low, high = joint_range[actuator.target]
        if actuator.target in limits_rad:
            actuator.ctrlrange = (low, high)
        # Upstream lets the wrist-roll servo aim beyond the joint's own range.
        actuator.ctrlrange = (max(actuator.ctrlrange[0], low), min(actuator.ctrlrange[1], high))
        if servo := protocol.servo:
            actuator.gainprm[0], actuator.biasprm[1], actuator.biasprm[2] = servo.kp, -servo.kp, -servo.kv
            actuator.forcerange = (-servo.force_limit, servo.force_limit)
    for first, second in protocol.contact_exclusions:
        spec.add_exclude(bodyname1=first, bodyname2=second)
