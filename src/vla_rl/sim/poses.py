"""Where the arm has to be for the boat and for the disk: poses over them that can be reached and go on downwards.

In: a `World`. Out: arm joints. Inverse kinematics and a look at whether the arm would strike itself; the ways there are
not looked at. The poses over a boat that has not moved are remembered, which changes nothing but the time they take.
"""

from __future__ import annotations

import numpy as np

from vla_rl.sim.ik import ArmKinematics, ArmPose
from vla_rl.sim.phases import CARRY_KEEL_M, HOVER_M, OPEN_DEG, OPEN_TOOL, TOUCH_M, World

CABIN_JAW_DEG = 2.0  # the jaw's angle on the cabin's sides
# Weights of an upright tool, tried in turn: at the edge of the reach a pose over boat or disk is tilted.
TILTS = (0.03, 0.006, 0.0015, 0.0003)
OVER_ERROR_M, GRASP_ERROR_M, GRASP_UPRIGHT, GRASP_TURN_RAD = 0.005, 0.002, 0.97, 0.05
# The held boat is put down at any yaw: turned as little as keeps the arm clear of itself.
TURNS_DEG = (0.0, -30.0, 30.0, -60.0, 60.0, -90.0, 90.0)


class Abandon(Exception):
    """The expert cannot go on; the message says why."""


class Poses:
    """Poses over boat and disk.

    Args:
        arm: kinematics of the scene.
    """

    def __init__(self, arm: ArmKinematics) -> None:
        self._arm = arm
        self._memo: tuple[tuple[float, ...], list[np.ndarray]] = ((), [])

    def above(self, world: World) -> list[np.ndarray]:
        """Arm joints [5] in degrees over the cabin, for the ways round (one or two) in which it can be taken.

        Raises:
            Abandon: there is none.
        """
        key = (*np.round(world.grasp_m, 4).tolist(), round(world.across_rad, 3))
        if self._memo[0] != key:
            ways = (self._above(np.array(key[:3]), key[3] + turn_rad) for turn_rad in (0.0, np.pi))
            self._memo = (key, [np.rad2deg(pose.joints_rad) for pose in ways if pose is not None])
        if not self._memo[1]:
            raise Abandon("the boat is out of reach")
        return self._memo[1]

    def over_disk(self, world: World) -> np.ndarray:
        """Arm joints [5] in degrees with the held boat over the disk.

        Raises:
            Abandon: there is no such pose, or the arm would strike itself on the way down from it.
        """
        over_m, keel = np.append(world.disk_xy_m, CARRY_KEEL_M), world.keel_in_hand
        below_m = np.append(world.disk_xy_m, world.disk_top_m - TOUCH_M)
        bent_rad = self._arm.guess(world.disk_xy_m, 0.0)[:4]
        for turn_deg in TURNS_DEG:
            start_rad = np.append(bent_rad, np.deg2rad(world.aim_deg[4] + turn_deg))
            over = self._over(over_m, keel, start_rad, heading_rad=None)
            if over is not None:
                down = self._arm.solve(below_m, keel, over.joints_rad, jaw_heading_rad=None)
                if not self._arm.strikes_itself(down.joints_rad, np.deg2rad(CABIN_JAW_DEG)):
                    return np.rad2deg(over.joints_rad)
        raise Abandon("the disk is out of reach")

    def _above(self, grasp_m: np.ndarray, heading_rad: float) -> ArmPose | None:
        """The pose over the cabin with the jaws along a heading, if the grasp below it can be reached."""
        guess_rad = self._arm.guess(grasp_m[:2], heading_rad)
        grasp = self._arm.solve(grasp_m, OPEN_TOOL, guess_rad, jaw_heading_rad=heading_rad)
        turn = np.cos(self._arm.heading_rad(grasp.joints_rad) - heading_rad)
        if grasp.error_m > GRASP_ERROR_M or grasp.upright < GRASP_UPRIGHT or turn < np.cos(GRASP_TURN_RAD):
            return None
        over = self._over(grasp_m + [0.0, 0.0, HOVER_M], OPEN_TOOL, guess_rad, heading_rad=heading_rad)
        struck = over is None or any(
            self._arm.strikes_itself(pose.joints_rad, np.deg2rad(OPEN_DEG)) for pose in (grasp, over)
        )
        return None if struck else over

    def _over(
        self, goal_m: np.ndarray, tool: np.ndarray, start_rad: np.ndarray, *, heading_rad: float | None
    ) -> ArmPose | None:
        """A pose with the tool point at the goal, as upright as reach allows; None: out of reach."""
        for weight in TILTS:
            pose = self._arm.solve(goal_m, tool, start_rad, jaw_heading_rad=heading_rad, vertical_weight=weight)
            if pose.error_m < OVER_ERROR_M:
                return pose
        return None
