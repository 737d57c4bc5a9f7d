"""Quantile normalisation of joint states and action targets, each with its own table.

In: degrees. Out: values in [-1, 1] and back. The two tables (`low`, `high`) are the 1 % and 99 % quantiles in a
release and may be wider quantiles in a base of ours; the file names both. Joint-frame changes (signs, offsets) are
not done here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.errors import ConfigError

FILE_NAME = "norm_stats.json"
FORMAT = "molmoact2_norm_stats.v1"
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


@dataclass(frozen=True)
class QuantileTable:
    """Per-joint quantiles in degrees; `high` may lie below `low` (a flipped joint) or on it (one that never moves)."""

    low_deg: np.ndarray
    high_deg: np.ndarray

    @classmethod
    def fit(cls, values_deg: np.ndarray, quantile: float) -> QuantileTable:
        """Tables at `quantile` and ``1 - quantile`` of values [sample, joint] in degrees."""
        low, high = np.quantile(np.asarray(values_deg, dtype=np.float64), [quantile, 1.0 - quantile], axis=0)
        return cls(low, high)

    def normalise(self, values_deg: np.ndarray) -> np.ndarray:
        """``2 (x - low) / (high - low) - 1`` clamped to [-1, 1]; 0 where the table has no width. nan stays nan."""
        width = self.high_deg - self.low_deg
        safe = np.where(width == 0.0, 1.0, width)
        scaled = 2.0 * (np.asarray(values_deg, dtype=np.float64) - self.low_deg) / safe - 1.0
        return np.where(width == 0.0, 0.0, np.clip(scaled, -1.0, 1.0))

    def denormalise(self, values: np.ndarray) -> np.ndarray:
        """The inverse on [-1, 1], in degrees; values outside are clamped first."""
        return (np.clip(np.asarray(values, dtype=np.float64), -1.0, 1.0) + 1.0) / 2.0 * (
            self.high_deg - self.low_deg
        ) + self.low_deg


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

    @classmethod
    def fit(
        cls, state_deg: np.ndarray, action_deg: np.ndarray, *, tag: str, quantile: float, horizon: int
    ) -> NormStats:
        """Fit both tables on [sample, joint] arrays in degrees."""
        return cls(
            QuantileTable.fit(state_deg, quantile), QuantileTable.fit(action_deg, quantile), tag, quantile, horizon
        )

    def save(self, directory: Path) -> None:
        """Write `norm_stats.json` in the release's format."""
        entry = {
            "action_key": "action", "state_key": "observation.state", "camera_keys": [], "normalize_gripper": True,
            "action_dim": len(JOINTS), "action_horizon": self.horizon, "n_action_steps": self.horizon,
            "setup_type": "single so100/so101 robotic arm in molmoact2", "control_mode": "absolute joint pose",
            "quantile": self.quantile, "state_stats": _stats(self.state), "action_stats": _stats(self.action),
        }  # fmt: skip
        payload = {"format": FORMAT, "norm_mode": "q01_q99", "metadata_by_tag": {self.tag: entry}}
        (directory / FILE_NAME).write_text(json.dumps(payload, indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> NormStats:
        """Read the file's only tag.

        Raises:
            ConfigError: no file, another format, several tags, or a table that is not six finite pairs.
        """
        path = directory / FILE_NAME
        try:
            payload = json.loads(path.read_text())
            ((tag, entry),) = payload["metadata_by_tag"].items()
            tables = [_table(entry[key]) for key in ("state_stats", "action_stats")]
            if payload["format"] != FORMAT:
                raise ValueError(f"format {payload['format']!r}")
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"no usable normalisation table: {error}", where=str(path)) from error
        return cls(*tables, tag=tag, quantile=float(entry.get("quantile", 0.01)), horizon=int(entry["action_horizon"]))


def _stats(table: QuantileTable) -> dict[str, Any]:
    return {
        "q01": table.low_deg.tolist(),
        "q99": table.high_deg.tolist(),
        "mask": [True] * len(JOINTS),
        "names": list(JOINTS),
    }


def _table(stats: dict[str, Any]) -> QuantileTable:
    low, high = (np.array(stats[key], dtype=np.float64) for key in ("q01", "q99"))
    if low.shape != (len(JOINTS),) or high.shape != low.shape or not np.isfinite([low, high]).all():
        raise ValueError("a quantile table is not six finite numbers")
    return QuantileTable(low, high)
