"""Rows of an update from a dataset of `vla-rl demos`: what the trainer of `rl` learns from in place of a wave.

In: a dataset, the policy that is to learn from it, how many rows an update takes. Out: `DemonstratedRows`, called with
the number of the update. A row is a tick that is taught: what was seen there, and the following chunk of targets in the
policy's own tokens and tables, the last target repeated past the episode's end. Which rows an update gets is a function
of (seed, update) alone, none of them twice. Pictures are decoded when their row is drawn, so that nothing is kept but
numbers (1 kB a tick). Left out: likelihoods (`rl.demonstrated`), augmentation: an update sees what an episode shows.

Shapes: N ticks that are taught, H ticks of a chunk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.config.demonstrations import recipe_digest
from vla_rl.errors import ConfigError, IntegrityError, UsageError
from vla_rl.policy.policy import VlaPolicy
from vla_rl.rollout.records import EpisodeSpec, Row
from vla_rl.seeds import stream
from vla_rl.sft.dataset import Demonstrations, open_demonstrations
from vla_rl.sft.frames import decode_windows
from vla_rl.sft.reading import RE_RECORD, DemoDataset

BLOCK = 20_000  # chunks that are normalised at a time
WHERE = "experience.demos"


class DemonstratedRows:
    """Gives every update its demonstrations.

    Args:
        directory: a dataset of `vla-rl demos`.
        policy: whose codec and tables write the targets.
        seed: run seed.
        count: rows an update.
        threads: decoding threads.

    Attributes:
        demos: every tick that is taught.

    Raises:
        UsageError, ConfigError, IntegrityError: see `dataset.open_demonstrations`; the dataset has no recipe, or fewer
            ticks than an update takes; pictures of another size than the policy's; a chunk that its codec cannot write.
    """

    def __init__(self, directory: Path, policy: VlaPolicy, *, seed: int, count: int, threads: int) -> None:
        self.demos = open_demonstrations(directory, chunk_ticks=policy.horizon, frame_stride=1)
        self._policy, self._seed, self._count, self._threads = policy, seed, count, threads
        dataset = self.demos.dataset
        if dataset.recipe is None or dataset.seed_N is None:
            raise UsageError("the dataset does not say how it was recorded", where=str(directory), remedy=RE_RECORD)
        if count > len(self.demos):
            raise ConfigError(
                f"{count} rows an update, and {len(self.demos)} ticks of the demonstrations are taught",
                where="experience.rows",
                remedy="record more demonstrations",
            )
        holes = sum(int(policy.codec.holes(policy.stats.action.normalise(chunks)).sum()) for chunks in self._blocks())
        if holes:
            raise ConfigError(
                f"the policy's action codec has no symbol for {holes} levels of the demonstrations",
                where=f"{WHERE}={directory}",
                remedy="demonstrations like those that the policy was taught with",
            )
        self._spec_N = _specs(dataset)[self.demos.frame_N]
        self._replan_N = self.demos.frame_N - _firsts(dataset)[self.demos.frame_N]

    def __call__(self, update: int) -> list[Row]:
        """The rows of an update (from 1), in the order of the dataset; their `logp` is 0."""
        drawn = np.sort(stream("demonstrated-rows", self._seed, update).choice(len(self.demos), self._count, False))
        chunks = self._policy.stats.action.normalise(self.demos.targets_deg[drawn])
        frames = np.concatenate(list(self._pictures(drawn)))
        return [
            self._row(int(index), bins, picture)
            for index, bins, picture in zip(drawn, self._policy.codec.encode(chunks), frames, strict=True)
        ]

    @property
    def record(self) -> dict[str, Any]:
        """What a run notes of its demonstrations: their recipe and its digest, how many episodes and ticks are taught,
        the digest of those ticks' numbers, and that of the files, pictures included."""
        recipe = self.demos.dataset.recipe
        assert recipe is not None
        numbers = hashlib.sha256()
        for part in (self.demos.frame_N, self.demos.state_deg, *self._blocks()):
            numbers.update(np.ascontiguousarray(part).tobytes())
        return {
            "directory": str(self.demos.dataset.root),
            "recipe_sha256": recipe_digest(recipe),
            "episodes": len(np.unique(self._spec_N, axis=0)),
            "ticks": len(self.demos),
            "rows_sha256": numbers.hexdigest(),
            "files_sha256": _files_digest(self.demos.dataset),
            "recipe": recipe,
        }

    def _row(self, index: int, bins: np.ndarray, frames: np.ndarray) -> Row:
        seed, draw, replan = *map(int, self._spec_N[index]), int(self._replan_N[index])
        return Row(
            spec=EpisodeSpec(seed, draw),
            replan=replan,
            frames=frames,
            state_deg=self.demos.state_deg[index].astype(np.float64),
            bins=bins,
            logp=np.zeros(len(bins), np.float32),
            legal_packed=self._policy.grammar.packed_masks(bins),
            rng_key=(self._seed, draw, seed, replan),
            policy_digest="",
        )

    def _pictures(self, drawn: np.ndarray) -> Iterator[np.ndarray]:
        return decode_windows(
            self.demos.dataset,
            self.demos.frame_N[drawn],
            image_px=self.demos.image_px,
            threads=self._threads,
            taken=lambda data: None,
        )

    def _blocks(self) -> Iterator[np.ndarray]:
        """The chunks of all ticks, float32 [n, H, J], in order."""
        for start in range(0, len(self.demos), BLOCK):
            yield self.demos.targets_deg[start : start + BLOCK]


def check_recipe(record: dict[str, Any], pinned: str | None) -> None:
    """Refuse demonstrations of another recipe than the one that is pinned; None pins nothing.

    Args:
        record: `DemonstratedRows.record`.

    Raises:
        IntegrityError: naming both.
    """
    if pinned is not None and pinned != record["recipe_sha256"]:
        raise IntegrityError(
            f"the demonstrations have the recipe {record['recipe_sha256']}, not {pinned}",
            where="experience.recipe_sha256",
            remedy="record those of the pinned recipe: seeds, disturbances, scene and shards decide it",
        )


def check_scene(demos: Demonstrations, scene: dict[str, Any]) -> None:
    """Refuse demonstrations of another scene than the run's.

    Args:
        scene: what the run's simulator says of itself.

    Raises:
        ConfigError: naming both.
    """
    assert demos.dataset.recipe is not None
    recorded = demos.dataset.recipe["scene"]
    named = ("protocol", "scene_hash", "image_px")
    if different := [name for name in named if recorded[name] != scene.get(name)]:
        told = ", ".join(f"{name} {recorded[name]}, not {scene.get(name)}" for name in different)
        raise ConfigError(
            f"the demonstrations were recorded in another scene: {told}",
            where=f"{WHERE} and sim",
            remedy="record them with the sim options of the run",
        )


def _firsts(dataset: DemoDataset) -> np.ndarray:
    """The first frame of every frame's episode, int64 [frame]."""
    begins = np.flatnonzero(np.diff(dataset.episode_N, prepend=dataset.episode_N[:1] - 1))
    return np.repeat(begins, np.diff(begins, append=len(dataset)))


def _specs(dataset: DemoDataset) -> np.ndarray:
    """Seed and draw of every frame's episode, int64 [frame, 2]: episodes of one seed are told apart by their order."""
    assert dataset.seed_N is not None
    firsts, seen, draws = _firsts(dataset), {}, {}
    for first in np.unique(firsts):
        seed = int(dataset.seed_N[first])
        draws[first] = seen[seed] = seen.get(seed, -1) + 1
    return np.stack([dataset.seed_N, np.array([draws[first] for first in firsts])], axis=1)


def _files_digest(dataset: DemoDataset) -> str:
    digest = hashlib.sha256()
    for path in dataset.files:
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
