"""A whole GRPO run in the toy world, in seconds; also a program, so that tests can kill it with SIGKILL.

For each line `DIRECTORY MOMENT COUNT EVERY WORKERS STEPS [SURFACE]` that it reads, a process of its own runs (or
resumes) with so many workers (0: none but itself) and kills itself at the COUNT-th event of that name, or call of
`os.replace` or `os.fsync`, before it is done. What it ended with is printed.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

import torch
from tiny_policy import tiny_policy, tiny_sampler
from toy_world import spec

from vla_rl.config.schema import CheckpointConfig, GeometryConfig, LoraConfig, LossConfig, OptimConfig
from vla_rl.rl.reward import RewardV1
from vla_rl.rl.rundir import CONFIG, RunDir
from vla_rl.rl.summary import Evaluation, episode_row
from vla_rl.rl.surfaces import Lora, TextStack
from vla_rl.rl.trainer import GrpoTrainer
from vla_rl.rollout.pool import ProcessPool, SerialPool
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.rollout.wave import run_wave

STEPS = 3
CONFIGURATION = {"run": {"seed": 3}}
REWARD = {"success_bonus": 10.0, "tip_penalty": 2.0, "strike_penalty": 5.0, "progress_floor_cm": None}


def lora(run_seed: int = 0, **keys) -> Lora:
    """The surface with the schema's own targets, small."""
    return Lora(**{"rank": 4, "alpha": 8.0, "targets": LoraConfig().targets, **keys}, run_seed=run_seed)


def open_run(path: Path) -> RunDir:
    if (path / CONFIG).exists():
        return RunDir.resume(path, config=CONFIGURATION, manifest={}, free=())
    return RunDir.create(path, config=CONFIGURATION, manifest={})


def toy_trainer(
    path: Path, *, pool=None, on_event=lambda event: None, every=1, keep_rows=False, evaluate=None, **settings
):
    torch.set_num_threads(1)
    policy = tiny_policy()
    sampler = tiny_sampler(policy)
    pool = pool or SerialPool(env_spec=spec(max_chunks=3), plugins=("toy_world",))
    reward = RewardV1(**REWARD)

    def held_out(step):
        specs = [EpisodeSpec(seed) for seed in (300, 301, 302)]
        wave = run_wave(
            sampler=sampler, pool=pool, specs=specs, temperature=0.0, slots=3, keep_rows=False, on_event=on_event
        )
        rows = tuple(episode_row("eval", step, e, reward.terms(e.metrics)) for e in wave.episodes)
        return Evaluation({"reward_mean": sum(r["reward"] for r in rows) / len(rows)}, rows)

    geometry = {"seeds": 2, "draws": 3, "min_group_std_cm": 1e-4, **settings.pop("geometry", {})}
    arguments = {
        "sampler": sampler,
        "surface": TextStack(),
        "reward": reward,
        "loss": LossConfig(),
        "optim": OptimConfig(lr=3e-3, microbatch_rows=4),
        "steps": STEPS,
        "max_wall_s": None,
        "slots": 4,
        **settings,
    }
    return GrpoTrainer(
        policy=policy,
        pool=pool,
        geometry=GeometryConfig(**geometry),
        checkpoint=CheckpointConfig(every=every, keep=2, keep_rows=keep_rows),
        max_replans=3,
        run_dir=open_run(path),
        evaluate=evaluate or held_out,
        on_event=on_event,
        **arguments,
    )


def live(path: str, moment: str, count: str, every: str, workers: str, steps: str, surface: str = "text_stack") -> None:
    """One life of a run: to its end, or to the moment."""
    left = int(count)

    def happens(what):
        nonlocal left
        left -= what == moment
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(name, real):
        def call(*arguments, **keywords):
            happens(name)
            return real(*arguments, **keywords)

        return call

    def on_event(event):
        happens(type(event).__name__)

    os.replace, os.fsync = counted("replace", os.replace), counted("fsync", os.fsync)
    world = {"env_spec": spec(max_chunks=3), "plugins": ("toy_world",)}
    processes = {"workers": int(workers), "groups": 2, "timeout_s": 60.0}
    with ProcessPool(**processes, **world) if int(workers) else SerialPool(**world) as pool:
        chosen = {"text_stack": TextStack, "lora": lora}[surface]()
        toy_trainer(Path(path), pool=pool, on_event=on_event, every=int(every), steps=int(steps), surface=chosen).run()


if __name__ == "__main__":
    importlib.import_module("torch._dynamo")  # once, for all that live here
    for line in sys.stdin:
        if (child := os.fork()) == 0:  # nothing is imported anew, which is most of what a short life would cost
            live(*line.split())
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
