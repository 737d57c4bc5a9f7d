"""The files under `meta/` of a LeRobot v3.0 dataset: `info.json`, `tasks.parquet` and the rows of `episodes/`.

In: counts, tasks, and what is known of an episode. Out: JSON-able mappings, Arrow schemas and tables. Nothing is
written here (`merge` does that).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from vla_rl.rollout.jsonl import dump_json
from vla_rl.sft import lerobot
from vla_rl.sft.feature_stats import QUANTILES, picture_stats

# What an episode's row says beside LeRobot's own columns.
FACTS = {
    "taught_frames": pa.int64(),
    "seed": pa.int64(),
    "draw": pa.int64(),
    "step": pa.int64(),
    "noisy": pa.bool_(),
    "missed": pa.bool_(),
    "success": pa.bool_(),
}


def info(features: dict[str, Any], *, episodes: int, frames: int, file_mb: float) -> dict[str, Any]:
    """`meta/info.json` of a dataset with one task."""
    return {
        "codebase_version": lerobot.VERSION,
        "robot_type": lerobot.ROBOT,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": 1,
        "chunks_size": lerobot.FILES_PER_CHUNK,
        "data_files_size_in_mb": max(1, round(file_mb)),
        "video_files_size_in_mb": 200,
        "fps": lerobot.FPS,
        "splits": {"train": f"0:{episodes}"},
        "data_path": lerobot.DATA_PATH,
        "video_path": None,
        "features": features,
    }


def tasks_table(task: str) -> pa.Table:
    """`meta/tasks.parquet` as pandas writes a frame that is indexed by the task, since LeRobot reads it with pandas."""
    kinds = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, (kind, numpy) in kinds.items()
    ]
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": columns,
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    schema = pa.schema([("task_index", pa.int64()), ("task", pa.string())], metadata={"pandas": dump_json(pandas)})
    return pa.table([pa.array([0], pa.int64()), pa.array([task])], schema=schema)


def episode_schema(features: dict[str, Any]) -> pa.Schema:
    """The schema of `meta/episodes`."""
    whole = pa.int64()
    columns: dict[str, pa.DataType] = {"episode_index": whole, "tasks": pa.list_(pa.string()), "length": whole}
    places = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
    columns |= dict.fromkeys(places, whole) | FACTS
    for feature, description in features.items():
        value = pa.list_(pa.float64())
        if description["dtype"] == "image":
            value = pa.list_(pa.list_(value))
        names = ("min", "max", "mean", "std", *QUANTILES)
        columns |= {f"stats/{feature}/count": pa.list_(whole)} | {f"stats/{feature}/{name}": value for name in names}
    columns |= dict.fromkeys(("meta/episodes/chunk_index", "meta/episodes/file_index"), whole)
    return pa.schema(list(columns.items()))


def episode_row(
    about: dict[str, Any], stats: dict[str, Any], *, index: int, first: int, task: str, place: tuple[int, int]
) -> dict[str, Any]:
    """One row of `meta/episodes`, but for its own place among the files.

    Args:
        about: `length`, `histograms` and the `FACTS` of the episode.
        stats: statistics of its columns of numbers, by feature.
        index, first: index of the episode and of its first frame in the dataset.
        place: (chunk, file) of its data.
    """
    histograms = np.array(about["histograms"], np.int64)
    pictures = {name: picture_stats(h, about["length"]) for name, h in zip(lerobot.PICTURES, histograms, strict=True)}
    columns = {f"stats/{f}/{name}": value for f, values in (pictures | stats).items() for name, value in values.items()}
    return {
        "episode_index": index,
        "tasks": [task],
        "length": about["length"],
        "data/chunk_index": place[0],
        "data/file_index": place[1],
        "dataset_from_index": first,
        "dataset_to_index": first + about["length"],
        **{name: about[name] for name in FACTS},
        **columns,
    }
