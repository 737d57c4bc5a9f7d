"""What tests of the policy share: a very small twin (under 0.5 M parameters), smooth random chunks, pictures."""

from __future__ import annotations

import numpy as np

from vla_rl.policy.molmo2 import TwinArchitecture

TASK = "Pick up the toy boat and place it on the wooden disk."
MINI = TwinArchitecture(
    image_px=48, patch_px=8, vision_width=64, vision_layers=2, vision_mlp=128, text_width=96, text_layers=2,
    text_kv_heads=1, text_mlp=128, adapter_mlp=96, rope_theta=1000.0,
)  # fmt: skip


def smooth_chunks(count: int, seed: int) -> np.ndarray:
    """Joint targets in degrees [count, 30, 6]: an offset, a ramp and a wave a joint."""
    rng = np.random.default_rng(seed)
    t = np.arange(30)[None, :, None] / 30
    offset, slope, wave = (rng.normal(0, s, (count, 1, 6)) for s in (20, 25, 6))
    return offset + slope * t + wave * np.sin(3 * t + rng.uniform(0, 6, (count, 1, 6)))


def picture(rng: np.random.Generator) -> np.ndarray:
    """Two camera frames uint8 [2, 48, 48, 3]: a coloured rectangle on a plain ground."""
    frames = np.full((2, 48, 48, 3), 1, dtype=np.uint8) * rng.integers(0, 256, (2, 1, 1, 3), dtype=np.uint8)
    for frame in frames:
        y, x = rng.integers(0, 32, 2)
        frame[y : y + 16, x : x + 12] = rng.integers(0, 256, 3)
    return frames
