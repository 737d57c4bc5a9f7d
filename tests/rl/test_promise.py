"""What must not move does not, what must move does, and a run ends before it saves anything else."""

from __future__ import annotations

import pytest
import torch
from one_update import ADVANTAGES, TEMPERATURE, settings
from test_trainer import Killed, finish, read
from tiny_policy import VOCABULARY, tiny_policy
from toy_run import STEPS, lora, toy_trainer

from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.errors import IntegrityError
from vla_rl.rl.checkpoint import checkpoints
from vla_rl.rl.events import StepDone, UpdateProgress
from vla_rl.rl.promise import Promise
from vla_rl.rl.surfaces import PatchOnly, TextStack
from vla_rl.rl.update import build_optimizer, grpo_update


def promised(rows, surface):
    """A tiny policy, its promise, and a function that updates it."""
    policy, optim = tiny_policy(), OptimConfig(lr=1e-2)
    parameters = surface.trainable(policy)
    optimizer = build_optimizer(parameters, optim, surface)

    def update():
        grpo_update(
            policy=policy, parameters=parameters, optimizer=optimizer, rows=rows, advantages=ADVANTAGES,
            settings=settings(lr=optim.lr), temperature=TEMPERATURE, step=1,
        )  # fmt: skip

    return policy, Promise(policy, parameters, surface), update


@pytest.mark.parametrize("surface", [lora(), TextStack(), PatchOnly()], ids=lambda surface: type(surface).__name__)
def test_updates_keep_the_promise_and_a_weight_outside_the_surface_that_moves_is_named(rows, surface):
    policy, promise, update = promised(rows, surface)
    for count in (1, 2):
        update()
        promise.check_still()
        promise.check_moved(count)
    with torch.no_grad():
        policy.model.get_parameter("model.multi_modal_projector.image_projector.up_proj.weight")[5, 3] += 1e-6
    with pytest.raises(IntegrityError, match="image_projector.up_proj.weight"):
        promise.check_still()


@pytest.mark.parametrize("table", ["lm_head.weight", "model.language_model.embed_tokens.weight"])
@pytest.mark.parametrize(("place", "told"), [(-1, "rows before"), (VOCABULARY, "rows from")])
def test_rows_outside_the_action_block_are_promised_too(table, place, told):
    policy, surface = tiny_policy(), PatchOnly()
    promise = Promise(policy, surface.trainable(policy), surface)
    weight, first = policy.model.get_parameter(table), policy.prompt.ids.action_block
    with torch.no_grad():
        weight[first] += 1.0
        weight[first + policy.vocabulary - 1] += 1.0
    promise.check_still()
    with torch.no_grad():
        weight[first + place, 0] += 1e-6
    with pytest.raises(IntegrityError, match=f"{table}, {told}"):
        promise.check_still()


def held(trainer):
    """The first A of a trainer with an adapter, kept where it is."""
    name, parameter = trainer.parameters[0]
    parameter.register_hook(torch.zeros_like)
    return name


def test_a_run_whose_adapter_does_not_move_ends_with_its_second_update_also_over_two_launches(tmp_path):
    def stop(event):
        if isinstance(event, StepDone):
            raise Killed

    first = toy_trainer(tmp_path / "run", surface=lora(), on_event=stop)
    held(first)
    with pytest.raises(Killed):
        finish(first)
    second = toy_trainer(tmp_path / "run", surface=lora())
    name = held(second)
    assert ".lora_A." in name
    with pytest.raises(IntegrityError, match=f"1 tensors .* first {name}"):
        finish(second)
    assert [row["step"] for row in read(tmp_path / "run", "train.jsonl")] == [1]


def test_an_update_that_is_undone_is_none_of_those_by_which_the_adapter_must_have_moved(tmp_path):
    trainer = toy_trainer(tmp_path / "run", surface=lora(), loss=LossConfig(trust_region=1e-9))
    outcome = finish(trainer)
    rows = read(tmp_path / "run", "train.jsonl")
    assert outcome.finished and [row["rolled_back"] for row in rows] == [True] * STEPS
    assert trainer.policy.digest() == tiny_policy().digest()


def test_a_run_that_breaks_its_promise_ends_with_code_5_before_it_saves_or_records_the_step(tmp_path):
    def tamper(event):
        if isinstance(event, UpdateProgress) and event.step == 2:
            with torch.no_grad():
                trainer.policy.model.get_parameter("model.multi_modal_projector.image_projector.up_proj.weight")[
                    0, 0
                ] += 1.0

    trainer = toy_trainer(tmp_path / "run", on_event=tamper)
    with pytest.raises(IntegrityError, match="outside the surface") as broken:
        finish(trainer)
    assert broken.value.exit_code == 5
    assert [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")] == ["step_0001"]
    assert [row["step"] for row in read(tmp_path / "run", "train.jsonl")] == [1]
