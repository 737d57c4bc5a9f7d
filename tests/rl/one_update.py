"""Rows that a tiny policy has sampled in the toy world, and one update on them."""

from __future__ import annotations

import torch
from tiny_policy import tiny_policy, tiny_sampler
from toy_world import spec

from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.policy.rowgradients import leaf_of, row_gradient
from vla_rl.rl.lessons import select_lessons
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.surfaces import Full
from vla_rl.rl.update import Fixed, accumulate_gradient, build_optimizer, grpo_update
from vla_rl.rollout.pool import SerialPool
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.rollout.wave import run_wave

SPECS = [EpisodeSpec(seed, draw) for seed in (100, 101, 102) for draw in (0, 1)]
ADVANTAGES = dict(zip(SPECS, [1.0, -1.0, 0.0, 0.0, 0.6, -0.6], strict=True))
TEMPERATURE = 1.3


def sampled_rows():
    torch.set_num_threads(1)
    with SerialPool(env_spec=spec(), plugins=("toy_world",)) as pool:
        return run_wave(
            sampler=tiny_sampler(tiny_policy()), pool=pool, specs=SPECS, temperature=TEMPERATURE, slots=4
        ).rows


def settings(weighting="token", old_logp="rescored", microbatch_rows=3, loss=None, **optim):
    optim = OptimConfig(**{"lr": 1e-3, "microbatch_rows": microbatch_rows, **optim})
    return UpdateSettings.of(LossConfig(weighting=weighting, old_logp=old_logp, **(loss or {})), optim)


def update(policy, rows, surface=None, advantages=None, constants=None, optim=None, **kwargs):
    surface = surface or Full()
    parameters = surface.trainable(policy)
    optimizer = build_optimizer(parameters, optim or OptimConfig(lr=1e-3), surface)
    return grpo_update(
        policy=policy, parameters=parameters, optimizer=optimizer, rows=rows,
        advantages=ADVANTAGES if advantages is None else advantages,
        settings=constants or settings(), temperature=TEMPERATURE, step=1, **kwargs,
    )  # fmt: skip


def state(policy):
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def gradients(rows, constants):
    policy = tiny_policy()
    parameters = Full().trainable(policy)
    lessons, divisor = select_lessons(
        rows, ADVANTAGES, weighting=constants.weighting, episode_tokens=constants.episode_tokens
    )
    sums = accumulate_gradient(policy, lessons, divisor, constants, TEMPERATURE, Fixed(None, None))
    return gradients_of(parameters), sums


def gradients_of(parameters):
    """By name and in the shape of the parameter, zeros in rows of a table that have none."""
    found = {}
    for name, parameter in parameters:
        table, gradient = row_gradient(parameter), leaf_of(parameter).grad
        if gradient is not None:
            whole = torch.zeros_like(parameter)
            found[name] = gradient if table is None else whole.index_copy_(0, table.rows, gradient)
    return found
