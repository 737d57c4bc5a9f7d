"""Joint order and units: degrees outside, radians inside MuJoCo.

In and out: arrays whose last axis is the six joints. The frame is LeRobot v3 (zero at mid range), in which MuJoCo's
SO-101 angles are the same numbers; the gripper is in degrees too (-10 closed, 100 open). Older frames are not converted
here.
"""

from __future__ import annotations

import numpy as np

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
CAMERAS = ("top", "wrist")


def to_radians(degrees: np.ndarray) -> np.ndarray:
    """Degrees (LeRobot v3) to MuJoCo joint positions; shape [..., 6]."""
    return np.deg2rad(np.asarray(degrees, dtype=np.float64))


def to_degrees(radians: np.ndarray) -> np.ndarray:
    """MuJoCo joint positions to degrees (LeRobot v3); shape [..., 6]."""
    return np.rad2deg(np.asarray(radians, dtype=np.float64))
