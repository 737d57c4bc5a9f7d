"""Staging: what a recording that is under way has on disk.

In: the recorded episodes of a block of jobs. Out: `staging/shard_00000.parquet` (one row group an episode) and
`shard_00000.json` (the outcome of every job, and per kept episode what the dataset says about it). What a shard holds
depends on the recipe alone. The JSON file is renamed into place last, so a shard is complete or does not exist, however
its recorder ended. `merge` makes the dataset of them and removes the directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vla_rl.errors import IntegrityError
from vla_rl.files import write_atomic
from vla_rl.rollout.jsonl import dump_json
from vla_rl.sft import lerobot
from vla_rl.sft.recording import RecordedEpisode, episode_table

STAGING = "staging"


def shard_paths(directory: Path, index: int) -> tuple[Path, Path]:
    """(rows, outcome) files of a shard of the recording in `directory`; the second marks it complete."""
    stem = directory / STAGING / f"shard_{index:05d}"
    return stem.with_suffix(".parquet"), stem.with_suffix(".json")


def write_shard(
    directory: Path, index: int, episodes: Iterable[RecordedEpisode], schema: pa.Schema, *, success_only: bool
) -> None:
    """Write one shard episode by episode; whatever an interrupted recorder left under its names is replaced."""
    rows_path, outcome_path = shard_paths(directory, index)
    temporary = rows_path.with_name(f".{rows_path.name}.{os.getpid()}.tmp")
    attempts, kept = [], []
    with open(temporary, "wb") as file:
        with parquet_writer(file, schema) as writer:
            for episode in episodes:
                keep = len(episode) > 0 and (episode.failure is None or not success_only)
                attempts.append(_attempt(episode, keep))
                if keep:
                    writer.write_table(episode_table(episode, schema))
                    kept.append(_about(episode))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, rows_path)
    write_atomic(outcome_path, dump_json({"attempts": attempts, "episodes": kept}).encode())


def read_outcome(directory: Path, index: int) -> dict[str, Any] | None:
    """`attempts` and `episodes` of a shard, or None if it is not complete."""
    path = shard_paths(directory, index)[1]
    return json.loads(path.read_text()) if path.exists() else None


def open_rows(directory: Path, index: int) -> pq.ParquetFile:
    """The rows of a complete shard, a row group per kept episode.

    Raises:
        IntegrityError: the file is damaged, or disagrees with the outcome.
    """
    rows_path, outcome_path = shard_paths(directory, index)
    lengths = [episode["length"] for episode in json.loads(outcome_path.read_text())["episodes"]]
    remedy = f"delete {outcome_path.name} and continue the recording"
    try:
        rows = pq.ParquetFile(rows_path)
        found = [rows.metadata.row_group(i).num_rows for i in range(rows.num_row_groups)]
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"a shard cannot be read: {error}", where=str(rows_path), remedy=remedy) from error
    if found != lengths:
        raise IntegrityError("a shard's files disagree about its episodes", where=str(rows_path), remedy=remedy)
    return rows


def parquet_writer(file: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Settings of all parquet files: dictionaries and statistics only where they are of use, which pictures are not."""
    small: Any = lerobot.scalar_columns(schema)
    return pq.ParquetWriter(file, schema, compression="snappy", use_dictionary=small, write_statistics=small)


def _attempt(episode: RecordedEpisode, keep: bool) -> dict[str, Any]:
    return {
        "seed": episode.seed,
        "draw": episode.draw,
        "step": episode.step,
        "noisy": episode.noisy,
        "missed": episode.missed,
        "kept": keep,
        "failure": episode.failure,
        "ticks": episode.metrics["ticks"],
    }


def _about(episode: RecordedEpisode) -> dict[str, Any]:
    """What `meta/episodes` says about an episode beside its place, and what its picture statistics are made of."""
    return {
        "length": len(episode),
        "taught_frames": int(episode.taught_T.sum()),
        "seed": episode.seed,
        "draw": episode.draw,
        "step": episode.step,
        "noisy": episode.noisy,
        "missed": episode.missed,
        "success": episode.failure is None,
        "histograms": episode.histograms.tolist(),
    }
