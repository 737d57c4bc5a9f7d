"""A real Molmo2 twin of toy size, for toy worlds: 16 px pictures, chunks of 4 ticks, 32 action bins, random weights."""

from __future__ import annotations

import numpy as np

from vla_rl.policy.fast import FastCodec
from vla_rl.policy.molmo2 import TwinArchitecture
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, new_twin
from vla_rl.policy.sampler import GrammarSampler

HORIZON, JOINTS, VOCABULARY = 4, 6, 40
ARCHITECTURE = TwinArchitecture(
    image_px=16, patch_px=8, vision_width=32, vision_layers=2, vision_mlp=32, text_width=32, text_layers=2,
    text_kv_heads=1, text_mlp=48, adapter_mlp=32, rope_theta=1000.0,
)  # fmt: skip


def tiny_policy(seed: int = 0) -> VlaPolicy:
    rng = np.random.default_rng(1)
    chunks_deg = rng.uniform(-25, 25, (400, 1, JOINTS)) + rng.uniform(-1, 1, (400, HORIZON, JOINTS)).cumsum(1)
    stats = NormStats.fit(
        chunks_deg.reshape(-1, JOINTS), chunks_deg.reshape(-1, JOINTS), tag="toy", quantile=0.01, horizon=HORIZON
    )
    codec = FastCodec.fit(stats.action.normalise(chunks_deg), scale=4.0, vocabulary=VOCABULARY)
    return new_twin(codec=codec, stats=stats, task="Touch the mark.", seed=seed, architecture=ARCHITECTURE)


def tiny_sampler(
    policy: VlaPolicy, *, batch_rows: int = 8, run_seed: int = 3, mode: str = "grammar_masked"
) -> GrammarSampler:
    return GrammarSampler(batch_rows=batch_rows, policy=policy, run_seed=run_seed, mode=mode)
