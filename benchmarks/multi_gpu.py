"""What several GPUs gain in an update, and that they compute the same: one JSON object a line.

Run with `make bench-multi-gpu GPUS=2`, or `torchrun --nproc-per-node 2 benchmarks/multi_gpu.py [overrides]`; without
GPUs it rehearses on as many CPU processes. Rows are sampled from the policy on pictures of noise, so nothing is
rendered. Overrides are those of `vla-rl train`, e.g. `policy=scratch optim.microbatch_rows=8`.

1. `gradient`: of all rows, by all processes, against rank 0's alone: the difference's norm over the norm, of all
   tensors together and of the worst tensor that is not zero but for rounding.
2. `weights`: after one update from the same start: the same of the step that they took.
3. `speed`: seconds of an update's passes by one process and by all, in turn, medians; the weights' way back to rank 0,
   which a run pays too, by itself.

Nothing is asserted: machines are shared.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from vla_rl.config.compose import compose
from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import PredictRequest, release
from vla_rl.rl.lessons import Lesson
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.sharedlearner import Together
from vla_rl.rl.student import Student
from vla_rl.rl.team import Team
from vla_rl.rl.update import Fixed, accumulate_gradient, build_optimizer, gradient_passes
from vla_rl.rollout.records import EpisodeSpec, Row

PICTURES, TEMPERATURE, SIDE = 8, 0.7, 378
LEAST = 1e-6  # a tensor whose gradient is a smaller part of the whole is zero but for rounding


class Bench:
    """One rank of the benchmark.

    Args:
        overrides: of `vla-rl train`.
        rows: how many rows an update reads.
    """

    def __init__(self, overrides: Sequence[str], rows: int) -> None:
        self.team = Team()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.team.connect(device, 600.0)
        self.on_gpu = device == "cuda"
        reader = compose("config", ["experiment=quickstart", *overrides])
        loss, optim = reader.section("loss", LossConfig), reader.section("optim", OptimConfig)
        self.settings, surface = UpdateSettings.of(loss, optim), reader.component("surface", run_seed=0)
        self.policy = reader.component("policy", device=device)
        self.policy.recompute = optim.recompute
        self.parameters = surface.trainable(self.policy)
        own = copy.copy(self.policy)
        own.model = copy.deepcopy(self.policy.model)
        self.student = Student(own, [name for name, _ in self.parameters], surface, optim, self.settings)
        self.optimizer = build_optimizer(self.parameters, optim, surface)
        made: list[Any] = [self._lessons(reader, rows) if self.leads else None]
        dist.broadcast_object_list(made, 0, group=self.team.control)
        self.lessons: list[Lesson] = made[0]
        self.mine = self.lessons[self.team.rank :: self.team.size]
        self.tokens = float(sum(len(lesson.row.bins) for lesson in self.lessons))
        self.ranks = Together(self.team, self.student.policy, self.lessons[0].row, TEMPERATURE)

    @property
    def leads(self) -> bool:
        return self.team.rank == 0

    def _lessons(self, reader: Any, rows: int) -> list[Lesson]:
        """Sampled rows of which every other one was good."""
        sampler, rng = reader.component("sampler", policy=self.policy, run_seed=0), np.random.default_rng(0)
        lessons = []
        for seed in range(-(-rows // PICTURES)):
            seen = Observation(rng.integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8), np.zeros(6))
            asked = [PredictRequest(seen, 300 + seed, draw, 0) for draw in range(PICTURES)]
            for request, got in zip(asked, sampler.sample(asked, TEMPERATURE), strict=True):
                spec = EpisodeSpec(request.seed, request.draw)
                row = Row(spec, 0, seen.frames, seen.state_deg, got.bins, got.logp, got.legal_packed, got.rng_key, "")
                lessons.append(Lesson(row, (-1.0) ** request.draw, 1.0))
        release(sampler)
        return sorted(lessons[:rows], key=lambda lesson: len(lesson.row.bins))

    # ------------------------------------------------------------------------------------------------- what is compared
    def gradient(self) -> None:
        """Line 1."""
        fixed = Fixed(None, None)
        accumulate_gradient(
            self.student.policy, self.mine, self.tokens, self.settings, TEMPERATURE, fixed, ranks=self.ranks
        )
        shared = {n: p.grad.full_tensor().cpu() for n, p in self.student.parameters if p.grad is not None}
        self.student.optimizer.zero_grad(set_to_none=True)
        if self.leads:
            accumulate_gradient(self.policy, self.lessons, self.tokens, self.settings, TEMPERATURE, fixed)
            alone = {n: p.grad.cpu() for n, p in self.parameters if p.grad is not None}
            self.optimizer.zero_grad(set_to_none=True)
            tell("gradient", **self._facts(), **apart(shared, alone))

    def weights(self) -> None:
        """Line 2; both have taken a step afterwards."""
        before = {name: p.detach().cpu().clone() for name, p in self.parameters}
        self._passes_shared()
        shared = {name: weight.cpu() - before[name] for name, weight in self.student.weights()}
        if self.leads:
            self._passes_alone()
            alone = {name: p.detach().cpu() - before[name] for name, p in self.parameters}
            tell("weights", **self._facts(), **apart(shared, alone))

    def speed(self, repeats: int) -> None:
        """Line 3."""
        times: dict[str, list[float]] = {"one_s": [], "shared_s": [], "fetch_s": []}
        for _ in range(repeats):
            if self.leads:
                times["one_s"].append(self._clocked(self._passes_alone))
            dist.barrier(self.team.control)
            times["shared_s"].append(self._clocked(self._passes_shared))
            times["fetch_s"].append(self._clocked(lambda: [None for _ in self.student.weights()]))
        if self.leads:
            taken = {name: statistics.median(values) for name, values in times.items()}
            whole_s = taken["shared_s"] + taken["fetch_s"]
            ratios = {"speed_up": taken["one_s"] / whole_s, "passes_speed_up": taken["one_s"] / taken["shared_s"]}
            tell("speed", **self._facts(), **taken, **ratios)

    def _passes_alone(self) -> None:
        self._passes(self.policy, self.parameters, self.optimizer, self.lessons)

    def _passes_shared(self) -> None:
        student = self.student
        self._passes(student.policy, student.parameters, student.optimizer, self.mine, ranks=self.ranks)

    def _passes(self, policy: Any, parameters: Any, optimizer: Any, lessons: list[Lesson], **more: Any) -> None:
        step = max(1, self.settings.warmup_steps)
        gradient_passes(
            policy=policy, parameters=parameters, optimizer=optimizer, lessons=lessons, divisor=self.tokens,
            settings=self.settings, temperature=TEMPERATURE, step=step, anchor=None, **more,
        )  # fmt: skip

    def _clocked(self, work: Callable[[], Any]) -> float:
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def _facts(self) -> dict[str, Any]:
        device = torch.cuda.get_device_name() if self.on_gpu else "cpu"
        moving = sum(p.numel() for _, p in self.parameters)
        return {
            "processes": self.team.size, "device": device, "parameters": moving, "rows": len(self.lessons),
            "tokens": int(self.tokens), "microbatch_rows": self.settings.limits.rows,
        }  # fmt: skip


def apart(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Any]:
    """How far tensors are from those expected."""
    norms = {name: float(value.double().norm()) for name, value in expected.items()}
    off = {name: float((found[name].double() - value.double()).norm()) for name, value in expected.items()}
    whole = sum(norm**2 for norm in norms.values()) ** 0.5
    worst = max((name for name in off if norms[name] > LEAST * whole), key=lambda name: off[name] / norms[name])
    together = sum(value**2 for value in off.values()) ** 0.5 / whole
    return {"relative": together, "worst": off[worst] / norms[worst], "worst_tensor": worst}


def tell(what: str, **facts: Any) -> None:
    """One line."""
    print(json.dumps({"what": what, **facts}), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        parser.error("start it with torchrun --nproc-per-node 2")
    torch.set_num_threads(1)
    bench = Bench(options.overrides, options.rows)
    bench.gradient()
    bench.weights()
    bench.speed(options.repeats)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
