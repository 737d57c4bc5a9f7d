"""What a recorded tick costs, part by part, and what the PNG level buys.

Run with `python benchmarks/demos.py [--json]`. Times are processor time of this process, so that a shared machine does
not blur them; read the shares.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from vla_rl.config.build import build
from vla_rl.config.compose import compose
from vla_rl.sft import lerobot
from vla_rl.sft.feature_stats import picture_histogram
from vla_rl.sft.recipe import ExpertJobs, expert_recipe
from vla_rl.sft.recording import TickRecorder
from vla_rl.sft.shards import STAGING, shard_paths, write_shard
from vla_rl.sft.sources import ExpertSource

SEEDS = "100000-100003"


def cpu_ms(work: Callable[[], Any], times: int) -> float:
    """Milliseconds of processor time per call."""
    work()
    started = time.process_time()
    for _ in range(times):
        work()
    return 1000 * (time.process_time() - started) / times


def png_levels(pictures: list[np.ndarray]) -> list[dict[str, Any]]:
    """Bytes and milliseconds a picture by PNG level; level 0 is uncompressed."""
    rows = []
    for level in (0, 1, 3, 6):

        def encode(level: int = level) -> list[bytes]:
            buffers = [io.BytesIO() for _ in pictures]
            for picture, buffer in zip(pictures, buffers, strict=True):
                Image.fromarray(picture).save(buffer, "PNG", compress_level=level)
            return [buffer.getvalue() for buffer in buffers]

        encoded = encode()
        decode = cpu_ms(lambda encoded=encoded: [lerobot.decode_picture(data) for data in encoded], 3)
        size = float(np.mean([len(data) for data in encoded]))
        count = len(pictures)
        rows.append(
            {"level": level, "bytes": size, "encode_ms": cpu_ms(encode, 3) / count, "decode_ms": decode / count}
        )
    return rows


class TimedPictures:
    """An environment that adds up what its observations cost."""

    def __init__(self, env: Any) -> None:
        self._env, self.spent_s = env, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def observe(self) -> Any:
        started = time.process_time()
        seen = self._env.observe()
        self.spent_s += time.process_time() - started
        return seen


def measure(overrides: list[str]) -> dict[str, Any]:
    """Record a few episodes into one shard and account for the time."""
    spec = compose("demos", overrides).component_spec("sim")
    jobs = ExpertJobs(SEEDS, noise_share=0.5, miss_share=0.35, noise_deg=(0.5, 2.0), start_jitter_deg=3.0)
    recipe = expert_recipe(spec, jobs, task="bench", success_only=True, shard_episodes=4)
    env = TimedPictures(build(recipe.env))
    source = ExpertSource(TickRecorder(env), recipe)
    source.record(100000)
    env.spent_s, started = 0.0, time.process_time()
    episodes = [source.record(seed) for seed in recipe.jobs()]
    recorded_s = time.process_time() - started
    with TemporaryDirectory() as place:
        (Path(place) / STAGING).mkdir()
        schema = lerobot.data_schema(lerobot.features(recipe.scene["image_px"]))
        started = time.process_time()
        write_shard(Path(place), 0, episodes, schema, success_only=True)
        written_s = time.process_time() - started
        size = shard_paths(Path(place), 0)[0].stat().st_size
    frames, kept = sum(map(len, episodes)), [episode for episode in episodes if episode.failure is None]
    pictures = [lerobot.decode_picture(d) for e in kept for camera in e.pictures.values() for d in camera[::7]]
    table = png_levels(pictures)
    encode_s = 2 * frames * next(row["encode_ms"] for row in table if row["level"] == lerobot.PNG_LEVEL) / 1000
    histogram_s = 2 * frames * cpu_ms(lambda: picture_histogram(pictures[0]), 100) / 1000
    parts = {"two pictures": env.spent_s, "two PNGs": encode_s, "two histograms": histogram_s, "parquet": written_s}
    total_s = recorded_s + written_s
    parts["expert, physics, rest"] = total_s - sum(parts.values())
    return {
        "cpu_ms_a_frame": 1000 * total_s / frames,
        "frames_a_cpu_s": frames / total_s,
        "kb_a_frame": size / sum(map(len, kept)) / 1000,
        "mb_an_episode": size / len(kept) / 1e6,
        "shares": {name: seconds / total_s for name, seconds in parts.items()},
        "png": table,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("overrides", nargs="*", help="of the simulator, e.g. sim.image_px=224")
    options = parser.parse_args()
    result = measure(options.overrides)
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"{result['cpu_ms_a_frame']:.1f} ms of processor time a frame: {result['frames_a_cpu_s']:.0f} frames/s a core"
    )
    print(f"{result['kb_a_frame']:.1f} kB a frame, {result['mb_an_episode']:.2f} MB an episode")
    for name, share in result["shares"].items():
        print(f"  {name:21s} {100 * share:5.1f} %")
    print("PNG level   bytes  encode ms  decode ms")
    for row in result["png"]:
        print(f"{row['level']:9d} {row['bytes']:7.0f} {row['encode_ms']:10.2f} {row['decode_ms']:10.2f}")


if __name__ == "__main__":
    main()
