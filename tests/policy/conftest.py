"""A real but very small twin (under 0.5 M parameters) and a codec fitted on smooth random chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vla_rl.policy.fast import FastCodec
from vla_rl.policy.molmo2 import BOAT_TINY, TwinArchitecture
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, new_twin
from vla_rl.policy.prompt import Observation

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


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def stats() -> NormStats:
    chunks = smooth_chunks(1500, 0)
    return NormStats.fit(chunks[:, 0], chunks.reshape(-1, 6), tag="so101_test", quantile=0.001, horizon=30)


@pytest.fixture(scope="session")
def codec(stats: NormStats) -> FastCodec:
    return FastCodec.fit(stats.action.normalise(smooth_chunks(1500, 0)), scale=15.0, vocabulary=512)


@pytest.fixture(scope="session")
def policy(codec: FastCodec, stats: NormStats) -> VlaPolicy:
    """Shared: tests that change weights must build their own."""
    return new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI)


@pytest.fixture(scope="session")
def boat_policy(codec: FastCodec, stats: NormStats) -> VlaPolicy:
    """The full-size twin, fresh weights; shared."""
    return new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=BOAT_TINY)


@pytest.fixture(scope="session")
def observations() -> list[Observation]:
    rng, states = np.random.default_rng(5), smooth_chunks(8, 5)[:, 0]
    return [Observation(picture(rng), state) for state in states]


def picture(rng: np.random.Generator) -> np.ndarray:
    """Two camera frames uint8 [2, 48, 48, 3]: a coloured rectangle on a plain ground."""
    frames = np.full((2, 48, 48, 3), 1, dtype=np.uint8) * rng.integers(0, 256, (2, 1, 1, 3), dtype=np.uint8)
    for frame in frames:
        y, x = rng.integers(0, 32, 2)
        frame[y : y + 16, x : x + 12] = rng.integers(0, 256, 3)
    return frames
