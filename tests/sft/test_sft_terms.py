"""The objectives: each term is bitwise its own objective's, insulation is complete, token training is what it was."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from expert_support import taught
from sft_support import SIZES
from test_sft_trainer import trainer
from torch.nn.functional import cross_entropy

from vla_rl.policy.expert_files import new_expert
from vla_rl.policy.policy import VlaPolicy
from vla_rl.sft.batches import Batch, Batches
from vla_rl.sft.dataset import Demonstrations, TrainingRows, training_rows
from vla_rl.sft.optimiser import learning_rate
from vla_rl.sft.terms import Passes, Terms, loss_terms
from vla_rl.sft.transitions import Objective

AR, FLOW, JOINT = Objective("ar"), Objective("flow"), Objective("joint")
CPU = torch.device("cpu")


@pytest.fixture
def both(twin: VlaPolicy) -> VlaPolicy:
    """A twin whose expert has weights that are not zero: a new one says 0 whatever it is shown."""
    taught(new_expert(twin, SIZES, seed=0))
    twin.model.requires_grad_(True)
    return twin


@pytest.fixture
def rows(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> TrainingRows:
    return training_rows(demos, twin.stats, twin.codec, CPU, scratch=tmp_path, threads=1)


@pytest.fixture
def batch(rows: TrainingRows, both: VlaPolicy) -> Batch:
    assert both.expert is not None
    return Batches(rows, 0, 5, 3, 2, both.expert.config).of_step(7)


def gradients(
    policy: VlaPolicy, objective: Objective, batch: Batch, passes: Passes | None = None
) -> tuple[Terms, dict[str, torch.Tensor]]:
    """Terms of a batch, and the gradient of every parameter that has one other than zero."""
    assert policy.expert is not None
    named = [*policy.model.named_parameters(), *((f"expert {n}", p) for n, p in policy.expert.named_parameters())]
    for _, parameter in named:
        parameter.grad = None
    terms = loss_terms(objective, policy, batch, passes=passes)
    terms.total.backward()
    return terms, {name: p.grad for name, p in named if p.grad is not None and p.grad.any()}


# -------------------------------------------------------------------------------------------------------- the terms
@pytest.mark.parametrize("weight", [1.0, 0.25])
@pytest.mark.parametrize("insulate", [False, True])
def test_each_term_of_the_joint_objective_is_bitwise_its_own_objective_and_they_add_up(both, batch, weight, insulate):
    joint = loss_terms(Objective("joint", weight, insulate), both, batch)
    flow, tokens = loss_terms(replace(FLOW, insulate=insulate), both, batch), loss_terms(AR, both, batch)
    assert joint.flow is not None and joint.tokens is not None and joint.logits_RTV is not None
    assert torch.equal(joint.flow, flow.total) and torch.equal(joint.tokens, tokens.total)
    assert torch.equal(joint.logits_RTV, tokens.logits_RTV)
    assert joint.total.item() == (joint.flow + weight * joint.tokens).item() != joint.flow.item()
    assert flow.tokens is None and flow.logits_RTV is None and tokens.flow is None
    assert joint.total.dtype == torch.float32 and joint.flow.item() > 0.1 and joint.tokens.item() > 1


def test_what_the_teacher_forces_changes_the_token_term_and_never_the_flow_term(both, batch):
    half = batch.bins_RT.shape[1] // 2
    others = [
        replace(batch, bins_RT=(batch.bins_RT + 1) % both.vocabulary),
        replace(batch, bins_RT=batch.bins_RT[:, :half], labels_RT=batch.labels_RT[:, :half]),
    ]
    before = loss_terms(JOINT, both, batch)
    for other in others:
        after = loss_terms(JOINT, both, other)
        assert torch.equal(after.flow, before.flow) and not torch.equal(after.tokens, before.tokens)
    moved = loss_terms(JOINT, both, replace(batch, frames=255 - batch.frames))
    assert not torch.equal(moved.flow, before.flow)


def test_the_flow_term_is_the_mean_over_rows_that_count_the_same(both, batch):
    def row(index: int) -> Batch:
        drawn = replace(batch.draws, time_B=batch.draws.time_B[[index]], noise_BTA=batch.draws.noise_BTA[[index]])
        parts = {name: getattr(batch, name)[[index]] for name in ("frames", "state_bins_RJ", "chunks_RHJ")}
        return replace(batch, draws=drawn, **parts)

    alone = [loss_terms(FLOW, both, row(index)).total.item() for index in range(5)]
    assert loss_terms(FLOW, both, batch).total.item() == pytest.approx(sum(alone) / 5, rel=1e-5)
    assert max(alone) > 1.05 * min(alone)


# ------------------------------------------------------------------------------------------------------- insulation
def test_insulated_no_gradient_of_the_flow_term_reaches_the_trunk_and_open_it_does(both, batch):
    _, apart = gradients(both, replace(FLOW, insulate=True), batch)
    assert apart and all(name.startswith("expert ") for name in apart)
    _, through = gradients(both, FLOW, batch)
    trunk = {name for name in through if not name.startswith("expert ")}
    assert {name.split(".")[1] for name in trunk} == {"language_model", "vision_tower", "multi_modal_projector"}
    assert all(torch.equal(through[name], apart[name]) for name in apart)


def test_insulated_the_joint_gradient_is_that_of_each_term_in_its_own_parameters(both, batch):
    _, joint = gradients(both, Objective("joint", insulate=True), batch)
    _, tokens = gradients(both, AR, batch)
    _, flow = gradients(both, replace(FLOW, insulate=True), batch)
    assert joint.keys() == tokens.keys() | flow.keys() and not tokens.keys() & flow.keys()
    assert all(torch.equal(joint[name], {**tokens, **flow}[name]) for name in joint)


def test_open_the_joint_gradient_in_the_trunk_is_the_sum_of_both_terms(both, batch):
    _, joint = gradients(both, Objective("joint", ce_weight=0.5), batch)
    _, tokens = gradients(both, AR, batch)
    _, flow = gradients(both, FLOW, batch)
    name = "model.language_model.layers.0.self_attn.k_proj.weight"
    assert torch.allclose(joint[name], flow[name] + 0.5 * tokens[name], rtol=1e-4, atol=1e-8)
    assert flow[name].norm() > 0.01 * tokens[name].norm()


# --------------------------------------------------------------------------------------------------------- compiled
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.parametrize(
    "objective", [AR, JOINT, Objective("joint", insulate=True), Objective("flow", insulate=True)], ids=str
)
def test_compiled_terms_and_gradients_are_the_same_up_to_rounding(both, batch, objective):
    torch.compiler.reset()
    plain, wanted = gradients(both, objective, batch)
    compiled, found = gradients(both, objective, batch, Passes.of(both, compiled=True))
    assert compiled.total.item() == pytest.approx(plain.total.item(), rel=1e-5)
    assert found.keys() == wanted.keys()  # insulated, none of the trunk's
    for name, gradient in wanted.items():
        smallest = 1e-5 * gradient.abs().max().item() + 1e-7
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=smallest), name


# ------------------------------------------------------------------------------------------------------------ draws
def test_times_and_noise_of_a_row_are_a_function_of_seed_step_and_row(rows: TrainingRows, both: VlaPolicy):
    def drawn(seed: int, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        draws = Batches(rows, seed, size, 3, 2, both.expert.config).of_step(step).draws  # type: ignore[union-attr]
        assert draws is not None
        return draws.time_B, draws.noise_BTA

    (time, noise), (of_fewer, fewer) = drawn(0, 3, 6), drawn(0, 3, 2)
    assert torch.equal(of_fewer, time[:2]) and torch.equal(fewer, noise[:2])
    assert all(torch.equal(a, b) for a, b in zip(drawn(0, 3, 6), (time, noise), strict=True))
    assert len(set(time.tolist())) == 6 and noise.std().item() == pytest.approx(1, abs=0.02)
    for other in (drawn(1, 3, 6), drawn(0, 4, 6)):
        assert not (other[0] == time).any() and not torch.equal(other[1], noise)


def test_rows_pictures_and_labels_of_a_step_are_the_same_under_every_objective(rows: TrainingRows, both: VlaPolicy):
    plain, flow = (Batches(rows, 0, 5, 3, 2, config).of_step(2) for config in (None, both.expert.config))
    assert plain.draws is None and flow.draws is not None
    for name in ("frames", "state_bins_RJ", "bins_RT", "labels_RT", "chunks_RHJ"):
        assert torch.equal(getattr(plain, name), getattr(flow, name))


def test_chunks_are_the_demonstrated_ones_through_the_action_table(rows, demos, twin):
    wanted = twin.stats.action.normalise(demos.targets_deg)
    assert rows.chunks_NHJ.dtype == torch.float32 and rows.chunks_NHJ.abs().max() <= 1
    assert torch.equal(rows.chunks_NHJ, torch.from_numpy(wanted).float())


# ---------------------------------------------------------------------------------------------- training of tokens
def test_token_training_is_what_it_was_before_there_was_another_objective(demos, twin, tmp_path: Path):
    """The update written out: cross-entropy, one clipped norm, AdamW with decay on matrices only."""
    start = {name: value.clone() for name, value in twin.model.state_dict().items()}
    run = trainer(twin, demos, tmp_path / "run", steps=5)
    batches = run.batches
    run.run()
    trained, by_trainer = twin.digest(), {n: p.detach().clone() for n, p in twin.model.named_parameters()}
    twin.model.load_state_dict(start)
    parameters = list(twin.model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95), fused=False)
    for step in range(5):
        batch = batches.of_step(step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, 5, 2e-3, 2)
        logits = twin.logits(batch.frames, batch.state_bins_RJ, batch.bins_RT).float()
        loss = cross_entropy(logits.flatten(0, 1), batch.labels_RT.flatten(), ignore_index=-100)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    assert all(torch.equal(p, by_trainer[name]) for name, p in twin.model.named_parameters())
    assert twin.digest() == trained


def test_insulated_joint_training_moves_the_trunk_bitwise_as_token_training_does(demos, twin, tmp_path: Path):
    start = {name: value.clone() for name, value in twin.model.state_dict().items()}
    trainer(twin, demos, tmp_path / "ar").run()
    alone = twin.digest()
    twin.model.load_state_dict(start)
    expert = taught(new_expert(twin, SIZES, seed=0))
    before = {name: value.clone() for name, value in expert.state_dict().items()}
    trainer(twin, demos, tmp_path / "joint", objective=Objective("joint", insulate=True), expert_lr=1e-3).run()
    assert twin.digest("ar") == alone
    assert all(not torch.equal(value, before[name]) for name, value in expert.state_dict().items())
