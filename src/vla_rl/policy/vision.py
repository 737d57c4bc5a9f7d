"""Camera frames -> what the Molmo2 vision tower reads, in pure torch over a batch and on the frames' device.

In: uint8 frames. Out: flattened patches and the indices of the patches that each image token pools ("resize" mode: one
global view per camera, no tiling, 2x2 pooling). No image library and no per-picture Python.

Shapes: N pictures, P patches per picture, F = patch * patch * 3 values, I image tokens per picture.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from vla_rl.errors import ConfigError


def pack_frames(frames: Tensor, *, image_px: int, patch_px: int) -> Tensor:
    """Patches in [-1, 1], float32 [N, P, F], rows of patches first; inside a patch (row, column, channel).

    Args:
        frames: uint8 [..., height, width, 3]; leading axes are flattened into N. Frames of another size are resized
            bilinearly without antialiasing and rounded back to whole grey levels, as the release does.

    Raises:
        ConfigError: the frames are not uint8 colour pictures.
    """
    if frames.dtype != torch.uint8 or frames.ndim < 3 or frames.shape[-1] != 3:
        raise ConfigError(
            f"frames are {frames.dtype} {tuple(frames.shape)}, not uint8 [..., height, width, 3]", where="frames"
        )
    pictures = frames.reshape(-1, *frames.shape[-3:])
    if pictures.shape[1:3] != (image_px, image_px):
        values = pictures.movedim(-1, 1).float()
        resized = interpolate(values, size=(image_px, image_px), mode="bilinear", align_corners=False)
        pictures = resized.round().clamp(0, 255).to(torch.uint8).movedim(1, -1)
    grid = image_px // patch_px
    patches = pictures.reshape(-1, grid, patch_px, grid, patch_px, 3).transpose(2, 3)
    # Rearranged as bytes, a quarter of the memory that floats would move.
    return patches.reshape(-1, grid * grid, patch_px * patch_px * 3).float().div_(255.0).mul_(2.0).sub_(1.0)


def pooling_index(*, image_px: int, patch_px: int) -> Tensor:
    """The patches of one picture that each image token pools, int64 [I, 4]; -1 pads an odd grid right and below."""
    grid = image_px // patch_px
    odd = grid % 2
    index = pad(torch.arange(grid * grid).reshape(grid, grid), (0, odd, 0, odd), value=-1)
    half = (grid + odd) // 2
    return index.reshape(half, 2, half, 2).transpose(1, 2).reshape(half * half, 4)


def batch_pooling_index(index_I4: Tensor, pictures: int, patches: int) -> Tensor:
    """`pooling_index` of many pictures, indices running over all of them, int64 [N * I, 4] (as transformers wants)."""
    offset = torch.arange(pictures, device=index_I4.device)[:, None, None] * patches
    return torch.where(index_I4 >= 0, index_I4 + offset, index_I4).reshape(-1, index_I4.shape[1])
