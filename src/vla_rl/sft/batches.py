"""The batch of a training step: which rows, shifted and jittered how. A function of (seed, step) alone.

In: training rows and settings. Out: tensors on the rows' device. The flow term's times and noise have a stream of their
own for each row of each step, so that neither another row nor the size of the batch enters.

Shapes: R rows, C cameras, T tokens, J joints, H ticks of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vla_rl.policy.flow import Draws
from vla_rl.policy.flow_config import FlowConfig
from vla_rl.seeds import stream
from vla_rl.sft.augment import draw_offsets, jitter_state, shift_frames
from vla_rl.sft.dataset import TrainingRows
from vla_rl.sft.objective import labels


@dataclass(frozen=True)
class Batch:
    """One step's inputs.

    Attributes:
        frames: uint8 [R, C, height, width, 3].
        state_bins_RJ, bins_RT, labels_RT: int64.
        chunks_RHJ: float32, normalised.
        draws: times and noise of the flow term; None if nobody asked for it.
    """

    frames: Tensor
    state_bins_RJ: Tensor
    bins_RT: Tensor
    labels_RT: Tensor
    chunks_RHJ: Tensor
    draws: Draws | None


@dataclass(frozen=True)
class Batches:
    """Draws batches.

    Attributes:
        rows: demonstrations.
        seed: run seed.
        size: rows a batch, drawn with replacement.
        shift_px: largest random shift of a picture, a camera at a time.
        jitter_bins: largest random change of a joint's state bin.
        flow: the expert whose flow is trained; None for none.
    """

    rows: TrainingRows
    seed: int
    size: int
    shift_px: int
    jitter_bins: int
    flow: FlowConfig | None = None

    def of_step(self, step: int) -> Batch:
        """The batch of update `step` (from 0)."""
        rows, rng = self.rows, stream("sft-batch", self.seed, step)
        row_R = rows.usable[rng.integers(len(rows.usable), size=self.size)]
        index_R = torch.from_numpy(row_R).to(rows.device)
        frames, state_bins_RJ = rows.frames.gather(row_R), rows.state_bins_NJ[index_R]
        offsets = draw_offsets(
            rng, rows=self.size, cameras=frames.shape[1], joints=state_bins_RJ.shape[1],
            shift_px=self.shift_px, jitter_bins=self.jitter_bins,
        )  # fmt: skip
        if self.shift_px:
            frames = shift_frames(frames, offsets.shift_RC2.to(rows.device))
        if self.jitter_bins:
            state_bins_RJ = jitter_state(state_bins_RJ, offsets.jitter_RJ.to(rows.device))
        bins_RT = rows.bins_NT[index_R]
        labels_RT, chunks_RHJ = labels(bins_RT, rows.length_N[index_R]), rows.chunks_NHJ[index_R]
        return Batch(frames, state_bins_RJ, bins_RT, labels_RT, chunks_RHJ, self._draws(step, chunks_RHJ.shape[1]))

    def _draws(self, step: int, ticks: int) -> Draws | None:
        if self.flow is None:
            return None
        generators = (stream("sft-flow", self.seed, step, row) for row in range(self.size))
        return Draws.of(self.flow, generators, ticks, str(self.rows.device))
