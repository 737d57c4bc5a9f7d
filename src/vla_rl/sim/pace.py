"""One tick of motion in joint space: how far along a way, at which speed.

In: ways in degrees, speeds in degrees per second. Out: the step of one tick. Speeds follow from where a joint is,
never from how long it has been moving: slow where a way begins and where it ends, but not so slow as to wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Joint speeds in degrees per second: free motion, near the boat, lowering onto the disk, and the slowest at all.
FREE_DEG_S, NEAR_DEG_S, LOWER_DEG_S, SLOW_DEG_S = 90.0, 60.0, 24.0, 24.0
JAW_DEG_S, JAW_SLOW_DEG_S = 110.0, 40.0
# Share of the way that is left which one second at the present speed may cover.
BRAKE_PER_S = 12.0


@dataclass(frozen=True)
class Pace:
    """Speeds of one tick.

    Attributes:
        tick_s: duration of a tick.
    """

    tick_s: float

    def part(
        self,
        left_deg: np.ndarray | float,
        deg_s: float,
        *,
        slow_deg_s: float = SLOW_DEG_S,
        begun: float = 1.0,
        brake: bool = False,
    ) -> float:
        """Share of the way `left_deg` for one tick, 0 .. 1: the slowest joint decides.

        Args:
            left_deg: [n], what is left of each joint's way.
            deg_s: the speed in the middle of the way.
            begun: 0 where the motion begins, 1 from where it may be at full speed.
            brake: whether to slow down before the end.
        """
        left = float(np.abs(left_deg).max())
        speed = slow_deg_s + (deg_s - slow_deg_s) * min(max(begun, 0.0), 1.0)
        if brake:
            speed = min(speed, max(slow_deg_s, BRAKE_PER_S * left))
        return min(1.0, speed * self.tick_s / max(left, 1e-9))
