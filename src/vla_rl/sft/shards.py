"""How demonstrations lie on disk: one recipe file and, per block of seeds, three shard files.

In: rows of recorded episodes. Out: files, and back. A shard is a fixed block of consecutive seeds of the recipe, so
what it holds does not depend on how many processes recorded it; its JSON file is renamed into place last, so a shard
either is complete or does not exist. Recording (`demos`) and training tensors (`dataset`) are elsewhere.

Directory: `demos.json` (recipe), `shard_00000.frames.npy` (uint8 [row, camera, height, width, 3]),
`shard_00000.rows.npz` (state_deg float64 [row, 6], targets_deg float32 [row, 30, 6], seed int64 [row], tick int32
[row]) and `shard_00000.json` (outcome of every attempted seed).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np

from vla_rl.errors import IntegrityError, UsageError
from vla_rl.rl.rundir import CONFIG
from vla_rl.rollout.files import dump_json, write_atomic
from vla_rl.seeds import format_seeds, parse_seeds

RECIPE_FILE = "demos.json"
FORMAT = "vla_rl.demos.v1"


@dataclass(frozen=True)
class DemoRecipe:
    """Everything that decides what a demonstration directory holds.

    Attributes:
        env: environment node (`_target_` and its keys).
        seeds: attempted spawn seeds, as seed text.
        shard_seeds: seeds per shard.
        record_every: ticks between recorded rows.
        noise_share, miss_share: shares of noisy episodes and of episodes with a deliberate miss.
        scene_hash: digest of physics and pictures, from the environment.
    """

    env: dict[str, Any]
    seeds: str
    shard_seeds: int
    record_every: int
    noise_share: float
    miss_share: float
    scene_hash: str

    @property
    def chunk_ticks(self) -> int:
        """Ticks of a target chunk."""
        return int(self.env["chunk_ticks"])

    def shards(self) -> list[tuple[int, ...]]:
        """The seeds of each shard, in order."""
        seeds = parse_seeds(self.seeds)
        return [seeds[i : i + self.shard_seeds] for i in range(0, len(seeds), self.shard_seeds)]


@dataclass(frozen=True)
class DemoRows:
    """Rows of one shard or one episode (shapes in the module docstring)."""

    frames: np.ndarray
    state_deg: np.ndarray
    targets_deg: np.ndarray
    seed: np.ndarray
    tick: np.ndarray

    def __len__(self) -> int:
        return len(self.seed)


def make_recipe(*, env: dict[str, Any], seeds: tuple[int, ...], **rest: Any) -> DemoRecipe:
    """A recipe from checked seeds and plain values (a JSON round trip, so that it equals what is read back)."""
    return DemoRecipe(env=json.loads(json.dumps(env)), seeds=format_seeds(seeds), **rest)


def write_recipe(directory: Path, recipe: DemoRecipe) -> None:
    """Write the recipe, or check that the directory was made with the same one.

    Raises:
        UsageError: the directory holds another recipe's demonstrations, or other files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / RECIPE_FILE).exists():
        stored = read_recipe(directory)
        changed = [k for k, v in asdict(recipe).items() if asdict(stored)[k] != v]
        if changed:
            raise UsageError(
                f"the directory holds demonstrations of another recipe (differs in {', '.join(changed)})",
                where=str(directory),
                remedy="record into a new directory, or repeat the recipe in its demos.json to continue it",
            )
        return
    if any(entry.name != CONFIG for entry in directory.iterdir()):
        raise UsageError(
            "the directory is not empty and holds no demonstrations", where=str(directory), remedy="name a new one"
        )
    write_json(directory / RECIPE_FILE, {"format": FORMAT, **asdict(recipe)})


def read_recipe(directory: Path) -> DemoRecipe:
    """The recipe of a demonstration directory.

    Raises:
        UsageError: there is none.
        IntegrityError: it is of another format.
    """
    path = directory / RECIPE_FILE
    if not path.is_file():
        raise UsageError(
            "no demonstrations here (demos.json is missing)",
            where=str(directory),
            remedy="record them with `vla-rl demos`",
        )
    stored = json.loads(path.read_text())
    if stored.pop("format", None) != FORMAT:
        raise IntegrityError("unknown demonstration format", where=str(path), remedy="record the demonstrations again")
    return DemoRecipe(**stored)


def shard_paths(directory: Path, index: int) -> tuple[Path, Path, Path]:
    """(frames, rows, outcome) files of a shard; the outcome file is the one that marks it complete."""
    stem = directory / f"shard_{index:05d}"
    return stem.with_suffix(".frames.npy"), stem.with_suffix(".rows.npz"), stem.with_suffix(".json")


def write_shard(directory: Path, index: int, rows: DemoRows, attempts: list[dict[str, Any]]) -> None:
    """Write one shard; whatever an interrupted recorder left under its names is replaced."""
    frames_path, rows_path, outcome_path = shard_paths(directory, index)
    _save_bulk(frames_path, lambda file: np.save(file, rows.frames))
    state, targets, seed, tick = rows.state_deg, rows.targets_deg, rows.seed, rows.tick
    _save_bulk(rows_path, lambda file: np.savez(file, state_deg=state, targets_deg=targets, seed=seed, tick=tick))
    write_json(outcome_path, {"rows": len(rows), "attempts": attempts})


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically and durably."""
    write_atomic(path, (dump_json(value, indent=1) + "\n").encode())


def read_shard(directory: Path, index: int) -> DemoRows:
    """A complete shard, its frames memory-mapped.

    Raises:
        IntegrityError: a file is damaged, or the files disagree about the number of rows.
    """
    frames_path, rows_path, outcome_path = shard_paths(directory, index)
    expected = json.loads(outcome_path.read_text())["rows"]
    remedy = f"delete {outcome_path.name} and continue the recording"
    try:
        frames = np.load(frames_path, mmap_mode="r" if expected else None)
        with np.load(rows_path) as stored:
            rows = DemoRows(frames, stored["state_deg"], stored["targets_deg"], stored["seed"], stored["tick"])
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise IntegrityError(f"a shard cannot be read: {error}", where=str(outcome_path), remedy=remedy) from error
    if not len(frames) == len(rows) == len(rows.state_deg) == len(rows.targets_deg) == expected:
        raise IntegrityError("a shard's files disagree about its rows", where=str(outcome_path), remedy=remedy)
    return rows


def _save_bulk(path: Path, save: Callable[[BinaryIO], None]) -> None:
    """Write a temporary file and rename it, without an fsync: a killed process loses nothing by that, and a machine
    that goes down costs one shard, which `read_shard` notices."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        save(file)
    os.replace(temporary, path)
