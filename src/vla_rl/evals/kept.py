"""Finished episodes of an evaluation that is still under way: one file each, so that a stopped one goes on.

In: episodes as they end, with what else has to survive (three looks, the chunks). Out: the same, bit for bit. A file
appears whole or not at all; what a kill or a time limit costs are the episodes in flight. The files hold outcomes: they
are for the program that goes on, nothing prints them before the last episode has ended. Left out: replay rows, which
a training wave keeps (`rollout.store`) and which are a hundred times as large.
"""

from __future__ import annotations

import io
import json
import shutil
import time
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.errors import IntegrityError
from vla_rl.evals.looks import Looks, Recording
from vla_rl.files import write_atomic
from vla_rl.rollout.events import Event, OnEvent, PredictRound
from vla_rl.rollout.records import Episode, EpisodeSpec

FORMAT = 1
FOLDER = "episodes"  # of an evaluation's directory
NO_CHUNKS = np.zeros((0, 6))


@dataclass(frozen=True)
class Kept:
    """A finished episode, and what an evaluation still needs of it.

    Attributes:
        episode: with its metrics.
        made_under: what decided it beside the configuration: digest of the policy, scene; JSON-able.
        looks, chunks_deg: see `looks`; a probe needs neither.
    """

    episode: Episode
    made_under: Mapping[str, Any]
    looks: Looks | None = None
    chunks_deg: tuple[np.ndarray, ...] = ()

    @property
    def recording(self) -> Recording:
        return Recording(self.episode.spec.seed, self.chunks_deg, self.episode.metrics)


class OutOfTime(Exception):
    """The time limit of a launch has passed; what is finished is kept."""


class Deadline:
    """The moment at which a launch stops.

    Args:
        max_wall_s: seconds from now; None for no limit.
    """

    def __init__(self, max_wall_s: float | None) -> None:
        self._ends_s = None if max_wall_s is None else time.monotonic() + max_wall_s

    def check(self) -> None:
        """Raise `OutOfTime` if the limit has passed."""
        if self._ends_s is not None and time.monotonic() >= self._ends_s:
            raise OutOfTime

    def watching(self, on_event: OnEvent) -> OnEvent:
        """`on_event`, and a check after each round that leaves something to do."""

        def forward(event: Event) -> None:
            on_event(event)
            if isinstance(event, PredictRound) and event.done < event.total:
                self.check()

        return forward


class KeptEpisodes:
    """The files of one evaluation.

    Args:
        directory: made if absent.
        made_under: what decides an episode from now on; what is kept must have been made under the same. None if it
            is not known before the first episode.

    Raises:
        IntegrityError: an episode was made under other conditions, or its file is damaged.
    """

    def __init__(self, directory: Path, made_under: Mapping[str, Any] | None) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        kept = [_read(path) for path in sorted(directory.glob("seed*.npz"))]
        self.by_spec: dict[EpisodeSpec, Kept] = {each.episode.spec: each for each in kept}
        self.check_alike(made_under)

    @property
    def episodes(self) -> dict[EpisodeSpec, Episode]:
        """The finished episodes."""
        return {spec: kept.episode for spec, kept in self.by_spec.items()}

    def check_alike(self, made_under: Mapping[str, Any] | None = None) -> None:
        """Refuse episodes that were not all made under the same conditions, or under others than `made_under`."""
        sides = [kept.made_under for kept in self.by_spec.values()]
        first = sides[0] if made_under is None and sides else made_under or {}
        for side in sides:
            changed = sorted(key for key in first.keys() | side.keys() if first.get(key) != side.get(key))
            if changed:
                raise IntegrityError(
                    f"finished episodes were made with another {', '.join(changed)}",
                    where=str(self._directory),
                    remedy="restore what the evaluation was begun with, or start a new one",
                )

    def keep(self, kept: Kept) -> None:
        """Write a finished episode."""
        meta = {"format": FORMAT, "made_under": dict(kept.made_under), "episode": asdict(kept.episode)}
        looks, chunks = kept.looks, kept.chunks_deg
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8),
            looks=np.stack([looks.start, looks.middle, looks.end]) if looks else np.zeros((0, 0, 0, 3), np.uint8),
            ticks=np.array([len(chunk) for chunk in chunks], dtype=np.int64),
            chunks_deg=np.concatenate(chunks) if chunks else NO_CHUNKS,
        )
        write_atomic(self._directory / f"{kept.episode.spec.episode_id}.npz", buffer.getvalue())
        self.by_spec[kept.episode.spec] = kept


def _read(path: Path) -> Kept:
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
        meta = json.loads(data["meta"].tobytes())
        if meta["format"] != FORMAT:
            raise ValueError(f"its format is {meta['format']}, not {FORMAT}")
        episode = Episode.from_dict(meta["episode"])
        looks, ticks, chunks_deg = data["looks"], data["ticks"], data["chunks_deg"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise IntegrityError(
            f"a kept episode cannot be read: {error}", where=str(path), remedy="delete the file; it will be run again"
        ) from error
    parts = tuple(np.split(chunks_deg, np.cumsum(ticks)[:-1])) if len(ticks) else ()
    return Kept(episode, meta["made_under"], Looks(*looks) if len(looks) else None, parts)


def count_kept(directory: Path) -> int:
    """How many finished episodes lie in the directory of an evaluation, in all its arms."""
    return sum(1 for _ in (directory / FOLDER).rglob("seed*.npz"))


def discard_kept(directory: Path) -> None:
    """Delete them, once the results that were made of them are on disk."""
    shutil.rmtree(directory / FOLDER, ignore_errors=True)
