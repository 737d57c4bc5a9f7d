"""What GRPO's own bookkeeping costs, and how fast an update is: micro-batches, a ceiling, TRL beside it.

Run with `python benchmarks/trainer.py` (or `--json`; `--skip-run` leaves the training out). Three parts:

1. Ceiling, before anything is timed: the floating-point operations that torch counts for a forward pass over the rows,
   times three for its backward pass, at the rate of a large float32 product on the same threads.
2. An update's forward and backward pass over the same sixty-four rows of the shipped base at several micro-batches, in
   turn within every repeat, so that a ratio compares neighbours in time. If `trl` can be imported its `GRPOTrainer`
   takes a step on the same network, prompt lengths and action tokens: its own loss and backward pass, without
   generation. It gets no pictures, which saves it the vision tower, and no grammar mask; it scores the whole
   vocabulary. Beside it stands our update with the surface `text_stack` on stored picture features, as `text only`: no
   run has them, but then both do the same work.
3. A real run of a few steps: which share of a step is neither episodes nor forward and backward passes nor evaluation.
   What a wave spends on storing its episodes counts as overhead, although the workers play on meanwhile.

Machines are shared and noisy, and only the ratios mean anything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # loaded before any software rasteriser: see vla_rl.rollout.pool.SerialPool
from torch.utils.flop_counter import FlopCounterMode

from vla_rl.config.compose import compose
from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.policy import rowgradients
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import PredictRequest
from vla_rl.rl.lessons import Lesson
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.surfaces import Full, TextStack
from vla_rl.rl.update import Fixed, accumulate_gradient
from vla_rl.rollout.records import EpisodeSpec, Row

ROWS, PICTURES, TEMPERATURE, SEED = 64, 16, 0.7, 300
SIZES = (1, 2, 4, 8, 16, 32)


def real_rows(policy: VlaPolicy, reader: Any) -> list[Row]:
    """Sixty-four sampled rows: four draws at the start of each of sixteen development seeds."""
    env = reader.component("sim")
    sampler = reader.component("sampler", policy=policy, run_seed=0)
    rows: list[Row] = []
    for seed in range(SEED, SEED + PICTURES):
        look, _ = env.reset(seed=seed)
        seen = Observation(np.stack([look["top"], look["wrist"]]), np.array(look["state"]))
        asked = [PredictRequest(seen, seed, draw, 0) for draw in range(ROWS // PICTURES)]
        for request, got in zip(asked, sampler.sample(asked, TEMPERATURE), strict=True):
            spec = EpisodeSpec(seed, request.draw)
            rows.append(
                Row(spec, 0, seen.frames, seen.state_deg, got.bins, got.logp, got.legal_packed, got.rng_key, "")
            )
    env.close()
    return sorted(rows, key=lambda row: len(row.bins))


def matmul_gflops(clock: Callable[[], float], side: int = 2048) -> float:
    """Rate of a square float32 product on these threads."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    return 2 * side**3 / min(clocked(lambda: a @ b, clock) for _ in range(5)) / 1e9


def clocked(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call."""
    started = clock()
    work()
    return clock() - started


def update_of(policy: VlaPolicy, rows: Sequence[Row], microbatch: int) -> Callable[[], None]:
    """Forward and backward over all rows at a micro-batch; gradients are dropped."""
    settings = UpdateSettings.of(LossConfig(), OptimConfig(microbatch_rows=microbatch))
    lessons = [Lesson(row, (-1.0) ** index, 1.0) for index, row in enumerate(rows)]
    tokens = float(sum(len(row.bins) for row in rows))

    def work() -> None:
        accumulate_gradient(policy, lessons, tokens, settings, TEMPERATURE, Fixed(None, None))
        policy.model.zero_grad(set_to_none=True)

    return work


class TextOnly:
    """Our update without the pictures' network: features are computed once and taken from a list."""

    def __init__(self, rows: Sequence[Row], microbatch: int) -> None:
        self.policy = compose("config", ["experiment=quickstart"]).component("policy", device="cpu")
        TextStack().trainable(self.policy)
        self._work = update_of(self.policy, rows, microbatch)
        self._kept: list[torch.Tensor] = []
        self._replay = False

    def __call__(self) -> None:
        from vla_rl.policy import trunk

        original, position = trunk.image_tokens, iter(list(self._kept))

        def stored(*arguments: Any) -> torch.Tensor:
            if self._replay:
                return next(position)
            with torch.no_grad():
                self._kept.append(original(*arguments))
            return self._kept[-1]

        trunk.image_tokens = stored
        try:
            self._work()
        finally:
            trunk.image_tokens = original
        self._replay = True


def trl_step(policy: VlaPolicy, rows: Sequence[Row], microbatch: int) -> Callable[[], None]:
    """One optimiser step of TRL's `GRPOTrainer` on the rows' prompts and tokens, in micro-batches."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    prompts = policy.prompt.prompt_ids(
        policy.state_tensor([Observation(row.frames, row.state_deg) for row in rows])
    ).clone()
    prompts[:, policy.prompt.image_slots] = policy.prompt.ids.state_start  # no pictures: ordinary tokens instead
    batches = []
    for start in range(0, len(rows), microbatch):
        part = rows[start : start + microbatch]
        longest = max(len(row.bins) for row in part)
        ids, mask = torch.zeros(len(part), longest, dtype=torch.long), torch.zeros(len(part), longest, dtype=torch.long)
        for index, row in enumerate(part):
            ids[index, : len(row.bins)] = torch.from_numpy(row.bins.astype(np.int64)) + policy.prompt.ids.action_block
            mask[index, : len(row.bins)] = 1
        own = prompts[start : start + len(part)]
        advantages = torch.tensor([(-1.0) ** (start + index) for index in range(len(part))])
        batches.append(
            {
                "prompt_ids": own, "prompt_mask": torch.ones_like(own), "completion_ids": ids,
                "completion_mask": mask, "advantages": advantages,
                "mm_token_type_ids": torch.zeros(len(part), own.shape[1] + longest, dtype=torch.long),
                "num_items_in_batch": torch.tensor(sum(len(row.bins) for row in rows)),
            }
        )  # fmt: skip

    class Stored(GRPOTrainer):
        """Takes stored rows where it would generate."""

        served = 0

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            self.served += 1
            return dict(batches[(self.served - 1) % len(batches)])

    def config(steps: int, where: str) -> Any:
        return GRPOConfig(
            output_dir=where, per_device_train_batch_size=microbatch, gradient_accumulation_steps=len(batches),
            num_generations=8, max_steps=steps, learning_rate=1e-12, temperature=TEMPERATURE, beta=0.0,
            epsilon=0.2, epsilon_high=0.28, loss_type="dapo", gradient_checkpointing=False, bf16=False, fp16=False,
            use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip

    words = PreTrainedTokenizerFast(tokenizer_object=policy.tokenizer)
    words.pad_token = words.eos_token = words.convert_ids_to_tokens(0)
    trainer = Stored(
        model=policy.model, processing_class=words, reward_funcs=lambda completions, **_: [0.0] * 8,
        args=config(1, tempfile.mkdtemp()), train_dataset=Dataset.from_list([{"prompt": "x"}] * ROWS),
    )  # fmt: skip
    optimizer = trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = len(batches)

    def work() -> None:
        trainer.model.train()
        for batch in batches:
            trainer.training_step(trainer.model, batch, num_items_in_batch=None)
        optimizer.zero_grad(set_to_none=True)

    return work


def update(repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """The ceiling, then tokens a second by micro-batch, and TRL's if it is here."""
    reader = compose("config", ["experiment=quickstart"])
    policy = reader.component("policy", device="cpu")
    Full().trainable(policy)
    rows = real_rows(policy, reader)
    tokens = sum(len(row.bins) for row in rows)
    rate = matmul_gflops(clock)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        from vla_rl.policy.logprob import score_rows

        seen = [Observation(row.frames, row.state_deg) for row in rows]
        score_rows(policy, seen, [row.bins for row in rows], TEMPERATURE)
    ceiling_s = 3 * counter.get_total_flops() / (rate * 1e9)
    print(f"ceiling: {tokens / ceiling_s:.0f} action tokens/s ({rate:.0f} GFLOP/s)", flush=True)
    variants: dict[str, Callable[[], None]] = {str(size): update_of(policy, rows, size) for size in SIZES}
    variants["text only 16"] = TextOnly(rows, 16)
    if importlib.util.find_spec("trl"):
        other = reader.component("policy", device="cpu")
        TextStack().trainable(other)
        rowgradients.detach(other.model)  # it reads the head in its own way
        variants |= {f"trl {size}": trl_step(other, rows, size) for size in (1, 16)}
    for work in variants.values():
        work()
    times = {name: [] for name in variants}
    for _ in range(repeats):
        for name, work in variants.items():
            times[name].append(clocked(work, clock))
    parts = [
        {
            "variant": name,
            "tokens_per_s": tokens / statistics.median(taken),
            "over_one": statistics.median(one / own for one, own in zip(times["1"], taken, strict=True)),
            "of_ceiling": ceiling_s / statistics.median(taken),
        }
        for name, taken in times.items()
    ]
    return {"rows": len(rows), "tokens": tokens, "gflops": rate, "ceiling_tokens_per_s": tokens / ceiling_s,
            "parts": parts}  # fmt: skip


class Clock:
    """Seconds spent in the functions that are wrapped."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        """Replace `owner.attribute` by itself with a clock around it."""
        original = getattr(owner, attribute)

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*arguments, **named)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

        setattr(owner, attribute, timed)


def overhead(steps: int) -> dict[str, Any]:
    """Shares of some steps of the quickstart."""
    from vla_rl.cli.main import main as vla_rl
    from vla_rl.rl import checkpoint, drift, update, waves
    from vla_rl.rl import trainer as grpo
    from vla_rl.rollout import store

    clock = Clock()
    for owner, attribute, name in (
        (grpo.GrpoTrainer, "run", "run"),
        (grpo.GrpoTrainer, "_preflight", "start"),
        (grpo.GrpoTrainer, "_restore", "start"),
        (grpo.GrpoTrainer, "_evaluate", "evaluation"),
        (waves, "run_wave", "episodes"),
        (store, "write_episode", "storing episodes"),
        (update, "accumulate_gradient", "forward and backward"),
        (drift, "score_rows", "forward and backward"),
        (torch.optim.AdamW, "step", "optimiser"),
        (checkpoint, "save_checkpoint", "checkpoints"),
    ):
        clock.wrap(owner, attribute, name)
    with tempfile.TemporaryDirectory() as place:
        arguments = [
            "experiment=quickstart",
            f"run.steps={steps}",
            "eval.seeds=300-301",
            f"run.dir={Path(place) / 'run'}",
        ]
        if vla_rl(["train", *arguments]) != 0:
            raise SystemExit("the run failed")
    seconds = clock.seconds
    steps_s = seconds["run"] - seconds["start"] - seconds["evaluation"]
    useful = seconds["episodes"] - seconds["storing episodes"] + seconds["forward and backward"]
    return {
        "steps_s": steps_s,
        "overhead": 1 - useful / steps_s,
        "shares": {name: seconds[name] / steps_s for name in seconds if name not in ("run", "start", "evaluation")},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--processor-time", action="store_true", help="for the update: on a busy machine, with 1 thread"
    )
    parser.add_argument("--skip-run", action="store_true")
    parser.add_argument("--steps", type=int, default=2, help="of the real run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.processor_time else time.perf_counter
    told: dict[str, Any] = {"threads": options.threads, "update": update(options.repeats, clock)}
    if not options.skip_run:
        told["step"] = overhead(options.steps)
    if options.json:
        print(json.dumps(told))
        return
    print(f"{'micro-batch':<16}{'tokens/s':>10}{'over 1':>8}{'of ceiling':>12}")
    for part in told["update"]["parts"]:
        line = f"{part['variant']:<16}{part['tokens_per_s']:>10.0f}{part['over_one']:>8.2f}{part['of_ceiling']:>12.0%}"
        print(line)
    if "step" in told:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in told["step"]["shares"].items())
        print(f"\noverhead {told['step']['overhead']:.1%} of {told['step']['steps_s']:.0f} s; {shares}")


if __name__ == "__main__":
    main()
