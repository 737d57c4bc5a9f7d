"""Settings of this layer's tests: a small world, a small twin, a small recording."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from vla_rl.config.schema import LookConfig
from vla_rl.policy.molmo2 import TwinArchitecture
from vla_rl.sft.demos import DemoSummary, record_demos

SEEDS = tuple(range(100000, 100006))
ENV: dict[str, Any] = {
    "_target_": "vla_rl.sim.env.BoatToDisk",
    "protocol": "sim100b",
    "image_px": 64,
    "chunk_ticks": 30,
    "max_ticks": 900,
    "terminate_on": "never",
    "stop_hopeless": False,
    "look": dataclasses.asdict(LookConfig()),
}
TINY = TwinArchitecture(
    image_px=32, patch_px=8, vision_width=32, vision_layers=2, vision_mlp=64, text_width=64, text_layers=2,
    text_kv_heads=1, text_mlp=128, adapter_mlp=64, rope_theta=1000.0,
)  # fmt: skip


def record(out_dir: Path, **changes: Any) -> DemoSummary:
    """`record_demos` with the settings of these tests."""
    settings: dict[str, Any] = dict(
        env_spec=ENV, seeds=SEEDS, workers=1, shard_seeds=2, record_every=20, noise_share=0.5, miss_share=0.35,
        on_event=lambda event: None, max_wall_s=None,
    )  # fmt: skip
    return record_demos(out_dir=out_dir, **(settings | changes))
