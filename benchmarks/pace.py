"""Where a GRPO step's time goes on this machine, each part against a ceiling that is measured or computed first.

Run with `make bench` (or `python benchmarks/pace.py --json`). The network's parts are compared with the floating-point
operations that torch counts for them, at the rate of a large matrix product on the same threads in the same run; a
control tick is compared with bare `mj_step`. Machines are shared and noisy: read the ratios, not the milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch._dynamo  # loaded before any software rasteriser: see vla_rl.rollout.pool.SerialPool
from torch.utils.flop_counter import FlopCounterMode

from vla_rl.config.compose import compose
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import PredictRequest

ROWS, TEMPERATURE, SEED = 16, 0.7, 300


def seconds(work: Callable[[], Any], *, repeats: int = 5) -> float:
    """Median wall time of `work` after one warm-up."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def matmul_gflops(side: int = 2048) -> float:
    """Rate of a square float32 product: the ceiling of everything the network does on these threads."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    return 2 * side**3 / seconds(lambda: a @ b) / 1e9


def flops(work: Callable[[], Any]) -> float:
    """Floating-point operations of the matrix products in `work`."""
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def network(rate_gflops: float) -> list[dict[str, Any]]:
    """Prefill and decode, scoring, and scoring with its gradient, per row."""
    reader = compose("config", ["experiment=quickstart", f"sampler.batch_rows={ROWS}"])
    policy = reader.component("policy", device="cpu")
    sampler = reader.component("sampler", policy=policy, run_seed=0)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (ROWS, 2, 112, 112, 3), dtype=np.uint8)
    observations = [Observation(f, np.array([0.0, -90, 50, 75, 0, 0])) for f in frames]
    requests = [PredictRequest(observation=o, seed=SEED, draw=i, replan=0) for i, o in enumerate(observations)]
    bins = [p.bins for p in sampler.sample(requests, TEMPERATURE)]

    def score() -> torch.Tensor:
        return score_rows(policy, observations, bins, TEMPERATURE).logp_RT.sum()

    @torch.no_grad()
    def forward() -> torch.Tensor:
        return score()

    forward_flops = flops(forward)
    parts = [
        ("sample a chunk", lambda: sampler.sample(requests, TEMPERATURE), forward_flops),
        ("score a row", forward, forward_flops),
        ("score a row with its gradient", lambda: score().backward(), 3 * forward_flops),
    ]
    rows = []
    for name, work, operations in parts:
        taken = seconds(work) / ROWS
        ceiling = operations / ROWS / (rate_gflops * 1e9)
        rows.append({"part": name, "ms": taken * 1e3, "ceiling_ms": ceiling * 1e3, "share": ceiling / taken})
    return rows


def world() -> list[dict[str, Any]]:
    """A control tick against bare physics, and an observation of both cameras."""
    from vla_rl.sim.gl import mujoco

    reader = compose("config", ["experiment=quickstart"])
    env = reader.component("sim")
    env.reset(seed=SEED)
    target = np.array(env.scene.protocol.home_deg)
    model, data = env.scene.model, mujoco.MjData(env.scene.model)
    mujoco.mj_setState(model, data, env.scene.settled_state, mujoco.mjtState.mjSTATE_INTEGRATION)
    steps = round(1 / 30 / model.opt.timestep)

    def ticks() -> None:
        env.begin(SEED)
        for _ in range(300):
            env.tick(target)

    bare = seconds(lambda: mujoco.mj_step(model, data, 300 * steps)) / 300
    tick = seconds(ticks) / 300
    look = seconds(env.observe)
    return [
        {"part": "control tick with its metrics", "ms": tick * 1e3, "ceiling_ms": bare * 1e3, "share": bare / tick},
        {"part": "observation, two cameras", "ms": look * 1e3, "ceiling_ms": None, "share": None},
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rate = matmul_gflops()
    rows = [*network(rate), *world()]
    if options.json:
        print(json.dumps({"threads": options.threads, "matmul_gflops": rate, "parts": rows}))
        return
    print(f"{options.threads} threads, square float32 product: {rate:.0f} GFLOP/s\n")
    print(f"{'part':<32}{'ms':>9}{'ceiling ms':>12}{'of ceiling':>12}")
    for row in rows:
        ceiling = "–" if row["ceiling_ms"] is None else f"{row['ceiling_ms']:.2f}"
        share = "–" if row["share"] is None else f"{row['share']:.0%}"
        print(f"{row['part']:<32}{row['ms']:>9.2f}{ceiling:>12}{share:>12}")


if __name__ == "__main__":
    main()
