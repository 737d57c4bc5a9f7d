"""What an evaluation keeps of the episodes that it sees: small pictures of three moments, and the chunks of some.

In: what a wave tells its watcher. Out: `Looks` (start, middle, end, top
camera) of every episode, and a `Recording` of the chosen ones. Nothing is rendered for it. Left out: drawing
(`vla_rl.report.sheet`) and playing a recording again (`film`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vla_rl.policy.prompt import CAMERAS, Observation
from vla_rl.rollout.records import EpisodeSpec

if TYPE_CHECKING:
    from vla_rl.policy.sampler import Prediction

LOOK_PX = 96
TOP = CAMERAS.index("top")


@dataclass(frozen=True)
class Looks:
    """Three moments of an episode: uint8 [96, 96, 3] each."""

    start: np.ndarray
    middle: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, pictures: Sequence[np.ndarray]) -> Looks:
        """First, middle and last of the pictures of an episode; at least one."""
        return cls(pictures[0], pictures[(len(pictures) - 1) // 2], pictures[-1])


@dataclass(frozen=True)
class Recording:
    """All it takes to run an episode again.

    Attributes:
        seed: environment seed.
        chunks_deg: float64 [ticks, 6] each, as they were handed to the environment, which executes the first ticks.
        metrics: what came of it.
    """

    seed: int
    chunks_deg: tuple[np.ndarray, ...]
    metrics: Mapping[str, Any]


def small(picture: np.ndarray) -> np.ndarray:
    """uint8 [96, 96, 3] of a picture [height, width, 3]; a copy, since frames may lie in memory that is used again."""
    return np.asarray(Image.fromarray(picture).resize((LOOK_PX, LOOK_PX), Image.Resampling.BOX))


class EpisodeWatcher:
    """A watcher of a wave (`rollout.wave.Watcher`) that remembers what passes; one episode a seed.

    Args:
        record: seeds whose chunks are kept.

    Attributes:
        looks: of every episode that has ended, by seed.
    """

    def __init__(self, record: Collection[int]) -> None:
        self._record = frozenset(record)
        self._playing: dict[int, list[np.ndarray]] = {}
        self._chunks_deg: dict[int, list[np.ndarray]] = {}
        self.looks: dict[int, Looks] = {}

    def replanned(self, spec: EpisodeSpec, replan: int, observation: Observation, prediction: Prediction) -> None:
        """Keep a small picture, and the chunk of a seed that is recorded; replan 0 starts both anew."""
        if replan == 0:
            self._playing[spec.seed], self._chunks_deg[spec.seed] = [], []
        self._playing[spec.seed].append(small(observation.frames[TOP]))
        if spec.seed in self._record:
            self._chunks_deg[spec.seed].append(np.array(prediction.chunk_deg))

    def ended(self, spec: EpisodeSpec, observation: Observation) -> None:
        """Keep three pictures of the episode and let the others go."""
        self.looks[spec.seed] = Looks.of([*self._playing.pop(spec.seed), small(observation.frames[TOP])])

    def recording(self, seed: int, metrics: Mapping[str, Any]) -> Recording:
        """The record of a finished episode among the chosen ones."""
        return Recording(seed, tuple(self._chunks_deg[seed]), metrics)
