"""Inverse kinematics of the five arm joints by damped least squares.

In: where a point of the gripper should be, which way the jaws should open, and a start configuration. Out: joint angles
and how far off they are. Kinematics only, on scratch data: no episode is touched, collisions are not looked at.

The gripper's frame: the jaws open along its x axis (the fixed jaw on the negative side), the tool points along its
negative z axis. Method: S. R. Buss, "Introduction to inverse kinematics with Jacobian transpose, pseudoinverse and
damped least squares methods" (2004).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_rl.sim.gl import mujoco
from vla_rl.sim.scene import Scene

DAMPING_66 = 1e-6 * np.eye(6)
MAX_STEP_RAD = 0.2
TOLERANCE, SETTLED_RAD = 2e-5, 2e-5
RANGE_MARGIN_RAD = 0.02
# A bent elbow with the tool pointing down: shoulder lift, elbow and wrist, from which the iteration reaches the table.
BENT_RAD = np.deg2rad([10.0, 10.0, 70.0])


@dataclass(frozen=True)
class ArmPose:
    """joints_rad float64 [5], distance of the tool point from its goal, world z of the gripper's z axis."""

    joints_rad: np.ndarray
    error_m: float
    upright: float


class ArmKinematics:
    """Forward and inverse kinematics on scratch data of a scene."""

    def __init__(self, scene: Scene) -> None:
        self._model, self._data = scene.model, mujoco.MjData(scene.model)
        self._gripper = scene.model.body("gripper").id
        self._own_geom_G = (scene.body_of_geom_G != 0) & (scene.body_of_geom_G != scene.boat_body)
        limits = scene.model.jnt_range[:5]
        self.low_rad, self.high_rad = limits[:, 0] + RANGE_MARGIN_RAD, limits[:, 1] - RANGE_MARGIN_RAD
        self._pan_axis_xy = np.array(scene.model.body("shoulder").pos[:2])
        self._jac_pos, self._jac_rot = np.zeros((3, scene.model.nv)), np.zeros((3, scene.model.nv))
        # The jaws' heading is affine in pan and roll while the tool points down: measure its three coefficients.
        rest = self._heading(0.0, 0.0)
        self._heading_rest = rest
        self._heading_per_pan = np.sign(self._heading(0.1, 0.0) - rest)
        self._heading_per_roll = np.sign(self._heading(0.0, 0.1) - rest)

    def tool(self, joints_rad: np.ndarray, tool_point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """World position [3] of a gripper-frame point, and the gripper's rotation [3, 3]."""
        self._data.qpos[:5] = joints_rad
        mujoco.mj_kinematics(self._model, self._data)
        rotation = self._data.xmat[self._gripper].reshape(3, 3)
        return self._data.xpos[self._gripper] + rotation @ tool_point, rotation

    def radius_m(self, point_m: np.ndarray) -> float:
        """Horizontal distance of a point from the pan axis."""
        return float(np.hypot(*(point_m[:2] - self._pan_axis_xy)))

    def strikes_itself(self, joints_rad: np.ndarray, jaw_rad: float) -> bool:
        """Whether parts of the arm touch each other in this pose."""
        self._data.qpos[:6] = np.append(joints_rad, jaw_rad)
        mujoco.mj_fwdPosition(self._model, self._data)
        # Back as it was: the jaw moves the arm's centre of mass, and with it the last bits of later Jacobians.
        self._data.qpos[5] = 0.0
        contact = self._data.contact
        own_C2 = self._own_geom_G[contact.geom]
        return bool((own_C2.all(axis=1) & (contact.dist < 0.0)).any())

    def heading_rad(self, joints_rad: np.ndarray) -> float:
        """World heading of the jaw axis."""
        _, rotation = self.tool(joints_rad, np.zeros(3))
        return float(np.arctan2(rotation[1, 0], rotation[0, 0]))

    def _heading(self, pan_rad: float, roll_rad: float) -> float:
        return self.heading_rad(np.concatenate([[pan_rad], BENT_RAD, [roll_rad]]))

    def guess(self, xy_m: np.ndarray, jaw_heading_rad: float) -> np.ndarray:
        """A start configuration over `xy_m` whose wrist roll already points the jaws along the heading; float64 [5]."""
        dx, dy = np.asarray(xy_m) - self._pan_axis_xy
        pan_rad = -np.arctan2(dy, dx)
        roll_rad = self._heading_per_roll * (jaw_heading_rad - self._heading_rest - self._heading_per_pan * pan_rad)
        return np.concatenate([[pan_rad], BENT_RAD, [(roll_rad + np.pi) % (2 * np.pi) - np.pi]])

    def solve(
        self,
        goal_m: np.ndarray,
        tool_point: np.ndarray,
        start_rad: np.ndarray,
        *,
        jaw_heading_rad: float | None,
        vertical_weight: float = 0.1,
        iterations: int = 60,
    ) -> ArmPose:
        """Bring `tool_point` (gripper frame) to `goal_m` with the tool pointing down.

        Args:
            goal_m: [3], world.
            tool_point: [3], in the gripper's frame.
            start_rad: [5], where the iteration starts; the solution stays near it.
            jaw_heading_rad: wanted world heading of the jaw axis; None leaves it free.
            vertical_weight: metres of position error that one radian of tilt is worth; small where reach matters more.
            iterations: upper limit.
        """
        joints_rad = np.clip(start_rad, self.low_rad, self.high_rad)
        jaw_weight = 0.0 if jaw_heading_rad is None else 0.1
        jaw_x, jaw_y = (1.0, 0.0) if jaw_heading_rad is None else (np.cos(jaw_heading_rad), np.sin(jaw_heading_rad))
        weights = np.array([vertical_weight, vertical_weight, jaw_weight])
        for _ in range(iterations):
            position, rotation = self.tool(joints_rad, tool_point)
            x_axis, z_axis = rotation[:, 0], rotation[:, 2]
            turn = np.array([z_axis[1], -z_axis[0], x_axis[0] * jaw_y - x_axis[1] * jaw_x])
            error = np.concatenate([goal_m - position, weights * turn])
            if np.abs(error).max() < TOLERANCE:
                break
            mujoco.mj_comPos(self._model, self._data)
            mujoco.mj_jac(self._model, self._data, self._jac_pos, self._jac_rot, position, self._gripper)
            jacobian = np.concatenate([self._jac_pos[:, :5], weights[:, None] * self._jac_rot[:, :5]])
            step = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + DAMPING_66, error)
            moved_rad = np.minimum(np.maximum(step, -MAX_STEP_RAD), MAX_STEP_RAD) + joints_rad
            moved_rad = np.minimum(np.maximum(moved_rad, self.low_rad), self.high_rad)
            settled = np.abs(moved_rad - joints_rad).max() < SETTLED_RAD  # as near as it gets
            joints_rad = moved_rad
            if settled:
                break
        position, rotation = self.tool(joints_rad, tool_point)
        return ArmPose(joints_rad, float(np.linalg.norm(goal_m - position)), float(rotation[2, 2]))
