"""How each phase moves: from the world to the next step of the joint targets.

In: a `World` and the `Phase` that it shows. Out: by how much the targets change in the next tick, at the speed that
suits the phase. Every call starts from the present pose, so a manoeuvre can be entered anywhere and left at any time.
Paths are not checked for collisions: the jaws rise before they cross the boat and go straight down on it.
"""

from __future__ import annotations

import numpy as np

from vla_rl.sim.ik import ArmKinematics
from vla_rl.sim.metrics import HOPELESS_Z_M, MIN_UPRIGHT, PINCH
from vla_rl.sim.pace import FREE_DEG_S, JAW_DEG_S, JAW_SLOW_DEG_S, LOWER_DEG_S, NEAR_DEG_S, Pace
from vla_rl.sim.phases import (
    CARRY_KEEL_M,
    CLEARANCE_M,
    CLOSED_DEG,
    CLOSING_TOOL,
    HOVER_M,
    LIFTED_KEEL_M,
    LOW_MARGIN_M,
    LOWERING_M,
    NEARLY_OPEN_DEG,
    OPEN_DEG,
    OPEN_TOOL,
    TOUCH_M,
    CabinInHand,
    Phase,
    World,
    height_missing_m,
    lowering_radius_m,
)
from vla_rl.sim.poses import CABIN_JAW_DEG, Abandon, Poses
from vla_rl.sim.protocol import Protocol

# Motions that begin at rest are at full speed after this far.
RAMP_DEG, RAMP_M = 9.0, 0.012
UPRIGHT, TILT_ALLOWED = 0.1, 0.03  # weights of an upright tool: where the jaws work, and on the way
UPRIGHT_BELOW_M, SLOW_BELOW_M = 0.030, 0.010
UPWARD_REACH_M, UPWARD_UPRIGHT = (0.130, 0.255), 0.85  # where the arm can go straight up, with the tool how upright
DRAWN_UP_DEG = np.array([-90.0, 50.0, 75.0])  # lift, elbow and wrist: the tool points down, well above the table
STRIDE_M = 0.020  # straight lines are cut into chords of this length
# A boat or arm slower than this (rad/s, m/s) is at rest; a step shorter than that is none.
STILL, STUCK_DEG = 0.05, 0.05
CARRYING = (Phase.LIFT, Phase.TRAVERSE, Phase.LOWER)
UP = np.array([0.0, 0.0, 1.0])


class Manoeuvres:
    """The next step of every phase.

    Args:
        arm: kinematics of the scene.
        protocol: its home pose and duration of a tick are used.
    """

    def __init__(self, arm: ArmKinematics, protocol: Protocol) -> None:
        self._arm, self._poses, self._pace = arm, Poses(arm), Pace(protocol.tick_s)
        self._home_deg = np.array(protocol.home_deg)
        self._steps = {
            Phase.RISE: self._rise,
            Phase.APPROACH: self._approach,
            Phase.DESCEND: self._descend,
            Phase.CLOSE: self._close,
            Phase.LIFT: self._lift,
            Phase.TRAVERSE: self._traverse,
            Phase.LOWER: self._lower,
            Phase.LET_GO: self._let_go,
            Phase.RELEASE: self._release,
            Phase.WITHDRAW: self._withdraw,
            Phase.HOME: self._home,
        }

    def step(self, phase: Phase, world: World) -> np.ndarray:
        """Change of the joint targets float64 [6] in degrees for the next tick.

        Raises:
            Abandon: the boat lies on its side or is lost, boat or disk cannot be reached, or the arm is in its own way.
        """
        joints_rad = np.deg2rad(world.joints_deg)
        if world.lost and phase is not Phase.HOME and self._arm.strikes_itself(joints_rad[:5], joints_rad[5]):
            raise Abandon("the arm is in its own way")
        step_deg = self._steps[phase](world)
        if np.abs(step_deg).max() < STUCK_DEG and world.arm_speed < STILL and phase is not Phase.HOME:
            raise Abandon(f"the {'disk' if phase in CARRYING else 'boat'} is out of reach")
        return step_deg

    def close_jaw(self, world: World) -> np.ndarray:
        """The step [6] that closes the jaws where the hand is, whatever is there."""
        return np.append(np.zeros(5), self._jaw(world, CLOSED_DEG, begun=(OPEN_DEG - world.aim.jaw_deg) / RAMP_DEG))

    # -------------------------------------------------------------------------------------- picking up
    def _rise(self, world: World) -> np.ndarray:
        """Straight up beside or over the boat; the jaws stay as they are, lest they sweep it.

        An arm that is folded close to its base would strike itself on the way up, one that is stretched out cannot go
        up: both are drawn up into a pose in between.
        """
        _check_boat(world)
        reach_m = self._arm.radius_m(world.aim.point(OPEN_TOOL))
        if not UPWARD_REACH_M[0] < reach_m < UPWARD_REACH_M[1] or world.aim.rotation[2, 2] < UPWARD_UPRIGHT:
            drawn_up_deg = np.concatenate([world.aim_deg[:1], DRAWN_UP_DEG, world.aim_deg[4:5]])
            return self._together(world, drawn_up_deg, float(world.aim_deg[5]), NEAR_DEG_S)
        return self._up(world, heading_rad=None)

    def _approach(self, world: World) -> np.ndarray:
        _check_boat(world)
        now_deg = world.aim_deg[:5]
        above = min(self._poses.above(world), key=lambda pose_deg: np.abs(pose_deg - now_deg).max())
        begun = float(np.abs(self._home_deg - world.aim_deg).max()) / RAMP_DEG
        way = self._together(world, above, OPEN_DEG, FREE_DEG_S, begun=begun)
        return self._leaving(world, way)

    def _descend(self, world: World) -> np.ndarray:
        above_m = CabinInHand.seen(world.aim, world).above_m
        return self._line(
            world,
            OPEN_TOOL,
            world.grasp_m,
            NEAR_DEG_S,
            OPEN_DEG,
            heading_rad=_nearer_heading(world),
            vertical_weight=_upright_weight(above_m),
            brake=True,
        )

    def _close(self, world: World) -> np.ndarray:
        """The arm carries the fixed jaw to the cabin while the other one closes, so that both touch it together."""
        pose = self._arm.solve(
            world.grasp_m, CLOSING_TOOL, np.deg2rad(world.aim_deg[:5]), jaw_heading_rad=_nearer_heading(world)
        )
        way_deg = np.rad2deg(pose.joints_rad) - world.aim_deg[:5]
        jaw_deg = self.close_jaw(world)[5]
        until_touch = max(world.aim.jaw_deg - CABIN_JAW_DEG, 0.0)
        part = min(self._pace.part(way_deg, NEAR_DEG_S), -jaw_deg / max(until_touch, 1e-9))
        return np.append(part * way_deg, jaw_deg)

    def _let_go(self, world: World) -> np.ndarray:
        """Pinched by the wrong end: open where the hand is."""
        return np.append(np.zeros(5), self._jaw(world, OPEN_DEG))

    # -------------------------------------------------------------------------------------- carrying
    def _lift(self, world: World) -> np.ndarray:
        keel_z_m = float(world.keel_aim_m[2])
        goal_m = world.aim.point(CLOSING_TOOL) + (CARRY_KEEL_M - keel_z_m) * UP
        return self._line(
            world,
            CLOSING_TOOL,
            goal_m,
            NEAR_DEG_S,
            CLOSED_DEG,
            heading_rad=world.aim.heading_rad,
            vertical_weight=TILT_ALLOWED,
            begun=keel_z_m / RAMP_M,
        )

    def _traverse(self, world: World) -> np.ndarray:
        way = self._together(world, self._poses.over_disk(world), CLOSED_DEG, FREE_DEG_S, brake=True)
        high = min((world.keel_aim_m[2] - LIFTED_KEEL_M) / RAMP_M, 1.0)
        return way if high >= 1.0 else high * way + (1.0 - high) * self._lift(world)

    def _lower(self, world: World) -> np.ndarray:
        touch_m = np.append(world.disk_xy_m, world.disk_top_m + TOUCH_M)
        begun = (world.keel_aim_m[2] - touch_m[2]) / SLOW_BELOW_M - 1.0
        speed_deg_s = LOWER_DEG_S + (NEAR_DEG_S - LOWER_DEG_S) * min(max(begun, 0.0), 1.0)
        weight = _upright_weight(float(world.keel_aim_m[2] - touch_m[2]))
        down = self._line(world, world.keel_in_hand, touch_m, speed_deg_s, CLOSED_DEG, vertical_weight=weight)
        radius_m, off_m = lowering_radius_m(world), world.disk_distance_m(world.keel_aim_m)
        rim = min((off_m - LOWERING_M) / max(radius_m - LOWERING_M, 1e-9), 1.0)
        return down if rim <= 0.0 else rim * self._traverse(world) + (1.0 - rim) * down

    # -------------------------------------------------------------------------------------- leaving
    def _release(self, world: World) -> np.ndarray:
        """Open, and take the fixed jaw off the boat as well once the moving one has let go."""
        jaw_deg = self._jaw(world, OPEN_DEG, begun=(world.aim.jaw_deg - CLOSED_DEG) / RAMP_DEG)
        if world.grip == PINCH and world.aim.jaw_deg < world.hand.jaw_deg:
            return np.append(np.zeros(5), jaw_deg)
        back_m = CLEARANCE_M - float(np.clip(CabinInHand.seen(world.aim, world).gap_m, 0.0, CLEARANCE_M))
        free_m = world.aim.point(CLOSING_TOOL - [back_m, 0.0, 0.0])
        free_m[2] = world.aim.point(CLOSING_TOOL)[2]
        pose = self._arm.solve(
            free_m, CLOSING_TOOL, np.deg2rad(world.aim_deg[:5]), jaw_heading_rad=world.aim.heading_rad
        )
        way_deg = np.rad2deg(pose.joints_rad) - world.aim_deg[:5]
        part = min(self._pace.part(way_deg, NEAR_DEG_S, brake=True), jaw_deg / max(OPEN_DEG - world.aim.jaw_deg, 1e-9))
        return np.append(part * way_deg, jaw_deg)

    def _withdraw(self, world: World) -> np.ndarray:
        return self._up(world, heading_rad=world.aim.heading_rad)

    def _home(self, world: World) -> np.ndarray:
        return self._leaving(
            world, self._together(world, self._home_deg[:5], float(self._home_deg[5]), FREE_DEG_S, brake=True)
        )

    # -------------------------------------------------------------------------------------- small steps
    def _up(self, world: World, *, heading_rad: float | None) -> np.ndarray:
        start_m = world.aim.point(OPEN_TOOL)
        goal_m = start_m + 2 * HOVER_M * UP
        begun = CabinInHand.seen(world.aim, world).above_m / RAMP_M
        return self._line(
            world,
            OPEN_TOOL,
            goal_m,
            NEAR_DEG_S,
            OPEN_DEG if world.aim.jaw_deg > NEARLY_OPEN_DEG else world.aim.jaw_deg,
            heading_rad=heading_rad,
            vertical_weight=TILT_ALLOWED,
            begun=begun,
        )

    def _leaving(self, world: World, way: np.ndarray) -> np.ndarray:
        """A free motion that begins low: it turns from rising to its own way within the margin below hovering."""
        high = 1.0 - height_missing_m(world) / LOW_MARGIN_M
        return way if high >= 1.0 else high * way + (1.0 - high) * self._up(world, heading_rad=None)

    def _together(
        self,
        world: World,
        arm_deg: np.ndarray,
        jaw_deg: float,
        speed_deg_s: float,
        *,
        begun: float = 1.0,
        brake: bool = False,
    ) -> np.ndarray:
        """One tick along the straight line in joint space on which all joints arrive together."""
        way_deg = np.append(arm_deg, jaw_deg) - world.aim_deg
        part = self._pace.part(way_deg[:5], speed_deg_s, begun=begun, brake=brake)
        return way_deg * min(part, self._pace.part(way_deg[5], JAW_DEG_S))

    def _jaw(self, world: World, jaw_deg: float, *, begun: float = 1.0) -> float:
        """The jaw's step of one tick."""
        way_deg = jaw_deg - world.aim.jaw_deg
        return way_deg * self._pace.part(way_deg, JAW_DEG_S, slow_deg_s=JAW_SLOW_DEG_S, begun=begun, brake=True)

    def _line(
        self,
        world: World,
        tool: np.ndarray,
        goal_m: np.ndarray,
        speed_deg_s: float,
        jaw_deg: float,
        *,
        heading_rad: float | None = None,
        vertical_weight: float = UPRIGHT,
        begun: float = 1.0,
        brake: bool = False,
    ) -> np.ndarray:
        """One tick along the straight line in space from where the tool point is commanded to be to the goal."""
        start_m = world.aim.point(tool)
        way_m = goal_m - start_m
        part = min(1.0, STRIDE_M / max(float(np.linalg.norm(way_m)), 1e-9))
        pose = self._arm.solve(
            start_m + part * way_m,
            tool,
            np.deg2rad(world.aim_deg[:5]),
            jaw_heading_rad=heading_rad,
            vertical_weight=vertical_weight,
            iterations=25,
        )
        way_deg = np.rad2deg(pose.joints_rad) - world.aim_deg[:5]
        share = min(1.0, self._pace.part(way_deg / part, speed_deg_s, begun=begun, brake=brake) / part)
        return np.append(share * way_deg, self._jaw(world, jaw_deg))


def _nearer_heading(world: World) -> float:
    """Of the boat's two headings across, the one that the jaws are nearer to."""
    turn_rad = (world.aim.heading_rad - world.across_rad) % (2 * np.pi)
    return world.across_rad + (np.pi if np.pi / 2 < turn_rad < 3 * np.pi / 2 else 0.0)


def _upright_weight(height_m: float) -> float:
    """How much the tool's uprightness counts, by the height over where it has to be upright."""
    return UPRIGHT * max(1.0 - height_m / UPRIGHT_BELOW_M, 0.03)


def _check_boat(world: World) -> None:
    if world.boat_m[2] < HOPELESS_Z_M:
        raise Abandon("the boat has left the table")
    if world.upright < MIN_UPRIGHT and world.boat_speed < STILL:
        raise Abandon("the boat has tipped over")
