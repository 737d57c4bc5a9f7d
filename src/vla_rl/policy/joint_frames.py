"""The two conventions for SO-101 joint angles, and the one place where angles pass from one to the other.

In: angles with the name of their frame. Out: the same in another frame. ``rig`` is LeRobot v3.0 (zero at mid range),
which the simulator, demonstrations and everything else in this package use. ``v21`` is LeRobot v2.1 (zero with the arm
stretched out horizontally), which released tables are in. Degrees in both:

    lift_v21 = 90 - lift_rig        elbow_v21 = elbow_rig + 90        other joints alike

On the lift the map is its own inverse, so applying it twice shows on the elbow alone, which ends 180 degrees off. That
cannot happen to `Angles`: they carry their frame, and asking for the frame that they are in changes nothing. A
`QuantileTable` carries its frame too and maps what it is given. Not to be mixed up: ``so101_old_calib.xml`` of the
robot's makers is neither of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

RIG, V21 = "rig", "v21"
FRAMES = (RIG, V21)
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
_LIFT, _ELBOW = JOINTS.index("shoulder_lift"), JOINTS.index("elbow_flex")
_SIGNS = (1.0, -1.0, 1.0, 1.0, 1.0, 1.0)
_OFFSETS_DEG = (0.0, 90.0, 90.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Angles[Values: (np.ndarray, Tensor)]:
    """Joint angles that know their frame.

    Attributes:
        degrees: [..., 6].
        frame: ``rig`` or ``v21``.
    """

    degrees: Values
    frame: str

    def __post_init__(self) -> None:
        if self.frame not in FRAMES:
            raise ValueError(f"{self.frame!r} is no joint frame: {', '.join(FRAMES)}")

    def to(self, frame: str) -> Angles[Values]:
        """The same angles in `frame`; these very ones if they are in it already."""
        if frame == self.frame:
            return self
        if frame not in FRAMES or self.degrees.shape[-1:] != (len(JOINTS),):
            raise ValueError(f"angles of shape {tuple(self.degrees.shape)} have no form in {frame!r}")
        signs, offsets = (self._like(values) for values in (_SIGNS, _OFFSETS_DEG))
        mapped = signs * self.degrees + offsets if frame == V21 else signs * (self.degrees - offsets)
        return Angles(mapped, frame)

    def _like(self, values: Sequence[float]) -> Any:
        degrees = self.degrees
        return np.array(values) if isinstance(degrees, np.ndarray) else degrees.new_tensor(values)


def state_frame(low_deg: np.ndarray, high_deg: np.ndarray) -> str | None:
    """The frame of a state table by its shoulder lift, or None if that does not tell.

    A descending lift is a released table that was mapped to the rig's frame; else a lift that never goes below +30
    degrees, with an elbow that fits, is v21's, and one that goes below -30 the rig's.

    Args:
        low_deg, high_deg: the 1 % and 99 % quantiles of measured angles, [6].
    """
    lift, elbow = ((low_deg[joint], high_deg[joint]) for joint in (_LIFT, _ELBOW))
    if lift[0] > lift[1]:
        return RIG
    if lift[0] >= 30.0 and elbow[0] >= 25.0 and elbow[1] >= 130.0:
        return V21
    return RIG if lift[0] <= -30.0 else None
