"""Opening a LeRobot v3 dataset for training: one of ours, or anybody's with the same cameras, joints and rate.

In: a dataset directory. Out: `DemoDataset`: its columns of numbers in memory (50 bytes a frame), where its pictures
lie, and how it was recorded if it says so; or an error that names what is different and what helps. Which frames are
used, and decoding their pictures, is `dataset`.

Read are parquet files only: pictures must be stored as images, not as video. The unit of joints is taken on trust
(degrees), since no dataset states it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla_rl.errors import ConfigError, IntegrityError, UsageError
from vla_rl.policy.normalise import JOINTS
from vla_rl.seeds import is_open
from vla_rl.sft import lerobot
from vla_rl.sft.merge import OWN_META
from vla_rl.sft.shards import STAGING

RE_RECORD = "record demonstrations with `vla-rl demos`"


@dataclass(frozen=True)
class DemoDataset:
    """A dataset of N frames.

    Attributes:
        root: its directory.
        files: data files, in order.
        tasks: its instructions.
        state_deg, action_deg: float32 [N, 6], joints in the order of `JOINTS`.
        taught_N: bool [N]; True everywhere if the dataset does not say.
        episode_N: int64 [N], ascending.
        seeds: environment seeds of its episodes, empty if it does not say.
        seed_N: int64 [N], the seed of every frame, or None.
        recipe: how `vla-rl demos` has recorded it, JSON-able (`DemoRecipe.as_dict`), or None if something else has.
    """

    root: Path
    files: tuple[Path, ...]
    tasks: tuple[str, ...]
    state_deg: np.ndarray
    action_deg: np.ndarray
    taught_N: np.ndarray
    episode_N: np.ndarray
    seeds: tuple[int, ...]
    seed_N: np.ndarray | None
    recipe: dict[str, Any] | None

    def __len__(self) -> int:
        return len(self.episode_N)

    @property
    def scene(self) -> dict[str, Any] | None:
        """`protocol`, `scene_hash` and `look` it was recorded in, or None if it does not say."""
        return self.recipe and {name: self.recipe["scene"][name] for name in ("protocol", "scene_hash", "look")}

    @property
    def task(self) -> str:
        """The only instruction.

        Raises:
            UsageError: there are several.
        """
        if len(self.tasks) != 1:
            raise UsageError(
                f"the dataset has {len(self.tasks)} instructions, and a policy learns one: {', '.join(self.tasks[:3])}",
                where=str(self.root / lerobot.TASKS),
                remedy="say which with task='…'",
            )
        return self.tasks[0]


def open_dataset(root: Path) -> DemoDataset:
    """Read everything but the pictures.

    Raises:
        UsageError: no dataset, an unfinished recording, another format version, rate or camera set, joints that are
            not an SO-101's, or pictures stored as video.
        ConfigError: frames of a seed that is held out.
        IntegrityError: files that cannot be read or do not hold what `info.json` says.
    """
    info = _info(root)
    _check_format(root, info)
    order = {name: _joint_order(root, info["features"], name) for name in (lerobot.STATE, lerobot.ACTION)}
    files = tuple(sorted((root / "data").glob("*/*.parquet")))
    optional = [name for name in ("taught", "seed") if name in info["features"]]
    try:
        parts = [pq.read_table(path, columns=[*order, "episode_index", *optional]) for path in files]
        columns = pa.concat_tables(parts)
        joints = {name: lerobot.joint_values(columns[name], len(JOINTS))[:, picked] for name, picked in order.items()}
        tasks = pq.read_table(root / lerobot.TASKS).to_pydict()
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        what = f"the dataset cannot be read: {error}"
        raise IntegrityError(what, where=str(root), remedy="fetch it again, or " + RE_RECORD) from error
    if len(columns) != info["total_frames"]:
        what = f"info.json tells of {info['total_frames']} frames, the files hold {len(columns)}"
        raise IntegrityError(what, where=str(root), remedy="fetch it again, or " + RE_RECORD)
    seed_N = columns["seed"].to_numpy() if "seed" in optional else None
    seeds = () if seed_N is None else tuple(map(int, np.unique(seed_N)))
    _check_seeds(root, seeds)
    taught = columns["taught"].to_numpy() if "taught" in optional else np.ones(len(columns), bool)
    return DemoDataset(
        root=root,
        files=files,
        tasks=tuple(tasks.get("task") or tasks["__index_level_0__"]),
        state_deg=joints[lerobot.STATE],
        action_deg=joints[lerobot.ACTION],
        taught_N=taught.astype(bool),
        episode_N=columns["episode_index"].to_numpy(),
        seeds=seeds,
        seed_N=seed_N,
        recipe=_recipe(root),
    )


def _info(root: Path) -> dict[str, Any]:
    if (root / lerobot.INFO).is_file():
        try:
            info = json.loads((root / lerobot.INFO).read_text())
            return {name: info[name] for name in ("codebase_version", "fps", "features", "total_frames")}
        except (ValueError, KeyError, TypeError) as error:
            what = f"this is not the info.json of a dataset: {error!r}"
            raise IntegrityError(what, where=str(root / lerobot.INFO), remedy="fetch it again") from error
    what, remedy = "there is no LeRobot dataset here", f"name the directory that holds {lerobot.INFO}, or {RE_RECORD}"
    if (root / STAGING).is_dir():
        what, remedy = "the recording is not finished", f"continue it with vla-rl demos run.resume={root}"
    elif (root / "demos.json").is_file():
        what, remedy = "demonstrations of an older format, which is no longer read", RE_RECORD
    raise UsageError(what, where=str(root), remedy=remedy)


def _check_format(root: Path, info: Mapping[str, Any]) -> None:
    where, version = str(root / lerobot.INFO), str(info["codebase_version"])
    if not version.startswith("v3."):
        raise UsageError(
            f"the dataset is of LeRobot format {version}, not v3.0",
            where=where,
            remedy="convert it with lerobot's convert_dataset_v21_to_v30",
        )
    if info["fps"] != lerobot.FPS:
        raise UsageError(
            f"the dataset has {info['fps']} frames a second; a policy acts {lerobot.FPS} times",
            where=where,
            remedy=f"resample it to {lerobot.FPS} Hz",
        )
    features = info["features"]
    cameras = [name for name, feature in features.items() if feature["dtype"] in ("image", "video")]
    for name in lerobot.PICTURES:
        if name not in features:
            raise UsageError(
                f"the dataset has no {name}; its cameras are {', '.join(cameras) or 'none'}",
                where=where,
                remedy=f"rename two of its cameras to {' and '.join(lerobot.PICTURES)}",
            )
        if features[name]["dtype"] == "video":
            raise UsageError(
                f"{name} is stored as video, and videos are not read",
                where=where,
                remedy="record it with lerobot and use_videos=False, or copy it frame by frame into such a dataset",
            )


def _joint_order(root: Path, features: Mapping[str, Any], column: str) -> list[int]:
    """Positions of the six joints in a column of the dataset."""
    if column not in features:
        raise UsageError(f"the dataset has no {column}", where=str(root / lerobot.INFO), remedy="it cannot be learned")
    names = features[column].get("names")
    while isinstance(names, Mapping):  # older recordings say {"motors": [...]}
        names = next(iter(names.values()), None)
    plain = [str(name).removeprefix("main_").removesuffix(".pos") for name in names or ()]
    if sorted(plain) != sorted(JOINTS):
        raise UsageError(
            f"the entries of {column} are named {plain or 'nothing'}, which is not the six joints of an SO-101",
            where=str(root / lerobot.INFO),
            remedy=f"its names must be {', '.join(JOINTS)}, in any order",
        )
    return [plain.index(joint) for joint in JOINTS]


def _check_seeds(root: Path, seeds: Sequence[int]) -> None:
    """A state that policies are judged on must not be learned from, wherever the dataset comes from."""
    held_out = [seed for seed in seeds if not any(is_open(seed, use) for use in ("demos", "train"))]
    if held_out:
        raise ConfigError(
            f"the dataset holds frames of seed {held_out[0]}, which is open neither to demonstrations nor to training",
            where=str(root),
            remedy="leave those episodes out; README.md lists the seed bands",
        )


def _recipe(root: Path) -> dict[str, Any] | None:
    own = root / OWN_META
    if not own.is_file():
        return None
    try:
        recipe = json.loads(own.read_text())["recipe"]
        for name in ("protocol", "scene_hash", "look", "image_px"):
            recipe["scene"][name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"this does not say how the dataset was recorded: {error!r}"
        raise IntegrityError(what, where=str(own), remedy="fetch it again, or " + RE_RECORD) from error
    return recipe
