"""The normalisation tables of a checkpoint, chosen by tag, and what their numbers say about the joint frame.

In: `norm_stats.json` of a release (several tags) or of a twin (one). Out: the tables of one tag, with the words that
the prompt uses for it. The joint frame is read off the state table and compared with what was declared: a table in the
wrong frame moves the arm the wrong way without any other sign, and one whose elbow is 180 degrees off comes from a map
that was applied twice (on the shoulder lift that map is its own inverse, so only the elbow shows it).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.policy.joint_frames import RIG, V21, state_frame
from vla_rl.policy.normalise import FILE_NAME, FORMAT, JOINTS, NORM_MODE, NormStats, QuantileTable
from vla_rl.policy.prompt import CONTROL_MODE, SETUP, Wording
from vla_rl.policy.refusals import JointFrame, TableFormat, UnknownNormTag, UnsupportedFeature

_ELBOW = JOINTS.index("elbow_flex")
# What the elbow of an SO-101 can reach in each frame, with ten degrees to spare on either side.
_ELBOW_RANGE_DEG = {RIG: (-110.0, 110.0), V21: (-20.0, 200.0)}


@dataclass(frozen=True)
class Tables:
    """The tables of one tag.

    Attributes:
        stats: state and action tables, horizon, tag.
        wording: setup and control mode as the prompt states them.
    """

    stats: NormStats
    wording: Wording

    def in_frame(self, frame: str) -> Tables:
        """The same tables, read as angles of another frame."""
        return replace(self, stats=self.stats.in_frame(frame))


def read_tables(directory: Path, *, tag: str | None, file_name: str = FILE_NAME) -> Tables:
    """Read the tables of `tag`, or of the only tag there is.

    Raises:
        UnknownNormTag: no such tag, or several and none was named; lists those present.
        TableFormat: no file, another format, or a table that is not six finite pairs.
        UnsupportedFeature: a joint that the release leaves out of the normalisation.
    """
    path = directory / file_name
    entries = _entries(path)
    chosen = tag if tag is not None else next(iter(entries)) if len(entries) == 1 else None
    if chosen is None or chosen not in entries:
        raise UnknownNormTag(
            f"{'no tag was named' if tag is None else f'there is no tag {tag!r}'} among the tables",
            where=f"{path}, policy.norm_tag",
            remedy=f"tags present: {', '.join(sorted(entries)) or 'none'}",
        )
    entry = entries[chosen]
    try:
        state, action = (_table(entry[key]) for key in ("state_stats", "action_stats"))
        horizon, quantile = int(entry["action_horizon"]), float(entry.get("quantile", 0.01))
        whole = {key: all(entry[key].get("mask", [True])) for key in ("state_stats", "action_stats")}
        wording = Wording(entry.get("setup_type", SETUP), entry.get("control_mode", CONTROL_MODE))
        if not (isinstance(wording.setup, str) and isinstance(wording.control_mode, str)):
            raise TypeError("setup_type and control_mode are words of the prompt")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise TableFormat(f"the tables of tag {chosen} cannot be used: {error!r}", where=str(path)) from error
    for key in (key for key, complete in whole.items() if not complete):
        raise UnsupportedFeature(f"{key} of tag {chosen} leaves joints out of the normalisation", where=str(path))
    return Tables(NormStats(state, action, chosen, quantile, horizon), wording)


def arm_tags(directory: Path, file_name: str = FILE_NAME) -> tuple[str, ...]:
    """The tags of a checkpoint whose tables have this arm's number of joints; a release may hold other robots' too.

    Raises:
        TableFormat: no file, another format, or no such tag.
    """
    path = directory / file_name
    entries = _entries(path)
    try:
        tags = tuple(t for t, entry in entries.items() if len(entry["state_stats"]["q01"]) == len(JOINTS))
    except (KeyError, TypeError) as error:
        raise TableFormat(f"a table cannot be read: {error!r}", where=str(path)) from error
    if not tags:
        raise TableFormat(f"none of the tags {', '.join(entries)} is for {len(JOINTS)} joints", where=str(path))
    return tags


def check_joint_frame(state: QuantileTable, declared: str | None, *, where: str) -> str:
    """The joint frame of a checkpoint's tables.

    Args:
        declared: ``rig`` or ``v21``, or None to go by the table alone.

    Raises:
        JointFrame: the table fits no frame, another one than declared, or angles that the elbow cannot reach in it.
    """
    found = state_frame(state.low_deg, state.high_deg)
    if declared is not None and found not in (None, declared):
        raise JointFrame(f"its state table is in the frame {found}, not {declared}", where=where)
    frame = declared or found
    if frame is None:
        raise JointFrame(
            "its state table fits neither joint frame",
            where=where,
            remedy="policy.joint_frame=rig or v21 states it, if you know; a wrong frame moves the arm the wrong way",
        )
    low, high = sorted((float(state.low_deg[_ELBOW]), float(state.high_deg[_ELBOW])))
    reach = _ELBOW_RANGE_DEG[frame]
    if not reach[0] <= low <= high <= reach[1]:
        raise JointFrame(
            f"its elbow runs from {low:.1f} to {high:.1f} degrees, which the arm cannot reach in the frame {frame}",
            where=where,
            remedy="a joint map was applied twice or left out; rewrite the tables in one frame",
        )
    return frame


def _entries(path: Path) -> dict[str, Any]:
    try:
        payload = json.loads(path.read_text())
        if payload["format"] != FORMAT:
            raise ValueError(f"format {payload['format']!r} is not {FORMAT!r}")
        if (mode := payload.get("norm_mode", "min_max")) != NORM_MODE:  # the default is the release's
            raise ValueError(f"norm_mode {mode!r} is not {NORM_MODE!r}")
        return dict(payload["metadata_by_tag"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise TableFormat(f"no usable normalisation tables: {error}", where=str(path)) from error


def _table(stats: dict[str, Any]) -> QuantileTable:
    low, high = (np.array(stats[key], dtype=np.float64) for key in ("q01", "q99"))
    if low.shape != (len(JOINTS),) or high.shape != low.shape or not np.isfinite([low, high]).all():
        raise ValueError("a quantile table is not six finite pairs")
    return QuantileTable(low, high)
