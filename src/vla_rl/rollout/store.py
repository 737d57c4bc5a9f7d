"""The row store: one file an episode under `waves/step_NNNN/`, written when the episode ends.

In: an `Episode` and its rows. Out: the same, bit for bit. A file appears whole or not at all, so what a killed wave
leaves are finished episodes, and the resumed wave runs only the others. Left out: when rows may be deleted (the trainer
decides).
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.errors import IntegrityError
from vla_rl.files import write_atomic
from vla_rl.rollout.records import Episode, Row

FORMAT = 3
EPISODES = "seed*.npz"


def wave_dir(run_dir: Path, step: int) -> Path:
    return run_dir / "waves" / f"step_{step:04d}"


def write_episode(directory: Path, step: int, episode: Episode, rows: Sequence[Row]) -> Path:
    """Write one finished episode atomically; frames stay lossless and uncompressed (zlib would cost more than the
    disk).

    Args:
        directory: the wave's directory, made if absent.
        step: the training step, kept in the file.
        episode: the episode; its spec names the file.
        rows: all its rows, by replan; at least one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    meta = {"format": FORMAT, "step": step, "episode": asdict(episode), "policy_digest": rows[0].policy_digest}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8),
        frames=np.stack([row.frames for row in rows]),
        state_deg=np.stack([row.state_deg for row in rows]),
        tokens=np.array([len(row.bins) for row in rows]),
        bins=np.concatenate([row.bins for row in rows]),
        logp=np.concatenate([row.logp for row in rows]),
        legal_packed=np.concatenate([row.legal_packed for row in rows]),
        rng_key=np.array([row.rng_key for row in rows], dtype=np.int64),
    )
    path = directory / f"{episode.spec.episode_id}.npz"
    write_atomic(path, buffer.getvalue())
    return path


def read_episode(path: Path) -> tuple[Episode, tuple[Row, ...]]:
    """The inverse of `write_episode`.

    Raises:
        IntegrityError: the file is damaged or of another format.
    """
    meta, episode, data = _load(path, None)
    ends = np.cumsum(data["tokens"])
    rows = tuple(
        Row(
            spec=episode.spec,
            replan=replan,
            frames=data["frames"][replan],
            state_deg=data["state_deg"][replan],
            bins=data["bins"][start:end],
            logp=data["logp"][start:end],
            legal_packed=data["legal_packed"][start:end],
            rng_key=(int(keys[0]), int(keys[1]), int(keys[2]), int(keys[3])),
            policy_digest=meta["policy_digest"],
        )
        for replan, (start, end, keys) in enumerate(zip(ends - data["tokens"], ends, data["rng_key"], strict=True))
    )
    return episode, rows


def read_metrics(path: Path) -> Episode:
    """A stored episode without its rows, which are not read.

    Raises:
        IntegrityError: the file is damaged or of another format.
    """
    return _load(path, ("meta",))[1]


def stored_waves(run_dir: Path) -> dict[int, Path]:
    """Directories of the waves of which episodes are on disk, by step."""
    found = {int(path.name.removeprefix("step_")): path for path in (run_dir / "waves").glob("step_[0-9]*")}
    return {step: path for step, path in sorted(found.items()) if any(path.glob(EPISODES))}


def read_wave(directory: Path) -> list[tuple[Episode, tuple[Row, ...]]]:
    """All stored episodes of a wave, by episode id; none if the directory is absent."""
    return [read_episode(path) for path in sorted(directory.glob(EPISODES))]


def delete_wave(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def row_bytes(image_px: int, cameras: int, tokens: int, vocabulary: int) -> int:
    """Disk bytes of one row, for the free-space check."""
    return cameras * image_px * image_px * 3 + tokens * (2 + 4 + (vocabulary + 7) // 8) + 200


def _load(path: Path, names: Sequence[str] | None) -> tuple[dict[str, Any], Episode, dict[str, np.ndarray]]:
    """What a file says of itself, its episode, and its arrays: those named, or all."""
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in names or file.files}
        meta = json.loads(data["meta"].tobytes())
        if meta["format"] != FORMAT:
            raise ValueError(f"its format is {meta['format']}, not {FORMAT}")
        return meta, Episode.from_dict(meta["episode"]), data
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise IntegrityError(
            f"a stored episode cannot be read: {error}", where=str(path), remedy="delete the file; it will be run again"
        ) from error
