"""Settings of this layer's tests: a small world, a small twin, a small recording, and episodes made by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.config.compose import compose
from vla_rl.policy.flow_config import ExpertSizes
from vla_rl.policy.molmo2 import TwinArchitecture
from vla_rl.policy.policy import VlaPolicy, new_twin
from vla_rl.policy.prompt import CAMERAS
from vla_rl.sft import lerobot
from vla_rl.sft.dataset import Demonstrations, fit_statistics
from vla_rl.sft.demos import DemoSummary, record_demos
from vla_rl.sft.feature_stats import picture_histogram
from vla_rl.sft.recipe import DemoRecipe, ExpertJobs, expert_recipe
from vla_rl.sft.recording import RecordedEpisode
from vla_rl.sim.metrics import TickSample

SEEDS = "100004-100006"
ENV = compose("demos", ["sim.image_px=32"]).component_spec("sim")
EXPERT: dict[str, Any] = dict(
    seeds=SEEDS,
    noise_share=0.5,
    miss_share=0.35,
    noise_deg=(0.5, 2.0),
    start_jitter_deg=3.0,
    calibration_error_deg=(0.0,) * 6,
)
TASK = "put the boat on the disk"
SIZES = ExpertSizes(width=16, heads=2, mlp_ratio=2.0, mlp_multiple=8, time_features=8)
TINY = TwinArchitecture(
    image_px=32, patch_px=8, vision_width=32, vision_layers=2, vision_mlp=64, text_width=64, text_layers=2,
    text_kv_heads=1, text_mlp=128, adapter_mlp=64, rope_theta=1000.0,
)  # fmt: skip


def recipe(*, shard_episodes: int = 1, success_only: bool = True, **expert: Any) -> DemoRecipe:
    """A recipe of the scripted expert in the tests' world."""
    jobs = ExpertJobs(**(EXPERT | expert))
    return expert_recipe(ENV, jobs, task=TASK, success_only=success_only, shard_episodes=shard_episodes)


def record(out_dir: Path, what: DemoRecipe | None = None, **changes: Any) -> DemoSummary:
    """`record_demos` with the settings of these tests."""
    settings: dict[str, Any] = dict(workers=1, on_event=lambda event: None, max_wall_s=None)
    return record_demos(out_dir=out_dir, recipe=what or recipe(), **(settings | changes))


def tiny_twin(demos: Demonstrations) -> VlaPolicy:
    """A fresh twin with statistics and codec of some demonstrations; the same weights every time."""
    stats, codec = fit_statistics(demos, codec_scale=15, codec_vocab=512)
    return new_twin(codec=codec, stats=stats, task="pick up the boat", seed=0, architecture=TINY)


def dataset_digest(directory: Path) -> dict[str, str]:
    """SHA-256 of every file of the dataset by its path; what only the recording needs is left out."""
    files = sorted(path for part in ("data", "meta") for path in (directory / part).rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def fake_episode(seed: int, ticks: int, *, px: int = 8, failure: str | None = None) -> RecordedEpisode:
    """An episode of random pictures and joints, in which the boat comes 1 cm closer each tick and is pinched."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (ticks, len(CAMERAS), px, px, 3), dtype=np.uint8)
    histograms = np.stack(
        [np.sum([picture_histogram(frame[camera]) for frame in frames], axis=0) for camera in range(len(CAMERAS))]
    )
    trace = [
        TickSample(
            distance_m=0.01 * (ticks - t),
            z_m=0.02,
            upright=1.0,
            boat_speed_m_s=0.0,
            boat_spin_rad_s=0.0,
            max_speed=0.0,
            grip=3,
        )
        for t in range(ticks + 1)
    ]
    success = failure is None
    return RecordedEpisode(
        pictures={camera: [lerobot.encode_png(frame[i]) for frame in frames] for i, camera in enumerate(CAMERAS)},
        histograms=histograms,
        state_deg=rng.normal(0.0, 30.0, (ticks, 6)),
        targets_deg=rng.normal(0.0, 30.0, (ticks, 6)),
        taught_T=np.arange(ticks) < ticks - 2,
        trace=trace,
        metrics={
            "success": success, "success_strict": success, "strict_tick": ticks - 2 if success else None,
            "success_tick": None, "reset_strikes": 0, "ticks": ticks,
        },
        seed=seed, draw=0, step=0, noisy=seed % 2 == 1, missed=False, failure=failure,
    )  # fmt: skip
