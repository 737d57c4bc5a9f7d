"""A bandit with a real policy in front of it: one chunk an episode, and success where its mean pan target lies above 0.

A policy of random weights succeeds about half of the time. Rewards are those of the toy world: 10 for a success.
"""

from __future__ import annotations

from dataclasses import replace

from toy_run import toy_trainer
from toy_world import ToyWorld, spec

from vla_rl.config.schema import OptimConfig
from vla_rl.rl.summary import Evaluation
from vla_rl.rollout.pool import SerialPool
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.rollout.wave import run_wave

HELD_OUT = range(300, 428)
TEMPERATURE = 1.0
GEOMETRY = {"seeds": 4, "draws": 8, "temperature": TEMPERATURE, "min_group_std_cm": 1e-4}


class Lever(ToyWorld):
    """The toy world with one chunk an episode."""

    def reset(self, *, seed: int):
        self.aim_deg = 0.0
        return super().reset(seed=seed)

    def step(self, targets_deg):
        self.aim_deg = float(targets_deg[:, 0].mean())
        look, reward, _, truncated, info = super().step(targets_deg)
        return look, reward, self.aim_deg > 0, truncated, info

    def metrics(self):
        return replace(super().metrics(), success=self.aim_deg > 0, progress_final_cm=0.0)

    def describe(self):
        return {"protocol": "lever", "scene_hash": "1" * 8, "max_replans": 1, "image_px": 16, "look": "bare"}


def lever_pool() -> SerialPool:
    return SerialPool(env_spec={**spec(max_chunks=1), "_target_": "bandit.Lever"}, plugins=("bandit", "toy_world"))


def bandit_trainer(path, *, geometry=None, **settings):
    """A trainer on the bandit; its evaluations are sampled, at the training temperature."""
    pool = lever_pool()
    optim = OptimConfig(lr=2e-3, microbatch_rows=32)
    trainer = toy_trainer(
        path,
        pool=pool,
        **{"steps": 16, "optim": optim, "slots": 16, **settings},
        geometry={**GEOMETRY, **(geometry or {})},
    )

    def sampled(step):
        specs = [EpisodeSpec(seed) for seed in HELD_OUT]
        wave = run_wave(
            sampler=trainer.sampler, pool=pool, specs=specs, temperature=TEMPERATURE, slots=16, keep_rows=False
        )
        hits = sum(episode.metrics["success"] for episode in wave.episodes)
        return Evaluation({"successes": hits, "trials": len(specs)}, ())

    trainer.evaluate = sampled
    return trainer
