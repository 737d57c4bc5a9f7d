"""Measures where spawn v2 may put things: ``python -m vla_rl.sim.reach`` prints the reach mask that ships as a file.

In: the kinematics of the arm with the source model's joint limits (both bases can go there). Out: the cells of 1 cm
whose four corners the tool reaches from above, at the height of the table and at carrying height, with the jaws turned
any way round, and which lie far enough inside the table for a whole disk. Takes minutes; the frozen file is
``data/reach_mask.txt`` (write it with ``> src/vla_rl/sim/data/reach_mask.txt``). A changed file is another spawn v2.
Collisions are not looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from vla_rl.sim.ik import ArmKinematics
from vla_rl.sim.scene import Scene, shared_scene
from vla_rl.sim.spawn import CELL_M, ReachMask

TABLE_Z_M, CARRY_Z_M = 0.02, 0.06
MAX_TILT_DEG, MAX_ERROR_M, MAX_TURN_DEG = 10.0, 0.002, 5.0
HEADINGS_RAD = tuple(np.arange(8) * np.pi / 8)
# Gripper frame: between the open jaws, at the height of their tips.
TOOL_POINT_M = np.array([0.0145, 0.0, -0.0975])
# Cells looked at: the arm is nowhere longer than this.
FARTHEST_M = 0.36


def reaches(arm: ArmKinematics, x_m: float, y_m: float) -> bool:
    """Whether the tool points down (within `MAX_TILT_DEG`) at both heights over a point, for every jaw heading.

    A heading counts when it or its opposite is reached: the jaws may grip either way round.
    """
    return all(
        any(_solved(arm, np.array([x_m, y_m, z_m]), heading + turn) for turn in (0.0, np.pi))
        for z_m in (CARRY_Z_M, TABLE_Z_M)
        for heading in HEADINGS_RAD
    )


def _solved(arm: ArmKinematics, goal_m: np.ndarray, heading_rad: float) -> bool:
    pose = arm.solve(goal_m, TOOL_POINT_M, arm.guess(goal_m[:2], heading_rad), jaw_heading_rad=heading_rad)
    if pose.error_m > MAX_ERROR_M or pose.upright < np.cos(np.deg2rad(MAX_TILT_DEG)):
        return False
    jaw_axis = arm.tool(pose.joints_rad, TOOL_POINT_M)[1][:, 0]
    return float(jaw_axis[:2] @ (np.cos(heading_rad), np.sin(heading_rad))) > np.cos(np.deg2rad(MAX_TURN_DEG))


def on_table(scene: Scene) -> Callable[[float, float], bool]:
    """Whether a disk around a point lies wholly on the table."""
    table, margin_m = scene.model.geom("table"), scene.protocol.disk_radius_m
    low, high = table.pos[:2] - table.size[:2] + margin_m, table.pos[:2] + table.size[:2] - margin_m
    return lambda x_m, y_m: bool(low[0] <= x_m <= high[0] and low[1] <= y_m <= high[1])


def measure(scene: Scene) -> ReachMask:
    """The mask of a scene's arm and table."""
    arm, inside = ArmKinematics(scene), on_table(scene)

    @functools.cache
    def good(i: int, j: int) -> bool:
        x_m, y_m = CELL_M * i, CELL_M * j
        return float(np.hypot(x_m, y_m)) < FARTHEST_M and inside(x_m, y_m) and reaches(arm, x_m, y_m)

    span = range(-int(FARTHEST_M / CELL_M), int(FARTHEST_M / CELL_M))
    cells = [(i, j) for i in span for j in span if all(good(i + a, j + b) for a in (0, 1) for b in (0, 1))]
    return ReachMask(np.array(cells, dtype=np.int32))


def as_text(mask: ReachMask) -> str:
    """The map that `vla_rl.sim.spawn.parse_mask` reads: a line for each row of cells, ``#`` where a cell counts."""
    known = {(int(i), int(j)) for i, j in mask.cells_N2}
    first, last = mask.cells_N2.min(axis=0), mask.cells_N2.max(axis=0)
    rows = [
        f"{i} {first[1]} " + "".join("#" if (i, j) in known else "." for j in range(first[1], last[1] + 1))
        for i in range(first[0], last[0] + 1)
    ]
    head = (
        "// Reach mask of spawn v2, measured by vla_rl.sim.reach; frozen: another file is another protocol.\n"
        "// Lines: x index, first y index, cells of 1 cm along y. Cell (i, j) is x in [i, i+1) cm, y in [j, j+1) cm.\n"
        f"// {len(mask.cells_N2)} cells count.\n"
    )
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(as_text(measure(shared_scene("sim100b"))), end="")
