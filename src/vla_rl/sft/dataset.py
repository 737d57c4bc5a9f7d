"""From a dataset to what a training step gathers: windows, normalisation, codec, token labels, frames.

In: a LeRobot dataset (`reading`). Out: fitted `NormStats` and `FastCodec`, and `TrainingRows` on a device. A window
starts at every `frame_stride`-th tick of an episode (the phase is drawn once per episode) that is taught, and its
target is the following `chunk_ticks` actions, the last one repeated past the episode's end.

Decoding pictures is `frames`; sampling order and augmentation are the trainer's.

Shapes: N windows, R rows of a batch, C cameras, T tokens (padded), J joints, H ticks of a chunk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_rl.errors import UsageError
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.prompt import state_bins
from vla_rl.seeds import stream
from vla_rl.sft import lerobot
from vla_rl.sft.frames import MappedFrames, ResidentFrames, decode_windows, picture_side
from vla_rl.sft.reading import DemoDataset, open_dataset

STATS_TAG = "vla_rl_so101_boat"
STATS_QUANTILE = 0.001
CODEC_CHUNKS = 20_000
LENGTH_QUANTILE = 0.999


@dataclass(frozen=True)
class Demonstrations:
    """The training windows of a dataset.

    Attributes:
        dataset: where they come from.
        frame_N: int64 [N], ascending, the frame of the dataset that a window starts at.
        state_deg: float32 [N, J], measured there.
        targets_deg: float32 [N, H, J].
        image_px: height and width of the pictures.
    """

    dataset: DemoDataset
    frame_N: np.ndarray
    state_deg: np.ndarray
    targets_deg: np.ndarray
    image_px: int

    def __len__(self) -> int:
        return len(self.frame_N)


def open_demonstrations(
    directory: Path, *, chunk_ticks: int, frame_stride: int, episodes: int | None = None
) -> Demonstrations:
    """The windows of a dataset directory.

    Args:
        directory: root of a LeRobot v3 dataset.
        chunk_ticks: length of a target chunk, H.
        frame_stride: ticks between the starts of windows.
        episodes: how many episodes to take, from the first one on; None for all.

    Raises:
        UsageError, ConfigError, IntegrityError: see `reading.open_dataset`; no tick is taught; the pictures are not
            square or not of one size; the dataset has fewer than `episodes`.
    """
    dataset = open_dataset(directory)
    taught_N, held = dataset.taught_N, len(np.unique(dataset.episode_N))
    if episodes is not None:
        if episodes > held:
            raise UsageError(f"{directory} has {held} episodes, not {episodes}", where="sft.episodes")
        taught_N = taught_N & np.isin(dataset.episode_N, np.unique(dataset.episode_N)[:episodes])
    frame_N, last_N = window_starts(dataset.episode_N, taught_N, frame_stride)
    if not len(frame_N):
        raise UsageError(
            "no tick of this dataset may be imitated", where=str(directory), remedy="record episodes that succeed"
        )
    chunk_NH = np.minimum(frame_N[:, None] + np.arange(chunk_ticks), last_N[:, None])
    return Demonstrations(
        dataset=dataset,
        frame_N=frame_N,
        state_deg=dataset.state_deg[frame_N],
        targets_deg=dataset.action_deg[chunk_NH],
        image_px=picture_side(dataset),
    )


def window_starts(episode_N: np.ndarray, taught_N: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames at which windows start, and the last frame of the episode of each.

    Args:
        episode_N: int64 [frame], ascending.
        taught_N: bool [frame]; others are no starts.
        stride: ticks between starts; their phase is drawn for each episode.
    """
    firsts = np.flatnonzero(np.diff(episode_N, prepend=episode_N[:1] - 1))
    starts, lasts = [], []
    for first, end in zip(firsts, [*firsts[1:], len(episode_N)], strict=True):
        phase = int(stream("sft-window", int(episode_N[first])).integers(stride))
        frames = np.arange(first + phase, end, stride)
        frames = frames[taught_N[frames]]
        starts.append(frames)
        lasts.append(np.full(len(frames), end - 1))
    return np.concatenate(starts, dtype=np.int64), np.concatenate(lasts, dtype=np.int64)


def fit_statistics(demos: Demonstrations, *, codec_scale: float, codec_vocab: int) -> tuple[NormStats, FastCodec]:
    """Quantile tables over every window's state and target ticks, and a codec over an even sample of 20 000 chunks."""
    horizon, joints = demos.targets_deg.shape[1:]
    stats = NormStats.fit(
        demos.state_deg, demos.targets_deg.reshape(-1, joints), tag=STATS_TAG, quantile=STATS_QUANTILE, horizon=horizon
    )
    sample = demos.targets_deg[:: max(1, len(demos) // CODEC_CHUNKS)]
    return stats, FastCodec.fit(stats.action.normalise(sample), scale=codec_scale, vocabulary=codec_vocab)


@dataclass(frozen=True)
class TrainingRows:
    """Everything that a training step gathers from; a row is a window.

    Attributes:
        frames: source of uint8 pictures by row.
        state_bins_NJ: int64 [N, J]; bins_NT: int64 [N, T], 0 past the end; length_N: int64 [N] tokens.
        chunks_NHJ: float32 [N, H, J], the same chunks in normalised units.
        usable: int64 rows that may be sampled; the rest is longer than T.
        digest: SHA-256 over labels, lengths, state bins and encoded pictures; `chunk_digest` over `chunks_NHJ`.
        holes: levels of all chunks that the codec has no symbol for; 0 unless they were allowed. Whoever decodes the
            pictures, the chunks are encoded here and in one go, so this is a count over all rows.
    """

    frames: ResidentFrames | MappedFrames
    state_bins_NJ: Tensor
    bins_NT: Tensor
    length_N: Tensor
    chunks_NHJ: Tensor
    usable: np.ndarray
    digest: str
    chunk_digest: str
    holes: int

    @property
    def device(self) -> torch.device:
        return self.bins_NT.device


def training_rows(
    demos: Demonstrations,
    stats: NormStats,
    codec: FastCodec,
    device: torch.device,
    *,
    scratch: Path,
    threads: int,
    allow_holes: bool = False,
    on_block: Callable[[int], Any] = lambda done: None,
) -> TrainingRows:
    """Encode every chunk, decode every picture and put the rows on `device`.

    T is the 99.9 % quantile of the stream lengths: the few longer streams would make every batch longer, so their rows
    are never sampled.

    Args:
        scratch: directory for the pictures on the CPU.
        threads: decoding threads.
        allow_holes: take the short streams of chunks that the codec cannot write whole.
        on_block: told how many windows have their pictures.

    Raises:
        HoleError: the codec cannot write a chunk, and that is not allowed.
    """
    chunks = stats.action.normalise(demos.targets_deg)
    exact = chunks.astype(np.float32)
    streams = codec.encode(chunks, allow_holes=allow_holes)
    length = np.array([len(stream) for stream in streams], dtype=np.int64)
    longest = int(np.quantile(length, LENGTH_QUANTILE, method="higher"))
    bins = np.zeros((len(streams), longest), dtype=np.int64)
    for row, tokens in enumerate(streams):
        bins[row, : min(length[row], longest)] = tokens[:longest]
    states = state_bins(stats.state.normalise(demos.state_deg))
    digest = hashlib.sha256(b"".join(part.tobytes() for part in (bins, length, states)))
    shape = (len(demos), len(lerobot.PICTURES), demos.image_px, demos.image_px, 3)
    frames = MappedFrames(shape, scratch) if device.type == "cpu" else ResidentFrames(shape, device)
    done = 0
    blocks = decode_windows(demos.dataset, demos.frame_N, image_px=demos.image_px, threads=threads, taken=digest.update)
    for block in blocks:
        frames.fill(done, block)
        done += len(block)
        on_block(done)
    return TrainingRows(
        frames=frames,
        state_bins_NJ=torch.from_numpy(states).to(device),
        bins_NT=torch.from_numpy(bins).to(device),
        length_N=torch.from_numpy(length).to(device),
        chunks_NHJ=torch.from_numpy(exact).to(device),
        usable=np.flatnonzero(length <= longest),
        digest=digest.hexdigest(),
        chunk_digest=hashlib.sha256(exact.tobytes()).hexdigest(),
        holes=int(codec.holes(chunks).sum()),
    )
