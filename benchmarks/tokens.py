"""What a predict costs: this package's decoding against `transformers` generate, sampling against greedy, by threads.

Run with `python benchmarks/tokens.py` (or `--json`). Both decode the same sixteen real first pictures with the shipped
base under the same grammar, greedily, and must give the same tokens; generate gets the mask as a logits processor and a
stopping criterion, and transformers' own cache. Every repeat runs all variants in turn, so that a ratio compares
neighbours in time: machines are shared and noisy, and only the ratios mean anything. Twice: with sixteen different
prompts (any later replan) and with two prompts of eight draws each (the first replan of a group).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch._dynamo  # loaded before any software rasteriser: see vla_rl.rollout.pool.SerialPool
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from vla_rl.config.compose import compose
from vla_rl.policy.grammar import legal_next
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import GrammarSampler, PredictRequest

ROWS, TEMPERATURE, SEED, DRAWS = 16, 0.7, 300, 8
WORK_S = 8.0  # of the throughput of several processes


class Mask(LogitsProcessor):
    """The remaining-budget mask for generate; a finished row writes bin 0."""

    def __init__(self, policy: VlaPolicy, prompt: int) -> None:
        self.policy, self.prompt = policy, prompt
        self.first = policy.prompt.ids.action_block

    def left(self, ids: Tensor) -> Tensor:
        lengths = self.policy.lengths_V[ids[:, self.prompt :] - self.first]
        return (self.policy.grammar.total - lengths.sum(1)).clamp(min=0)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        left = self.left(ids)
        legal = legal_next(self.policy.lengths_V, left) | (left == 0)[:, None]
        block = slice(self.first, self.first + self.policy.vocabulary)
        masked = torch.full_like(scores, float("-inf"))
        masked[:, block] = scores[:, block].masked_fill(~legal, float("-inf"))
        return masked


class Complete(StoppingCriteria):
    """A row is done when its chunk is."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask

    def __call__(self, ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        return self.mask.left(ids) == 0


@torch.no_grad()
def generate(policy: VlaPolicy, observations: Sequence[Observation]) -> np.ndarray:
    """Masked greedy bins [R, T] by `transformers`."""
    batch = policy.prompt_batch(observations)
    mask = Mask(policy, batch["input_ids"].shape[1])
    ids = policy.model.generate(
        **batch, do_sample=False, max_new_tokens=policy.grammar.total, logits_processor=[mask],
        stopping_criteria=[Complete(mask)], eos_token_id=None, pad_token_id=mask.first,
    )  # fmt: skip
    return (ids[:, mask.prompt :] - mask.first).numpy()


def first_pictures() -> list[Observation]:
    """What the cameras show at the start of sixteen development seeds."""
    env = compose("config", ["experiment=quickstart"]).component("sim")
    seen = []
    for seed in range(SEED, SEED + ROWS):
        look, _ = env.reset(seed=seed)
        seen.append(Observation(np.stack([look["top"], look["wrist"]]), np.array(look["state"])))
    env.close()
    return seen


def load() -> tuple[VlaPolicy, dict[str, GrammarSampler]]:
    """The shipped base, and a sampler for each kind of random key."""
    reader = compose("config", ["experiment=quickstart"])
    policy = reader.component("policy", device="cpu")
    kinds = ("named", "documented", "device")
    return policy, {kind: GrammarSampler(batch_rows=ROWS, policy=policy, run_seed=0, keys=kind) for kind in kinds}


def requests(observations: Sequence[Observation]) -> list[PredictRequest]:
    return [PredictRequest(o, seed=SEED + i // DRAWS, draw=i % DRAWS, replan=0) for i, o in enumerate(observations)]


def measure(observations: Sequence[Observation], repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Median milliseconds of a predict of sixteen rows by a clock in seconds, and the ratios within each repeat."""
    policy, samplers = load()
    asked, greedy = requests(observations), samplers["named"]
    theirs, ours = generate(policy, observations), greedy.sample(asked, 0.0)
    assert all(row[: len(p.bins)].tolist() == p.bins.tolist() for row, p in zip(theirs, ours, strict=True))
    longest = {"greedy": max(len(p.bins) for p in ours)}
    variants: dict[str, Callable[[], Any]] = {
        "generate": lambda: generate(policy, observations),
        "greedy": lambda: greedy.sample(asked, 0.0),
    }
    for kind, sampler in samplers.items():
        longest[kind] = max(len(p.bins) for p in sampler.sample(asked, TEMPERATURE))
        variants[kind] = lambda sampler=sampler: sampler.sample(asked, TEMPERATURE)
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, work in variants.items():
            started = clock()
            work()
            taken[name].append(clock() - started)
    speedup = [g / o for g, o in zip(taken["generate"], taken["greedy"], strict=True)]
    return {
        "ms": {name: statistics.median(times) * 1e3 for name, times in taken.items()},
        "tokens": longest,
        "generate_over_greedy": statistics.median(speedup),
        "sampled_over_greedy": {
            kind: statistics.median(s / g for s, g in zip(taken[kind], taken["greedy"], strict=True))
            for kind in samplers
        },
    }


def throughput(processes: int, threads: int) -> float:
    """Chunks a second of several processes that sample side by side, each with its number of threads."""
    command = [sys.executable, __file__, "--work", "--threads", str(threads)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return sum(float(worker.communicate()[0].splitlines()[-1]) for worker in workers)


def work() -> float:
    """Chunks a second of this process alone, on random pictures."""
    _, samplers = load()
    frames = np.random.default_rng(0).integers(0, 256, (ROWS, 2, 112, 112, 3), dtype=np.uint8)
    asked = requests([Observation(f, np.array([0.0, -90, 50, 75, 0, 0])) for f in frames])
    samplers["named"].sample(asked, 0.0)
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < WORK_S:
        samplers["named"].sample(asked, 0.0)
        done += ROWS
    return done / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processor", action="store_true", help="processor time instead of wall time (busy machines)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        torch.set_num_threads(options.threads[0])
        print(work())
        return
    pictures, clock = first_pictures(), time.process_time if options.processor else time.perf_counter
    cases = {"16 prompts": pictures, "2 prompts x 8 draws": [pictures[i // DRAWS] for i in range(ROWS)]}
    results: list[dict[str, Any]] = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        results += [{"threads": threads, "case": n, **measure(o, options.repeats, clock)} for n, o in cases.items()]
    side_by_side = {
        f"{processes} x {threads}": throughput(processes, threads)
        for processes, threads in ((1, 1), (1, 2), (2, 1), (2, 2))
    }
    if options.json:
        print(json.dumps({"predict": results, "chunks_per_s": side_by_side}))
        return
    print(f"{'':<30}{'generate':>10}{'greedy':>9}{'ratio':>7}   sampled over greedy, by random key (longest stream)")
    for row in results:
        tokens = row["tokens"]
        over = "  ".join(f"{k} {v:.2f} ({tokens[k]})" for k, v in row["sampled_over_greedy"].items())
        name = f"{row['case']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"
        ms = row["ms"]
        print(f"{name:<30}{ms['generate']:>7.0f} ms{ms['greedy']:>6.0f} ms{row['generate_over_greedy']:>7.2f}   {over}")
    print("\nchunks a second, processes x threads: " + ", ".join(f"{k}: {v:.1f}" for k, v in side_by_side.items()))


if __name__ == "__main__":
    main()
