"""What sampling through an adapter costs, and what merging it before a rollout would: in nats, and in time.

``python benchmarks/adapter_gap.py [CHECKPOINT] --ranks 4 16`` samples pictures of noise with a policy whose adapter has
moved, once through the adapter and once through a merged copy, and compares both with what the trainer scores through
the adapter. Run it on a CPU with nothing beside it.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence

import numpy as np
import torch

from vla_rl.config.schema import LoraConfig, PolicyConfig
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.lora import LoraSettings, attach, merge, pairs
from vla_rl.policy.policy import VlaPolicy, load_policy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import GrammarSampler, Prediction, PredictRequest
from vla_rl.seeds import stream

ROWS, SPREAD = 16, 0.01  # of a batch; standard deviation of B


def load(checkpoint: str) -> VlaPolicy:
    return load_policy(checkpoint=checkpoint, device="cpu", serve_head="ar", task=PolicyConfig.task)


@torch.no_grad()
def adapted(checkpoint: str, rank: int) -> VlaPolicy:
    """A policy whose adapter does something."""
    policy, rng = load(checkpoint), stream("benchmark", rank)
    attach(policy, LoraSettings(rank, 2.0 * rank, tuple(LoraConfig().targets)), seed=0)
    for pair in pairs(policy.model):
        pair.up.copy_(torch.from_numpy(rng.normal(0, SPREAD, tuple(pair.up.shape))))
    return policy


def sampled(policy: VlaPolicy, observations: Sequence[Observation]) -> tuple[list[Prediction], float]:
    """Answers, and the seconds of the better of three batches."""
    sampler = GrammarSampler(batch_rows=ROWS, policy=policy, run_seed=0)
    requests = [PredictRequest(o, 300, draw, 0) for draw, o in enumerate(observations)]
    seconds, answers = [], []
    for _ in range(4):  # the first allocates
        started = time.perf_counter()
        answers = sampler.sample(requests, 1.0)
        seconds.append(time.perf_counter() - started)
    return answers, min(seconds[1:])


@torch.no_grad()
def gaps(policy: VlaPolicy, observations: Sequence[Observation], answers: Sequence[Prediction]) -> np.ndarray:
    """|trainer - sampler| of every token."""
    scores = score_rows(policy, observations, [a.bins for a in answers], 1.0).logp_RT.numpy()
    return np.concatenate([np.abs(row[: len(a.bins)] - a.logp) for row, a in zip(scores, answers, strict=True)])


def main() -> None:
    """A line for the base, and two for each rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", default="bundled:tiny_start")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = stream("benchmark", 0)
    observations = [
        Observation(rng.integers(0, 256, (2, 112, 112, 3), dtype=np.uint8), rng.uniform(-30, 30, 6))
        for _ in range(ROWS)
    ]

    def line(name: str, sampling: VlaPolicy, scoring: VlaPolicy) -> None:
        answers, seconds = sampled(sampling, observations)
        found = gaps(scoring, observations, answers)
        equal = f"{int((found == 0).sum())} of {len(found)} tokens equal"
        print(f"{name:24} {seconds:.2f} s a batch, {equal}, largest difference {found.max():.1e} nats", flush=True)

    base = load(options.checkpoint)
    line("base", base, base)
    for rank in options.ranks:
        policy = adapted(options.checkpoint, rank)
        line(f"rank {rank}, adapter apart", policy, policy)
        merged = copy.deepcopy(policy)
        merge(merged)
        line(f"rank {rank}, merged", merged, policy)


if __name__ == "__main__":
    main()
