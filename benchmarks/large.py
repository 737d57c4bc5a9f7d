"""A network of billions of parameters on one GPU: ceilings first, then the plan, then real steps of `vla-rl train`.

    python benchmarks/large.py STAGE [STAGE ...] [--out FILE] [--small] [override ...]

Each stage appends one JSON line to FILE (default: outputs/bench-gpu/results.jsonl) with the card and the versions. A
stage whose line is there already is left alone, so that a chain of them can be interrupted; each takes minutes, at most
nine on one H200. `make bench-gpu` runs all. `--small` takes a network of a hundred thousand parameters instead, on
whatever there is: a rehearsal.

ceilings        rates of this card (copies, products in TF32 and bfloat16), and what a wave and an update would take at
                them: products of the whole network for prompts and gradients, reading every weight once a token
plan-VARIANT    `vla-rl plan`: the prediction, of a network with random weights in the sizes of a release
step-VARIANT    `vla-rl train` for one update of 8 x 8 episodes that play all their 30 replans, with its checkpoint
agree           shipped base, same rows: losses and gradients of CPU and GPU, tokens that both sample for the same keys
twice           shipped base: the same run of two small updates, two times: how far weights are apart
batches         shipped base: log-probabilities and tokens of the same rows in predicts of other sizes

VARIANT is tf32 (float32 weights, documented precision), mixed (bfloat16 for sampling and gradient passes, weights in
float32) or patch (surface=patch_only).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
import transformers

from vla_rl.cli.main import main as vla_rl
from vla_rl.config.compose import compose
from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.sampler import PredictRequest
from vla_rl.rl.lessons import Lesson
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.update import Fixed, accumulate_gradient
from vla_rl.rollout.records import EpisodeSpec, Row
from vla_rl.sim.canary import require_rendering

GIB = 2**30
TOKENS = 64  # of a stream, about
LARGE = (
    "policy=scratch", "surface=text_stack", "geometry=documented", "reward=v1", "loss=documented", "optim=documented",
    "sim.max_ticks=900", "sim.terminate_on=never", "sim.stop_hopeless=false", "sampler.keys=device", "eval.seeds=300",
    "eval.every=null", "run.steps=1", "run.device=auto", "optim.recompute=true", "optim.microbatch_rows=16",
    "policy.tf32=true", "pool.workers=14", "pool.groups=2", "sampler.batch_rows=32", "eval.slots=64", "loss.kl_rows=0",
    "loss.max_first_gap=100", *("geometry.min_group_std_cm=0", "loss.entropy_bonus=1e-9"),  # every row teaches
)  # fmt: skip
VARIANTS = {
    "tf32": ("loss.max_first_gap=0.5",),
    "mixed": ("sampler.dtype=bfloat16", "optim.precision=bfloat16"),
    "patch": ("surface=patch_only", "sampler.dtype=bfloat16", "optim.precision=bfloat16"),
}
SMALL = (
    "policy.text_width=64", "policy.text_layers=2", "policy.text_heads=2", "policy.text_kv_heads=1",
    "policy.text_head=32", "policy.text_mlp=96", "policy.vision_width=32", "policy.vision_head=16",
    "policy.vision_layers=2", "policy.vision_read=[1,0]", "policy.vision_mlp=48", "policy.adapter_mlp=48",
    "policy.image_px=56", "policy.base_size=1024", "geometry.seeds=2", "geometry.draws=2", "sim.max_ticks=90",
    "pool.workers=2", "sampler.batch_rows=4", "run.device=cpu",
)  # fmt: skip
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _seconds(run: Callable[[], Any], repeats: int = 8) -> float:
    """Median wall time of a call, after three that warm up."""
    taken = []
    for index in range(repeats + 3):
        _wait()
        started = time.perf_counter()
        run()
        _wait()
        if index >= 3:
            taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def rates(size: int) -> dict[str, float]:
    """Copies in TB/s (read and written bytes), products of square matrices in TFLOP/s by format."""
    source = torch.empty(size * size * 16, dtype=torch.uint8, device=DEVICE)
    found = {"copy_tb_s": 2 * source.nbytes / _seconds(source.clone) / 1e12}
    for name, dtype, tf32 in (("tf32", torch.float32, True), ("bf16", torch.bfloat16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        left, right = (torch.randn(size, size, device=DEVICE).to(dtype) for _ in range(2))
        found[f"{name}_tflop_s"] = 2 * size**3 / _seconds(lambda a=left, b=right: a @ b) / 1e12
    return found


def sizes(overrides: tuple[str, ...]) -> dict[str, float]:
    """What the ceilings count: numbers of weights that multiply, prompt tokens and patches of a row."""
    of = compose("config", ["policy=scratch", *_of(overrides, "policy.")]).tree["policy"]
    width, heads, groups, head = (of[f"text_{name}"] for name in ("width", "heads", "kv_heads", "head"))
    layer = width * head * (2 * heads + 2 * groups) + 3 * width * of["text_mlp"]
    seen = of["vision_layers"] * (4 * of["vision_width"] ** 2 + 2 * of["vision_width"] * of["vision_mlp"])
    tiny = _base("cpu").prompt
    words = tiny.length - 2 * _tokens(tiny.image_px, tiny.patch_px)
    return {
        "text": of["text_layers"] * layer, "vision": seen,
        "prompt": words + 2 * _tokens(of["image_px"], of["patch_px"]),
        "patches": 2 * (of["image_px"] // of["patch_px"]) ** 2,
    }  # fmt: skip


def _tokens(image_px: int, patch_px: int) -> int:
    """Of one picture in a prompt."""
    return (-(-(image_px // patch_px) // 2)) ** 2


def ceilings(of: dict[str, float], rate: dict[str, float], rows: int, rounds: int) -> dict[str, float]:
    """Seconds of a wave and of an update if nothing but products and reading weights took time."""
    seen = 2.0 * of["vision"] * of["patches"] * rows
    prompts = 2.0 * of["text"] * of["prompt"] * rows + seen
    # Forward, again for the layers that are not kept, and two products for the gradients; pictures once.
    update = 8.0 * of["text"] * (of["prompt"] + TOKENS) * rows + seen
    read = {"tf32": 4 * of["text"], "mixed": 2 * of["text"]}
    format_of = {"tf32": "tf32_tflop_s", "mixed": "bf16_tflop_s"}
    return {
        f"{name}_{part}_s": seconds
        for name in read
        for part, seconds in (
            ("prompts", prompts / rate[format_of[name]] / 1e12),
            ("tokens", rounds * TOKENS * read[name] / rate["copy_tb_s"] / 1e12),
            ("update", update / rate[format_of[name]] / 1e12),
        )
    }


def stage_ceilings(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Rates and ceilings; the network is counted, not made."""
    rate, of = rates(256 if _of(overrides, "policy.text_width") else 8192), sizes(overrides)
    return {"rates": rate, "sizes": of, "ceilings": ceilings(of, rate, rows=64 * 30, rounds=2 * 30)}


def stage_plan(variant: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    """What `vla-rl plan --json` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = vla_rl(["plan", "--json", *LARGE, *VARIANTS[variant], *overrides])
    if code:
        raise SystemExit(f"the plan ended with {code}")
    plan = json.loads(printed.getvalue())
    return {name: plan[name] for name in ("device", "parameters", "memory_bytes", "workers", "disk_bytes", "times")}


def stage_step(variant: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    """One step of a real run: the row of its train.jsonl, and the memory that the whole process took."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_SCRATCH")) as place:
        run = Path(place) / "run"
        started = time.perf_counter()
        code = vla_rl(["train", *LARGE, *VARIANTS[variant], f"run.dir={run}", *overrides])
        if code:
            raise SystemExit(f"the run ended with {code}")
        row = json.loads((run / "train.jsonl").read_text().splitlines()[-1])
        saved = sum(f.stat().st_size for f in (run / "checkpoints").rglob("*") if f.is_file())
        whole_s = time.perf_counter() - started
    if row["rows"] != row["predict_rounds"] * row["mean_predict_batch"]:
        raise SystemExit(
            f"{row['rows']} rows taught, of {row['predict_rounds'] * row['mean_predict_batch']} that were played"
        )
    keys = (
        "episodes", "rows", "tokens", "predict_rounds", "mean_predict_batch", "rollout_s", "update_s", "save_s",
        "vram_gib", "rollout_gap", "grad_norm", "step_skipped", "oom_retries", "predict_latency_s",
    )  # fmt: skip
    memory = {}
    if DEVICE == "cuda":
        memory = {
            "allocated_gib": torch.cuda.max_memory_allocated() / GIB,
            "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        }
    return {**{key: row[key] for key in keys}, **memory, "checkpoint_bytes": saved, "whole_s": whole_s}


def _base(device: str) -> VlaPolicy:
    return compose("config", ["policy.checkpoint=bundled:tiny_full"]).component("policy", device=device)


def _requests(count: int) -> list[PredictRequest]:
    """First looks at development scenes."""
    require_rendering()
    reader, found = compose("config", ["pool.workers=1"]), []
    with reader.component("pool", env_spec=reader.component_spec("sim"), plugins=reader.plugins) as pool:
        for seed in range(300, 300 + count):
            seen = pool.reset([(0, seed)])[0].observation
            assert seen is not None
            found.append(PredictRequest(seen, seed, 0, 0))
    return found


def _sampled(policy: VlaPolicy, requests: list[PredictRequest], batch_rows: int) -> list[Any]:
    reader = compose("config", [f"sampler.batch_rows={batch_rows}"])
    return reader.component("sampler", policy=policy, run_seed=0).sample(requests, 0.7)


def _rows(requests: list[PredictRequest], predictions: list[Any]) -> list[Row]:
    return [
        Row(EpisodeSpec(r.seed, r.draw), r.replan, r.observation.frames, r.observation.state_deg,
            p.bins, p.logp, p.legal_packed, p.rng_key, "")
        for r, p in zip(requests, predictions, strict=True)
    ]  # fmt: skip


def stage_agree(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Losses and gradients of the same rows, tokens of the same keys, on the CPU and here; float32, no TF32."""
    here, there = _base(DEVICE), _base("cpu")
    requests = _requests(64)
    ours, theirs = (_sampled(policy, requests, 32) for policy in (here, there))
    rows = _rows(requests, theirs)
    lessons = [Lesson(row, (-1.0) ** index * (1 + index / 64), 1.0) for index, row in enumerate(rows)]
    tokens = float(sum(len(row.bins) for row in rows))
    settings = UpdateSettings.of(LossConfig(old_logp="recorded"), OptimConfig(microbatch_rows=16))
    losses, gradients = [], []
    for policy in (there, here):
        policy.model.requires_grad_(True)
        known = Fixed([torch.from_numpy(row.logp) for row in rows], None)
        losses.append(accumulate_gradient(policy, lessons, tokens, settings, 0.7, known).loss)
        grads = [p.grad for p in policy.model.parameters() if p.grad is not None]
        gradients.append(torch.cat([grad.flatten().double().cpu() for grad in grads]))
    apart = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not np.array_equal(a.bins, b.bins)]
    with torch.no_grad():
        scored = [
            score_rows(p, [r.observation for r in requests], [row.bins for row in rows], 0.7).logp_RT.cpu()
            for p in (there, here)
        ]
    return {
        "losses": losses,
        "loss_relative": abs(losses[1] - losses[0]) / abs(losses[0]),
        "gradient_relative": float((gradients[1] - gradients[0]).norm() / gradients[0].norm()),
        "logp_apart": float((scored[1] - scored[0]).abs().max()),
        "streams": len(rows),
        "streams_apart": len(apart),
        "first_token_apart": [int(_first(ours[i].bins, theirs[i].bins)) for i in apart],
    }


def _first(left: np.ndarray, right: np.ndarray) -> int:
    shorter = min(len(left), len(right))
    return next((t for t in range(shorter) if left[t] != right[t]), shorter)


def stage_twice(overrides: tuple[str, ...]) -> dict[str, Any]:
    """The same small run two times: distance of the weights, and whether the waves were the same."""
    found, played = [], []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as place:
            run = Path(place) / "run"
            asked = [
                "experiment=quickstart", "eval.seeds=300-303", "run.steps=2", "run.device=auto", "sampler.keys=device",
                f"run.dir={run}", *_of(overrides, "geometry."),
            ]  # fmt: skip
            if vla_rl(["train", *asked]):
                raise SystemExit("the run failed")
            last = sorted((run / "checkpoints").glob("step_*"))[-1]
            found.append(_weights(last))
            lines = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
            played.append([(line["successes"], line["rows"], line["tokens"]) for line in lines])
    moved = float((found[0] - _start_weights(found[0].numel())).norm()) if found[0].numel() else math.nan
    apart = found[1] - found[0]
    return {
        "largest": float(apart.abs().max()),
        "relative_to_the_move": float(apart.norm()) / moved if moved else None,
        "same_waves": played[0] == played[1],
        "waves": played,
    }


def _weights(checkpoint: Path) -> torch.Tensor:
    from safetensors.torch import load_file

    files = [file for file in sorted(checkpoint.rglob("*.safetensors")) if "optim" not in file.name]
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return torch.cat([tensors[name].flatten().double() for name in sorted(tensors)])


def _start_weights(count: int) -> torch.Tensor:
    policy = compose("config", ["experiment=quickstart"]).component("policy", device="cpu")
    named = dict(policy.model.named_parameters())
    whole = torch.cat([named[name].detach().flatten().double() for name in sorted(named)])
    return whole if whole.numel() == count else torch.full((count,), math.nan)


def stage_batches(overrides: tuple[str, ...]) -> dict[str, Any]:
    """How much a row's neighbours matter: the same 64 requests in predicts of other sizes."""
    policy = _base(DEVICE)
    requests = _requests(64)
    by_size = {size: _sampled(policy, requests, size) for size in (64, 32, 8)}
    whole = by_size[64]
    found = {}
    for size in (32, 8):
        same = [i for i in range(64) if np.array_equal(whole[i].bins, by_size[size][i].bins)]
        gaps = [float(np.abs(whole[i].logp - by_size[size][i].logp).max()) for i in same]
        found[f"of_{size}"] = {"streams_apart": 64 - len(same), "logp_apart": max(gaps, default=None)}
    turned = _sampled(policy, requests[::-1], 64)[::-1]
    found["turned_around"] = {
        "streams_apart": sum(not np.array_equal(a.bins, b.bins) for a, b in zip(whole, turned, strict=True)),
        "logp_apart": max(float(np.abs(a.logp - b.logp).max()) for a, b in zip(whole, turned, strict=True)),
    }
    return found


def _of(overrides: tuple[str, ...], prefix: str) -> list[str]:
    return [each for each in overrides if each.startswith(prefix)]


STAGES: dict[str, Callable[[tuple[str, ...]], dict[str, Any]]] = {
    "ceilings": stage_ceilings,
    **{f"plan-{v}": lambda o, v=v: stage_plan(v, o) for v in VARIANTS},
    **{f"step-{v}": lambda o, v=v: stage_step(v, o) for v in VARIANTS},
    "agree": stage_agree,
    "twice": stage_twice,
    "batches": stage_batches,
}


def main() -> None:
    """Run stages and append their lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--out", type=Path, default=Path("outputs/bench-gpu/results.jsonl"))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_intermixed_args()
    overrides = (*(SMALL if options.small else ()), *(s for s in options.stages if "=" in s))
    wanted = [stage for stage in options.stages if "=" not in stage]
    if unknown := sorted(set(wanted) - set(STAGES)):
        parser.error(f"no stage {', '.join(unknown)}: there are {', '.join(STAGES)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = {json.loads(line)["stage"] for line in _lines(options.out)}
    for stage in wanted:
        if stage in done:
            print(f"{stage}: is in {options.out} already")
            continue
        started = time.perf_counter()
        found = STAGES[stage](overrides)
        line = {
            "stage": stage,
            "utc": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "card": torch.cuda.get_device_name() if DEVICE == "cuda" else platform.processor() or "cpu",
            "versions": {
                "python": platform.python_version(), "torch": torch.__version__,
                "transformers": transformers.__version__, "mujoco": mujoco.__version__,
            },
            "overrides": list(overrides),
            "stage_s": time.perf_counter() - started,
            **found,
        }  # fmt: skip
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    main()
