"""Augmentation of a training batch: image shifts and state jitter, as pure functions of given offsets.

In: uint8 frames, state bins and the offsets of every row. Out: the same shapes and dtypes. Labels are not touched: the
joint targets are right for a camera that is off by a pixel or a state that is read off by a bin, and that is what the
policy has to tolerate. Offsets are drawn outside (keyed by step), so that a resumed run augments as an unbroken one.

Shapes: R rows, C cameras, H x W pixels, J joints.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vla_rl.policy.prompt import STATE_BINS


@dataclass(frozen=True)
class Offsets:
    """Offsets of one batch.

    Attributes:
        shift_RC2: int64 [R, C, 2], (rows down, columns right) in pixels.
        jitter_RJ: int64 [R, J], state bins.
    """

    shift_RC2: Tensor
    jitter_RJ: Tensor


def draw_offsets(
    rng: np.random.Generator, *, rows: int, cameras: int, joints: int, shift_px: int, jitter_bins: int
) -> Offsets:
    """Uniform integer offsets in +-shift_px and +-jitter_bins, on the CPU."""
    shift = rng.integers(-shift_px, shift_px + 1, size=(rows, cameras, 2))
    jitter = rng.integers(-jitter_bins, jitter_bins + 1, size=(rows, joints))
    return Offsets(torch.from_numpy(shift), torch.from_numpy(jitter))


def shift_frames(frames: Tensor, shift_RC2: Tensor) -> Tensor:
    """Move each camera picture by its offset; pixels that come in repeat the border.

    Args:
        frames: uint8 [R, C, H, W, 3].
        shift_RC2: int64 [R, C, 2], on the same device.

    Returns:
        uint8 [R, C, H, W, 3].
    """
    rows, cameras, height, width, _ = frames.shape
    pictures = frames.reshape(rows * cameras, height, width, 3)
    down, right = shift_RC2.reshape(-1, 2).unbind(1)
    y_NH = (torch.arange(height, device=frames.device) - down[:, None]).clamp(0, height - 1)
    x_NW = (torch.arange(width, device=frames.device) - right[:, None]).clamp(0, width - 1)
    picture_N = torch.arange(len(pictures), device=frames.device)
    return pictures[picture_N[:, None, None], y_NH[:, :, None], x_NW[:, None, :]].reshape(frames.shape)


def jitter_state(bins_RJ: Tensor, jitter_RJ: Tensor) -> Tensor:
    """State bins moved by their offset and kept inside 0..255, int64 [R, J]."""
    return (bins_RJ + jitter_RJ).clamp(0, STATE_BINS - 1)
