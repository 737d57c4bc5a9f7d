"""Quantile normalisation of joint states and action targets, each with its own table.

In: degrees. Out: values in [-1, 1] and back. The two tables (`low`, `high`) are the 1 % and 99 % quantiles in a
release and may be wider quantiles in a base of ours; the file names both. They are exact quantiles over all frames: an
average of several datasets' quantiles can lie where no data are. A table knows its joint frame
(`vla_rl.policy.joint_frames`) and brings angles into it, once; whoever uses it handles angles of the rig only. One
`NormStats` is saved with a checkpoint and used by fine-tuning, serving and replay alike.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.policy.joint_frames import JOINTS, RIG, Angles
from vla_rl.policy.prompt import SO101, Wording

FILE_NAME = "norm_stats.json"
FORMAT = "molmoact2_norm_stats.v1"
NORM_MODE = "q01_q99"


@dataclass(frozen=True)
class QuantileTable:
    """Per-joint quantiles in degrees of the table's own frame.

    `high` may lie below `low` (a flipped joint: values are clamped when they are normalised, not before) or on it (a
    joint that never moves).
    """

    low_deg: np.ndarray
    high_deg: np.ndarray
    frame: str = RIG

    @classmethod
    def fit(cls, values_deg: np.ndarray, quantile: float) -> QuantileTable:
        """Tables at `quantile` and ``1 - quantile`` of values [sample, joint] in degrees of the rig, every sample
        counting the same."""
        low, high = np.quantile(np.asarray(values_deg, dtype=np.float64), [quantile, 1.0 - quantile], axis=0)
        return cls(low, high)

    def normalise(self, values: np.ndarray | Angles[np.ndarray]) -> np.ndarray:
        """``2 (x - low) / (high - low) - 1`` clamped to [-1, 1]; 0 where the table has no width. nan stays nan.

        Args:
            values: [..., joint], either plain degrees of the rig or angles in any frame.
        """
        angles = values if isinstance(values, Angles) else Angles(np.asarray(values, dtype=np.float64), RIG)
        width = self.high_deg - self.low_deg
        safe = np.where(width == 0.0, 1.0, width)
        scaled = 2.0 * (angles.to(self.frame).degrees - self.low_deg) / safe - 1.0
        return np.where(width == 0.0, 0.0, np.clip(scaled, -1.0, 1.0))

    def denormalise(self, values: np.ndarray) -> np.ndarray:
        """The inverse on [-1, 1], in degrees of the rig; values outside are clamped first."""
        clamped = np.clip(np.asarray(values, dtype=np.float64), -1.0, 1.0)
        degrees = (clamped + 1.0) / 2.0 * (self.high_deg - self.low_deg) + self.low_deg
        return Angles(degrees, self.frame).to(RIG).degrees


@dataclass(frozen=True)
class NormStats:
    """The state table, the action table and the data they came from.

    Attributes:
        tag: name of the embodiment and task in the file.
        quantile: the quantile of both tables, e.g. 0.001.
        horizon: ticks of an action chunk.
    """

    state: QuantileTable
    action: QuantileTable
    tag: str
    quantile: float
    horizon: int

    def __post_init__(self) -> None:
        if self.state.frame != self.action.frame:
            raise ValueError("state and action tables are in different joint frames")

    @property
    def frame(self) -> str:
        """The joint frame of both tables."""
        return self.state.frame

    def facts(self) -> tuple[np.ndarray | str, ...]:
        """What the tables do to angles: float64 [joint] quantiles and the joint frame."""
        tables = (self.state.low_deg, self.state.high_deg, self.action.low_deg, self.action.high_deg)
        return (*(np.asarray(table, dtype=np.float64) for table in tables), self.frame)

    def in_frame(self, frame: str) -> NormStats:
        """The same numbers, read as angles of another frame."""
        return replace(self, state=replace(self.state, frame=frame), action=replace(self.action, frame=frame))

    @classmethod
    def fit(
        cls, state_deg: np.ndarray, action_deg: np.ndarray, *, tag: str, quantile: float, horizon: int
    ) -> NormStats:
        """Fit both tables on [sample, joint] arrays in degrees."""
        return cls(
            QuantileTable.fit(state_deg, quantile), QuantileTable.fit(action_deg, quantile), tag, quantile, horizon
        )

    def save(self, directory: Path, wording: Wording = SO101) -> None:
        """Write `norm_stats.json` in the release's format, which holds the prompt's words too."""
        entry = {
            "action_key": "action", "state_key": "observation.state", "camera_keys": [], "normalize_gripper": True,
            "action_dim": len(JOINTS), "action_horizon": self.horizon, "n_action_steps": self.horizon,
            "setup_type": wording.setup, "control_mode": wording.control_mode,
            "quantile": self.quantile, "state_stats": _stats(self.state), "action_stats": _stats(self.action),
        }  # fmt: skip
        payload = {"format": FORMAT, "norm_mode": NORM_MODE, "metadata_by_tag": {self.tag: entry}}
        (directory / FILE_NAME).write_text(json.dumps(payload, indent=2) + "\n")


def _stats(table: QuantileTable) -> dict[str, Any]:
    return {
        "q01": table.low_deg.tolist(),
        "q99": table.high_deg.tolist(),
        "mask": [True] * len(JOINTS),
        "names": list(JOINTS),
    }
