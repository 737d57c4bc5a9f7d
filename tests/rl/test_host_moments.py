"""Moments in the host's memory: the same run, bit for bit, also kept, taken back and gone on with elsewhere."""

from __future__ import annotations

import copy

import pytest
import torch
from one_update import ADVANTAGES, TEMPERATURE, settings
from test_trainer import Killed, finish
from tiny_policy import tiny_policy
from toy_run import toy_trainer

from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.rl import checkpoint as ckpt
from vla_rl.rl.events import StepDone
from vla_rl.rl.hostmoments import MOMENTS, HostAdamW
from vla_rl.rl.snapshot import Snapshot
from vla_rl.rl.surfaces import TextStack
from vla_rl.rl.update import build_optimizer, grpo_update


def begun(moments, **optim):
    policy, surface = tiny_policy(), TextStack()
    parameters = surface.trainable(policy)
    return policy, parameters, build_optimizer(parameters, OptimConfig(lr=1e-2, moments=moments, **optim), surface)


def go_on(policy, parameters, optimizer, rows, steps):
    for step in steps:
        grpo_update(
            policy=policy, parameters=parameters, optimizer=optimizer, rows=rows, advantages=ADVANTAGES,
            settings=settings(lr=1e-2), temperature=TEMPERATURE, step=step,
        )  # fmt: skip


def moments_of(parameters, optimizer):
    return {name: optimizer.state[leaf_of(parameter)] for name, parameter in parameters}


def equal(some, others):
    return all(torch.equal(value, others[name][field]) for name, own in some.items() for field, value in own.items())


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_adamw_bit_for_bit(rows, decay):
    runs = [begun(moments, weight_decay=decay) for moments in MOMENTS]
    assert [isinstance(optimizer, HostAdamW) for _, _, optimizer in runs] == [False, True]
    for run in runs:
        go_on(*run, rows, (1, 2, 3))
    assert runs[0][0].digest() == runs[1][0].digest() != tiny_policy().digest()
    plain, hosted = (moments_of(parameters, optimizer) for _, parameters, optimizer in runs)
    assert equal(plain, hosted) and all(own.keys() == {"step", "exp_avg", "exp_avg_sq"} for own in hosted.values())


def test_a_moment_that_lies_elsewhere_visits_and_is_written_back():
    """Where there is one device only, another number format stands for another place."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = HostAdamW([weight], lr=0.1)
    weight.grad = torch.tensor([1.0, -2.0, 0.5])
    optimizer.step()
    state, seen = optimizer.state[weight], []

    class Elsewhere(torch.Tensor):
        def to(self, *_, **__):
            seen.append("there")
            return self.as_subclass(torch.Tensor).clone()

    before = {field: state[field].clone() for field in ("exp_avg", "exp_avg_sq")}
    for field in before:
        state[field] = state[field].as_subclass(Elsewhere)
    optimizer.step()
    assert seen == ["there"] * 2
    assert torch.equal(state["exp_avg"].as_subclass(torch.Tensor), before["exp_avg"].lerp(weight.grad, 0.1))
    assert not torch.equal(state["exp_avg_sq"].as_subclass(torch.Tensor), before["exp_avg_sq"])


def test_a_weight_without_gradient_stays_and_a_closure_is_refused():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = HostAdamW([weight], lr=0.1)
    optimizer.step()
    assert not optimizer.state and torch.equal(weight, torch.ones(3))
    with pytest.raises(ValueError, match="plain step"):
        optimizer.step(lambda: 0.0)


@pytest.mark.parametrize(("first", "then"), [("device", "host"), ("host", "device"), ("host", "host")])
def test_a_checkpoint_of_one_place_goes_on_in_the_other_bit_for_bit(rows, tmp_path, first, then):
    whole = begun("device")
    go_on(*whole, rows, (1, 2, 3))
    run = begun(first)
    go_on(*run, rows, (1, 2))
    path = ckpt.save_checkpoint(tmp_path, 2, *run[1:], {})
    other = begun(then)
    ckpt.restore(ckpt.load_checkpoint(path), *other[1:])
    go_on(*other, rows, (3,))
    assert other[0].digest() == whole[0].digest()


def test_an_undone_step_leaves_them_as_they_were(rows):
    policy, parameters, optimizer = begun("host")
    fresh = Snapshot(parameters, optimizer)
    go_on(policy, parameters, optimizer, rows, (1,))
    before, kept = Snapshot(parameters, optimizer), copy.deepcopy(moments_of(parameters, optimizer))
    digest = policy.digest()
    go_on(policy, parameters, optimizer, rows, (2,))
    assert not equal(kept, moments_of(parameters, optimizer))
    before.put_back()
    assert equal(kept, moments_of(parameters, optimizer)) and policy.digest() == digest
    fresh.put_back()
    assert not optimizer.state and policy.digest() == tiny_policy().digest()


def test_a_run_with_them_is_resumed_and_ends_as_one_without(tmp_path):
    def stop(event):
        if isinstance(event, StepDone):
            raise Killed

    optim = {"lr": 3e-3, "microbatch_rows": 4}
    expected = toy_trainer(tmp_path / "device", optim=OptimConfig(**optim), loss=LossConfig(trust_region=1.0))
    finish(expected)
    hosted = {"optim": OptimConfig(**optim, moments="host"), "loss": LossConfig(trust_region=1.0)}
    with pytest.raises(Killed):
        finish(toy_trainer(tmp_path / "host", on_event=stop, **hosted))
    resumed = toy_trainer(tmp_path / "host", **hosted)
    finish(resumed)
    assert resumed.policy.digest() == expected.policy.digest()
