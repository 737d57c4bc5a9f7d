"""What an episode costs on Ray as a wave grows, with several nodes on this machine.

Run with `python benchmarks/ray_wave.py --nodes 1,2,4 --episodes 64,128,256,512`. One cluster, whose nodes have one CPU
and one worker each; the pools of all settings stand at the same time and take turns, so that a noisy machine is noisy
to all of them. The episodes are those of the real task, cut short, under a policy that costs nothing: what is measured
is environments, placement and transport. One JSON line per setting: wall seconds for an episode, the smallest and the
median of the repeats, and how far they lie apart. `"nodes": 0` is the pool of processes with as many workers as the
largest number of nodes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from ray.cluster_utils import Cluster

from vla_rl.config.schema import SimConfig
from vla_rl.policy.sampler import Prediction, PredictRequest
from vla_rl.rollout.pool import Pool, ProcessPool
from vla_rl.rollout.ray_pool import RayPool
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.rollout.wave import run_wave

FIRST_SEED = 300
HORIZON = 30


class Wandering:
    """A sampler that moves the arm a little from where it is, by the request's key."""

    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: PredictRequest) -> Prediction:
        rng = np.random.default_rng([request.seed, request.draw, request.replan])
        chunk_deg = request.observation.state_deg + rng.normal(0.0, 1.0, (HORIZON, 6)).cumsum(0)
        none, key = np.zeros(0), (0, request.draw, request.seed, request.replan)
        return Prediction(none.astype(np.int16), none.astype(np.float32), none.astype(np.uint8), chunk_deg, key)


def seconds(pool: Pool, episodes: int, slots: int) -> float:
    """Wall seconds of a wave, for an episode."""
    specs = [EpisodeSpec(FIRST_SEED + i // 8, i % 8) for i in range(episodes)]
    wave = run_wave(
        sampler=Wandering(), pool=pool, specs=specs, temperature=1.0, slots=slots, policy_digest="", keep_rows=False
    )
    return wave.wall_s / episodes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1,2,4")
    parser.add_argument("--episodes", default="64,128,256,512")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--image-px", type=int, default=112)
    options = parser.parse_args()
    nodes = [int(word) for word in options.nodes.split(",")]
    sizes = [int(word) for word in options.episodes.split(",")]
    sim = dataclasses.asdict(SimConfig(max_ticks=options.ticks, image_px=options.image_px))
    same: dict[str, Any] = {"groups": 2, "timeout_s": 120.0, "env_spec": sim}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    with ExitStack() as stack:
        stack.callback(cluster.shutdown)
        pools: dict[int, Pool] = {0: stack.enter_context(ProcessPool(workers=max(nodes), **same))}
        for _ in range(max(nodes)):
            cluster.add_node(num_cpus=len(nodes))
        for count in nodes:
            ray = RayPool(workers=count, address=cluster.address, cpus=1.0, resources={}, placement="spread", **same)
            pools[count] = stack.enter_context(ray)
        for pool in pools.values():
            seconds(pool, 2 * options.slots, options.slots)  # every environment is built
        found: dict[tuple[int, int], list[float]] = {(n, size): [] for n in pools for size in sizes}
        for _ in range(options.repeats):
            for (count, size), times in found.items():
                times.append(seconds(pools[count], size, options.slots))
    for (count, size), times in found.items():
        middle = statistics.median(times)
        line = {
            "nodes": count, "workers": count or max(nodes), "episodes": size, "ticks": options.ticks,
            "slots": options.slots, "repeats": len(times), "episode_s_median": round(middle, 5),
            "episode_s_min": round(min(times), 5), "spread": round((max(times) - min(times)) / middle, 3),
        }  # fmt: skip
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
