"""From demonstration shards to what a training step gathers: normalisation, codec, token labels, frames.

In: a directory written by `demos`. Out: fitted `NormStats` and `FastCodec`, and `TrainingRows` on a device. On a GPU
all frames are loaded once (a row is two pictures: 135 k rows of 112 px are 10 GB); on the CPU they stay memory-mapped.
Sampling order and augmentation are the trainer's.

Shapes: N rows, R rows of a batch, C cameras, T tokens (padded), J joints, H ticks of a chunk.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vla_rl.errors import UsageError
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.prompt import state_bins
from vla_rl.sft.shards import DemoRecipe, read_recipe, read_shard, shard_paths

STATS_TAG = "vla_rl_so101_boat"
STATS_QUANTILE = 0.001
CODEC_CHUNKS = 20_000
LENGTH_QUANTILE = 0.999


@dataclass(frozen=True)
class Demonstrations:
    """The complete shards of a directory, in order; frames memory-mapped.

    Attributes:
        recipe: how they were made.
        frames: per shard uint8 [row, C, px, px, 3].
        state_deg: float64 [N, J]; targets_deg: float32 [N, H, J]; seed: int64 [N].
    """

    recipe: DemoRecipe
    frames: tuple[np.ndarray, ...]
    state_deg: np.ndarray
    targets_deg: np.ndarray
    seed: np.ndarray

    def __len__(self) -> int:
        return len(self.seed)

    @property
    def image_px(self) -> int:
        """Height and width of the recorded pictures."""
        return self.frames[0].shape[2]


def open_demonstrations(directory: Path) -> Demonstrations:
    """Open every complete shard.

    Raises:
        UsageError: no demonstrations, or none that succeeded.
        IntegrityError: a damaged shard.
    """
    recipe = read_recipe(directory)
    shards = [read_shard(directory, i) for i in range(len(recipe.shards())) if shard_paths(directory, i)[2].exists()]
    shards = [shard for shard in shards if len(shard)]
    if not shards:
        raise UsageError(
            "no successful demonstration here", where=str(directory), remedy="record more seeds with `vla-rl demos`"
        )
    return Demonstrations(
        recipe=recipe,
        frames=tuple(shard.frames for shard in shards),
        state_deg=np.concatenate([shard.state_deg for shard in shards]),
        targets_deg=np.concatenate([shard.targets_deg for shard in shards]),
        seed=np.concatenate([shard.seed for shard in shards]),
    )


def fit_statistics(demos: Demonstrations, *, codec_scale: float, codec_vocab: int) -> tuple[NormStats, FastCodec]:
    """Quantile tables over every state and every target tick, and a codec over an even sample of 20 000 chunks."""
    horizon, joints = demos.targets_deg.shape[1:]
    stats = NormStats.fit(
        demos.state_deg, demos.targets_deg.reshape(-1, joints), tag=STATS_TAG, quantile=STATS_QUANTILE, horizon=horizon
    )
    sample = demos.targets_deg[:: max(1, len(demos) // CODEC_CHUNKS)]
    return stats, FastCodec.fit(stats.action.normalise(sample), scale=codec_scale, vocabulary=codec_vocab)


class ResidentFrames:
    """All frames in one uint8 tensor [N, C, px, px, 3] on a device."""

    def __init__(self, shards: tuple[np.ndarray, ...], device: torch.device) -> None:
        total = sum(len(shard) for shard in shards)
        self.frames = torch.empty((total, *shards[0].shape[1:]), dtype=torch.uint8, device=device)
        start = 0
        for shard in shards:
            self.frames[start : start + len(shard)] = torch.from_numpy(np.array(shard)).to(device)
            start += len(shard)

    def gather(self, row_R: np.ndarray) -> Tensor:
        """uint8 [R, C, px, px, 3]."""
        return self.frames[torch.from_numpy(row_R).to(self.frames.device)]


class MappedFrames:
    """Frames read from the shard files as they are needed."""

    def __init__(self, shards: tuple[np.ndarray, ...]) -> None:
        self.shards = shards
        self.starts = np.cumsum([0, *(len(shard) for shard in shards)])

    def gather(self, row_R: np.ndarray) -> Tensor:
        """uint8 [R, C, px, px, 3]."""
        out = np.empty((len(row_R), *self.shards[0].shape[1:]), np.uint8)
        owner = np.searchsorted(self.starts, row_R, side="right") - 1
        for shard in np.unique(owner):
            mine = owner == shard
            out[mine] = self.shards[shard][row_R[mine] - self.starts[shard]]
        return torch.from_numpy(out)


@dataclass(frozen=True)
class TrainingRows:
    """Everything that a training step gathers from.

    Attributes:
        frames: source of uint8 pictures by row.
        state_bins_NJ: int64 [N, J]; bins_NT: int64 [N, T], 0 past the end; length_N: int64 [N] tokens.
        usable: int64 rows that may be sampled; the rest is longer than T.
        digest: SHA-256 over labels, lengths and state bins (not the pictures, which they go with).
    """

    frames: ResidentFrames | MappedFrames
    state_bins_NJ: Tensor
    bins_NT: Tensor
    length_N: Tensor
    usable: np.ndarray
    digest: str

    @property
    def device(self) -> torch.device:
        return self.bins_NT.device


def training_rows(demos: Demonstrations, stats: NormStats, codec: FastCodec, device: torch.device) -> TrainingRows:
    """Encode every chunk and put the rows on `device`.

    T is the 99.9 % quantile of the stream lengths: the few longer streams would make every batch longer, so their rows
    are never sampled.
    """
    streams = codec.encode(stats.action.normalise(demos.targets_deg))
    length = np.array([len(stream) for stream in streams], dtype=np.int64)
    longest = int(np.quantile(length, LENGTH_QUANTILE, method="higher"))
    bins = np.zeros((len(streams), longest), dtype=np.int64)
    for row, stream in enumerate(streams):
        bins[row, : min(length[row], longest)] = stream[:longest]
    states = state_bins(stats.state.normalise(demos.state_deg))
    return TrainingRows(
        frames=MappedFrames(demos.frames) if device.type == "cpu" else ResidentFrames(demos.frames, device),
        state_bins_NJ=torch.from_numpy(states).to(device),
        bins_NT=torch.from_numpy(bins).to(device),
        length_N=torch.from_numpy(length).to(device),
        usable=np.flatnonzero(length <= longest),
        digest=hashlib.sha256(b"".join(part.tobytes() for part in (bins, length, states))).hexdigest(),
    )
