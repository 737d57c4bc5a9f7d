"""What a recorded tick costs, part by part, and what the PNG level buys.

Run with `python benchmarks/demos.py [--json]`. Times are processor time of this process, so that a shared machine does
not blur them; read the shares. Pictures are the plain look's unless `--look` names another option of `sim/look`.
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

from vla_rl.config.compose import compose
from vla_rl.sft import lerobot
from vla_rl.sft.feature_stats import picture_histogram
from vla_rl.sft.recipe import ExpertJobs, expert_recipe
from vla_rl.sft.shards import STAGING, shard_paths, write_shard
from vla_rl.sft.sources import open_source
from vla_rl.sim.expert import ScriptedExpert

SEEDS = "100000-100003"


def cpu_ms(work: Callable[[], Any], times: int) -> float:
    """Milliseconds of processor time per call."""
    work()
    started = time.process_time()
    for _ in range(times):
        work()
    return 1000 * (time.process_time() - started) / times


def levels(pictures: list[np.ndarray]) -> list[dict[str, Any]]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("overrides", nargs="*", help="of the simulator, e.g. sim.image_px=224")
    options = parser.parse_args()
    env = compose("demos", options.overrides).component_spec("sim")
    jobs = ExpertJobs(SEEDS, noise_share=0.5, miss_share=0.35, noise_deg=(0.5, 2.0), start_jitter_deg=3.0)
    recipe = expert_recipe(env, jobs, task="bench", success_only=True, shard_episodes=4)
    source = open_source(recipe)
    source.record(100000)
    with TemporaryDirectory() as place:
        (Path(place) / STAGING).mkdir()
        schema = lerobot.data_schema(lerobot.features(recipe.scene["image_px"]))
        started, wall = time.process_time(), time.perf_counter()
        episodes = [source.record(seed) for seed in recipe.jobs()]
        recorded_s, wall_s = time.process_time() - started, time.perf_counter() - wall
        started = time.process_time()
        write_shard(Path(place), 0, episodes, schema, success_only=True)
        written_s = time.process_time() - started
        size = shard_paths(Path(place), 0)[0].stat().st_size
    frames = sum(len(episode) for episode in episodes)
    kept = sum(len(episode) for episode in episodes if episode.failure is None)
    built = source._env._env
    expert = ScriptedExpert(built)
    started = time.process_time()
    for seed in recipe.jobs():
        expert.run(seed, noise=source._noise, record_every=10**6, render=False)
    acting_s = time.process_time() - started
    pictures = [
        lerobot.decode_picture(data) for e in episodes for camera in e.pictures.values() for data in camera[::7]
    ]
    table = levels(pictures)
    encode_s = 2 * next(row["encode_ms"] for row in table if row["level"] == lerobot.PNG_LEVEL) / 1000
    parts = {
        "expert and physics": acting_s / frames,
        "two pictures": cpu_ms(built.observe, 30) / 1000,
        "two PNGs": encode_s,
        "two histograms": 2 * cpu_ms(lambda: picture_histogram(pictures[0]), 100) / 1000,
        "parquet": written_s / frames,
    }
    result = {
        "cpu_ms_a_frame": 1000 * (recorded_s + written_s) / frames,
        "frames_per_cpu_s": frames / (recorded_s + written_s),
        "wall_over_cpu": wall_s / recorded_s,
        "kb_a_frame": size / kept / 1000,
        "mb_an_episode": size / 1e6 / sum(episode.failure is None for episode in episodes),
        "shares": {name: seconds * frames / (recorded_s + written_s) for name, seconds in parts.items()},
        "png": table,
    }
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"{result['cpu_ms_a_frame']:.1f} ms of processor time a frame ({result['frames_per_cpu_s']:.0f} frames/s a core), "
        f"{result['kb_a_frame']:.1f} kB a frame, {result['mb_an_episode']:.2f} MB an episode"
    )
    for name, share in result["shares"].items():
        print(f"  {name:20s} {100 * share:5.1f} %")
    print("PNG level   bytes  encode ms  decode ms")
    for row in table:
        print(f"{row['level']:9d} {row['bytes']:7.0f} {row['encode_ms']:10.2f} {row['decode_ms']:10.2f}")


if __name__ == "__main__":
    main()
