"""What to do next, told from the world alone: pure functions of one moment, without clocks or counters.

In: a `World`: measured joints, the pose that the servos are being led to, the boat, who touches it, the disk. Out: the
`Phase`, that is which manoeuvre is due. How a manoeuvre moves is in `manoeuvres`. A failed grasp, a dropped boat or one
that was pushed away needs no case of its own: the world then looks like that of an earlier phase.

Hands are described in the gripper's frame: its jaws open along x with the fixed jaw on the negative side, and the tool
points along negative z.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from vla_rl.sim.metrics import MIN_UPRIGHT, PINCH
from vla_rl.sim.scene import BOAT_PARTS

OPEN_DEG, NEARLY_OPEN_DEG, CLOSED_DEG = 24.0, 20.0, -10.0
# Gripper frame: inner face of the fixed jaw, and the height of its tip's middle. The cabin is 19 mm wide.
FIXED_FACE_X_M, TIP_Z_M, CABIN_HALF_M = -0.0080, -0.0975, 0.0095
CLEARANCE_M = 0.013  # on the fixed jaw's side; the open jaws are 50 mm apart, so the cabin is in the middle
GRASP_IN_BOAT_M = np.array([-0.006, 0.0, 0.028])
HOVER_M, LIFTED_KEEL_M, CARRY_KEEL_M, TOUCH_M = 0.040, 0.022, 0.048, 0.0015
CLOSING_TOOL = np.array([FIXED_FACE_X_M + CABIN_HALF_M, 0.0, TIP_Z_M])  # a cabin that touches the fixed jaw
OPEN_TOOL = CLOSING_TOOL + [CLEARANCE_M, 0.0, 0.0]  # a cabin between the open jaws

_HULL_HALF_M = np.array(BOAT_PARTS[0][2])
_KEEL_CORNERS_M = np.array(BOAT_PARTS[0][3]) + _HULL_HALF_M * [[x, y, -1] for x in (-1, 1) for y in (-1, 1)]
_RESTING_M, _LETTING_GO_M, _AIRBORNE_M = 0.003, 0.008, 0.006
_DISK_TOLERANCE_M, _NEAR_DISK_M = 0.033, 0.075
LOW_MARGIN_M, NEAR_BOAT_M, LOWERING_M = 0.014, 0.070, 0.008


class Phase(enum.Enum):
    """The manoeuvre that is due."""

    RISE = "rise"
    APPROACH = "approach"
    DESCEND = "descend"
    CLOSE = "close"
    LIFT = "lift"
    TRAVERSE = "traverse"
    LOWER = "lower"
    LET_GO = "let go"
    RELEASE = "release"
    WITHDRAW = "withdraw"
    HOME = "home"


@dataclass(frozen=True)
class Hand:
    """A pose of the gripper: its frame's position [3] and rotation [3, 3] in the world, and the jaw's angle."""

    position_m: np.ndarray
    rotation: np.ndarray
    jaw_deg: float

    def point(self, tool: np.ndarray) -> np.ndarray:
        """World position [3] of a point of the gripper's frame."""
        return self.position_m + self.rotation @ tool

    def local(self, point_m: np.ndarray) -> np.ndarray:
        """A world point [3] in the gripper's frame."""
        return (point_m - self.position_m) @ self.rotation

    @property
    def heading_rad(self) -> float:
        """World heading of the jaw axis."""
        return float(np.arctan2(self.rotation[1, 0], self.rotation[0, 0]))


@dataclass(frozen=True)
class World:
    """One observed moment; nothing in it tells how long anything has lasted.

    Attributes:
        joints_deg: [6], as measured.
        hand: their pose.
        aim: as commanded, where the servos lead the hand.
        aim_deg: [6], the joints of `aim`.
        boat_m, boat_rotation: [3] keel centre and [3, 3].
        arm_speed, boat_speed: largest of the |velocities| of the six joints (rad/s) and of the boat (m/s and rad/s).
        lost: the arm cannot follow its command; `aim` has been taken anew from where it is.
        grip: 0 none, 1 fixed side, 2 moving jaw, 3 both touch the boat.
        disk_xy_m, disk_top_m: [2] and height.
    """

    joints_deg: np.ndarray
    hand: Hand
    aim: Hand
    aim_deg: np.ndarray
    boat_m: np.ndarray
    boat_rotation: np.ndarray
    arm_speed: float
    boat_speed: float
    lost: bool
    grip: int | None
    disk_xy_m: np.ndarray
    disk_top_m: float

    @property
    def grasp_m(self) -> np.ndarray:
        """World point [3] that the jaws close around: the middle of the cabin."""
        return self.boat_m + self.boat_rotation @ GRASP_IN_BOAT_M

    @property
    def across_rad(self) -> float:
        """World heading of the boat's y axis, along which the jaws close."""
        return float(np.arctan2(self.boat_rotation[1, 1], self.boat_rotation[0, 1]))

    @property
    def upright(self) -> float:
        """World z of the boat's z axis."""
        return float(self.boat_rotation[2, 2])

    @property
    def keel_in_hand(self) -> np.ndarray:
        """Where the hand holds the boat, [3] in the gripper's frame."""
        return self.hand.local(self.boat_m)

    @property
    def keel_aim_m(self) -> np.ndarray:
        """Where a held boat is being led, [3]."""
        return self.aim.point(self.keel_in_hand)

    def disk_distance_m(self, point_m: np.ndarray) -> float:
        """Horizontal distance of a point from the disk's centre."""
        return float(np.hypot(*(point_m[:2] - self.disk_xy_m)))

    def lowest_m(self) -> float:
        """Height of the lowest corner of the boat's keel."""
        return float(self.boat_m[2] + (_KEEL_CORNERS_M @ self.boat_rotation[2]).min())


@dataclass(frozen=True)
class CabinInHand:
    """The cabin as a hand sees it, in metres and radians.

    Attributes:
        gap_m: to the fixed jaw's face; 0 touches, `CLEARANCE_M` is the middle of the open jaws.
        along_m: sideways, along the jaws' width.
        above_m: height of the jaws' tips over the cabin's middle.
        off_m: horizontal distance from being in the middle between the open jaws.
        turn_rad: angle between the jaw axis and the boat's y axis, 0 .. pi / 2.
    """

    gap_m: float
    along_m: float
    above_m: float
    off_m: float
    turn_rad: float

    @staticmethod
    def seen(hand: Hand, world: World) -> CabinInHand:
        """The cabin of `world` from `hand`."""
        x_m, y_m, z_m = (hand.local(world.grasp_m) - CLOSING_TOOL).tolist()
        turn_rad = abs((hand.heading_rad - world.across_rad + np.pi / 2) % np.pi - np.pi / 2)
        off_m = float(np.hypot(*(hand.point(OPEN_TOOL) - world.grasp_m)[:2]))
        return CabinInHand(x_m, y_m, -z_m, off_m, turn_rad)

    def between_jaws(self, *, gap_m: float, along_m: float, above_m: float) -> bool:
        """Whether the cabin is between the jaws, within these tolerances."""
        return -0.006 < self.gap_m < gap_m and abs(self.along_m) < along_m and abs(self.above_m) < above_m

    def under_open_jaws(self) -> bool:
        """Whether going straight down takes the cabin between the open jaws: a cone, narrow at its lower end."""
        high = -0.003 < self.above_m < HOVER_M + 0.020
        return high and self.off_m < 0.003 + 0.2 * self.above_m and self.turn_rad < 0.12 + 3.0 * max(self.above_m, 0.0)


def phase(world: World) -> Phase:
    """The manoeuvre that is due in `world`. Pure."""
    here, aim = CabinInHand.seen(world.hand, world), CabinInHand.seen(world.aim, world)
    if rests_on_disk(world):
        around = aim.between_jaws(gap_m=0.035, along_m=0.015, above_m=0.010) and not _released(world, aim)
        if around or (world.grip == PINCH and world.aim.jaw_deg < NEARLY_OPEN_DEG):
            return Phase.RELEASE
        return Phase.WITHDRAW if height_missing_m(world) > LOW_MARGIN_M else Phase.HOME
    tipped = world.upright < MIN_UPRIGHT - 0.1
    if _held(world, here) and not tipped:
        return _carrying(world)
    if world.grip == PINCH and world.aim.jaw_deg < OPEN_DEG - 1.0:
        return Phase.LET_GO
    if tipped:
        return Phase.RISE if height_missing_m(world) > LOW_MARGIN_M else Phase.APPROACH
    if (
        aim.between_jaws(gap_m=0.020, along_m=0.006, above_m=0.003)
        and aim.turn_rad < 0.3
        and here.between_jaws(gap_m=0.030, along_m=0.010, above_m=0.014)
    ):
        return Phase.CLOSE
    if aim.under_open_jaws() and world.aim.jaw_deg > NEARLY_OPEN_DEG:
        return Phase.DESCEND
    return Phase.RISE if height_missing_m(world) > LOW_MARGIN_M else Phase.APPROACH


def rests_on_disk(world: World) -> bool:
    """Whether the boat stands on the disk, held or not; jaws that have begun to open over it go on opening."""
    resting_m = _RESTING_M if world.aim.jaw_deg < CLOSED_DEG + 1.0 else _LETTING_GO_M
    height_m = world.lowest_m() - world.disk_top_m
    near = world.disk_distance_m(world.boat_m) < _DISK_TOLERANCE_M
    return near and -0.003 < height_m < resting_m and world.upright > MIN_UPRIGHT


def height_missing_m(world: World) -> float:
    """By how much the jaws are too low to move freely: to cross a boat anywhere, to leave a placed one only near it."""
    tips_m = world.aim.point(OPEN_TOOL)
    missing_m = float(world.grasp_m[2]) + HOVER_M - float(tips_m[2])
    if not rests_on_disk(world):
        return missing_m
    off_m = float(np.hypot(*(tips_m - world.grasp_m)[:2]))
    return missing_m - 2.0 * max(off_m - NEAR_BOAT_M, 0.0)


def lowering_radius_m(world: World) -> float:
    """How far off the disk's centre a held boat may be led and yet be lowered: less, the lower it is."""
    return LOWERING_M + 0.7 * max(float(world.keel_aim_m[2]) - world.disk_top_m, 0.0)


def _airborne(world: World) -> bool:
    over_disk = world.disk_distance_m(world.boat_m) < _NEAR_DISK_M
    return world.lowest_m() > (world.disk_top_m + _RESTING_M if over_disk else _AIRBORNE_M)


def _held(world: World, here: CabinInHand) -> bool:
    """Both jaws on the boat, by its cabin or in the air; or a cabin in closed jaws that has left the ground."""
    by_cabin = here.between_jaws(gap_m=0.006, along_m=0.012, above_m=0.015)
    airborne = _airborne(world)
    squeezing = world.aim.jaw_deg < CLOSED_DEG + 1.0 and world.hand.jaw_deg > CLOSED_DEG + 5.0
    return (world.grip == PINCH and (by_cabin or airborne)) or (by_cabin and (airborne or squeezing))


def _carrying(world: World) -> Phase:
    keel_m = world.keel_aim_m
    if world.disk_distance_m(keel_m) < lowering_radius_m(world):
        return Phase.LOWER
    return Phase.LIFT if keel_m[2] < LIFTED_KEEL_M else Phase.TRAVERSE


def _released(world: World, aim: CabinInHand) -> bool:
    return world.aim.jaw_deg > NEARLY_OPEN_DEG and aim.gap_m > CLEARANCE_M - 0.004
