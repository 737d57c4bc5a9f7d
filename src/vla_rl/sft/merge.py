"""From complete shards to one LeRobot v3.0 dataset: episodes in order, global indices, statistics, files of ~100 MB.

In: the staging directory of a recording. Out: `data/`, `meta/` as LeRobot lays them out, and `meta/vla_rl.json` (scene,
counts, recipe). In memory are one episode, a hundred rows of `meta/episodes` and, for the statistics over everything,
one column of numbers (24 bytes a frame). All is written under `staging/` first and renamed into place, `meta/` last: a
dataset is complete or not there, and a merge that was killed starts again from the shards.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla_rl.config.demonstrations import OWN_META
from vla_rl.files import fsync_path, write_atomic
from vla_rl.policy.normalise import JOINTS
from vla_rl.rollout.jsonl import dump_json
from vla_rl.sft import lerobot, lerobot_meta
from vla_rl.sft.feature_stats import picture_stats, vector_stats
from vla_rl.sft.recipe import FORMAT, DemoRecipe
from vla_rl.sft.shards import STAGING, open_rows, parquet_writer, read_outcome

_EPISODES_PER_TABLE = 100


def is_merged(directory: Path) -> bool:
    """Whether a complete dataset of ours lies in `directory`."""
    return (directory / OWN_META).exists()


def clear_staging(directory: Path) -> None:
    """Remove the shards; what is left of a process that was killed right after its merge, too."""
    shutil.rmtree(directory / STAGING, ignore_errors=True)


def merge(
    directory: Path,
    recipe: DemoRecipe,
    counts: dict[str, Any],
    *,
    file_mb: float = lerobot.FILE_MB,
    on_episode: Callable[[int], None] = lambda done: None,
) -> None:
    """Make the dataset of a recording whose shards are all complete; the shards are removed.

    Args:
        directory: the recording; it becomes the dataset's root.
        recipe: how it was made.
        counts: what `meta/vla_rl.json` says about attempts.
        file_mb: files are closed before they grow larger (one episode always fits).
        on_episode: told how many episodes are in place.

    Raises:
        IntegrityError: a shard is damaged.
    """
    root = directory / STAGING / "dataset"
    for leftover in (root, directory / "data"):  # of a merge that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    features = lerobot.features(recipe.scene["image_px"])
    merger = _Merger(root, features, recipe.task, file_mb)
    for shard in range(len(recipe.shards())):
        outcome = read_outcome(directory, shard)
        assert outcome is not None
        with open_rows(directory, shard) as rows:
            for group, about in enumerate(outcome["episodes"]):
                merger.add(rows.read_row_group(group), about)
                on_episode(merger.episodes)
    merger.close()
    own = {"format": FORMAT, "counts": counts, "recipe": recipe.as_dict()}
    write_atomic(root / OWN_META, (dump_json(own, indent=1) + "\n").encode())
    for name in ("data", "meta"):  # the last one says that the dataset is complete
        os.replace(root / name, directory / name)
        fsync_path(directory)
    clear_staging(directory)


class BoundedFiles:
    """Tables appended to ``chunk-000/file-000.parquet`` and its successors, none much larger than a limit.

    Args:
        root: the dataset's root.
        pattern: file path with `chunk_index` and `file_index`.
        limit_mb: a file is closed before a table that would take it beyond this.
    """

    def __init__(self, root: Path, pattern: str, schema: pa.Schema, limit_mb: float) -> None:
        self._root, self._pattern, self._schema, self._limit = root, pattern, schema, limit_mb * 2**20
        self._file: BinaryIO | None = None
        self._writer: pq.ParquetWriter | None = None
        self._number, self._tables = -1, 0

    def place(self, table_bytes: int) -> tuple[int, int]:
        """(chunk, file) that the next table will go to; opens that file."""
        if self._file is None or (self._tables and self._file.tell() + table_bytes > self._limit):
            self.close()
            self._number, self._tables = self._number + 1, 0
            chunk, file = divmod(self._number, lerobot.FILES_PER_CHUNK)
            path = self._root / self._pattern.format(chunk_index=chunk, file_index=file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "wb")
            self._writer = parquet_writer(self._file, self._schema)
        return divmod(self._number, lerobot.FILES_PER_CHUNK)

    def write(self, table: pa.Table) -> None:
        """Append a table as one row group to the file that `place` has named."""
        assert self._writer is not None
        self._writer.write_table(table, row_group_size=len(table))
        self._tables += 1

    def close(self) -> None:
        """Finish the open file durably."""
        if self._file is not None and self._writer is not None:
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = self._writer = None


class _Merger:
    """Appends episodes to a dataset under `root`; `close` writes what can be said only at the end."""

    def __init__(self, root: Path, features: dict[str, Any], task: str, file_mb: float) -> None:
        self._root, self._features, self._task, self._file_mb = root, features, task, file_mb
        self._data = BoundedFiles(root, lerobot.DATA_PATH, lerobot.data_schema(features), file_mb)
        self._schema = lerobot_meta.episode_schema(features)
        self._meta = BoundedFiles(root, lerobot.EPISODES_PATH, self._schema, file_mb)
        self._rows: list[dict[str, Any]] = []
        self._histograms = np.zeros((len(lerobot.PICTURES), 3, 256), np.int64)
        self.episodes = self.frames = 0

    def add(self, rows: pa.Table, about: dict[str, Any]) -> None:
        """Append an episode: its rows get their places in the whole."""
        table = _globally_indexed(rows, episode=self.episodes, first=self.frames)
        place = self._data.place(table.nbytes)
        self._data.write(table)
        stats = {name: vector_stats(_numbers(table.column(name), feature)) for name, feature in self._numeric()}
        self._rows.append(
            lerobot_meta.episode_row(about, stats, index=self.episodes, first=self.frames, task=self._task, place=place)
        )
        self._histograms += np.array(about["histograms"], np.int64)
        self.episodes, self.frames = self.episodes + 1, self.frames + len(table)
        if len(self._rows) == _EPISODES_PER_TABLE:
            self._write_rows()

    def close(self) -> None:
        """Finish the files and write `info.json`, `stats.json` and the task."""
        if self._rows:
            self._write_rows()
        self._data.close()
        self._meta.close()
        info = lerobot_meta.info(self._features, episodes=self.episodes, frames=self.frames, file_mb=self._file_mb)
        for path, value in ((lerobot.INFO, info), (lerobot.STATS, self._stats())):
            write_atomic(self._root / path, (dump_json(value, indent=1) + "\n").encode())
        pq.write_table(lerobot_meta.tasks_table(self._task), self._root / lerobot.TASKS)

    def _numeric(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, feature) for name, feature in self._features.items() if feature["dtype"] != "image"]

    def _write_rows(self) -> None:
        """A row says in which file it lies itself, so the place is asked for first (it changes no size)."""
        place = (0, 0)
        for _ in range(2):
            columns = {"meta/episodes/chunk_index": place[0], "meta/episodes/file_index": place[1]}
            table = pa.Table.from_pylist([row | columns for row in self._rows], schema=self._schema)
            place = self._meta.place(table.nbytes)
        self._meta.write(table)
        self._rows = []

    def _stats(self) -> dict[str, Any]:
        """Exact statistics over all frames; every column of numbers is read once more, alone."""
        paths = sorted(self._root.glob("data/*/*.parquet"))
        pictures = zip(lerobot.PICTURES, self._histograms, strict=True)
        stats = {name: picture_stats(histogram, self.frames) for name, histogram in pictures}
        for name, feature in self._numeric():
            parts = (pq.ParquetFile(path).read(columns=[name]).column(name) for path in paths)
            stats[name] = vector_stats(np.concatenate([_numbers(part, feature) for part in parts]))
        return stats


def _globally_indexed(table: pa.Table, *, episode: int, first: int) -> pa.Table:
    columns = {
        "episode_index": np.full(len(table), episode, np.int64),
        "index": np.arange(first, first + len(table), dtype=np.int64),
    }
    for name, values in columns.items():
        position = table.schema.get_field_index(name)
        table = table.set_column(position, table.schema.field(position), pa.array(values))
    return table


def _numbers(column: pa.ChunkedArray, feature: dict[str, Any]) -> np.ndarray:
    """[N, D] values of a column of numbers or truth values."""
    if feature["shape"] != [1]:
        return lerobot.joint_values(column, len(JOINTS))
    return column.to_numpy()[:, None]
