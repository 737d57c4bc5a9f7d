"""Gradients and moments of token tables for the rows that can have some: the same training, bit for bit, for less."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from one_update import ADVANTAGES, TEMPERATURE, settings, state
from test_trainer import Killed, finish
from tiny_policy import tiny_policy
from torch import nn
from toy_run import toy_trainer

from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.errors import IntegrityError
from vla_rl.policy import rowgradients
from vla_rl.policy.prompt import STATE_BINS
from vla_rl.policy.rowgradients import leaf_of, row_gradient
from vla_rl.rl import checkpoint as ckpt
from vla_rl.rl.events import StepDone
from vla_rl.rl.lessons import select_lessons
from vla_rl.rl.snapshot import Snapshot
from vla_rl.rl.surfaces import Full, PatchOnly, TextStack
from vla_rl.rl.update import Fixed, accumulate_gradient, build_optimizer, grpo_update

EMBEDDING, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"
SURFACES = pytest.mark.parametrize("surface", [TextStack(), Full(), PatchOnly()], ids=lambda s: type(s).__name__)


@pytest.fixture
def whole(monkeypatch):
    """Within it surfaces leave tables whole, which is what they were before."""

    def chosen(policy, surface):
        with monkeypatch.context() as before:
            before.setattr(rowgradients, "attach", lambda *_: None)
            return surface.trainable(policy)

    return chosen


def three_updates(policy, parameters, surface, rows, **optim):
    """Norms before clipping, and the optimiser."""
    optimizer, norms = build_optimizer(parameters, OptimConfig(lr=1e-2, **optim), surface), []
    for step in (1, 2, 3):
        result = grpo_update(
            policy=policy, parameters=parameters, optimizer=optimizer, rows=rows, advantages=ADVANTAGES,
            settings=settings(lr=1e-2, grad_clip=0.05, microbatch_rows=2, loss={"epochs": 2}),
            temperature=TEMPERATURE, step=step,
        )  # fmt: skip
        norms.append(result.grad_norm)
    return norms, optimizer


@SURFACES
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_updates_are_those_of_whole_tables_bit_for_bit_with_weight_decay_too(rows, whole, surface, decay):
    if decay and not surface.allows_decay:
        pytest.skip("this surface allows none")
    few, all_rows = tiny_policy(), tiny_policy()
    norms, optimizer = three_updates(few, surface.trainable(few), surface, rows, weight_decay=decay)
    expected, _ = three_updates(all_rows, whole(all_rows, surface), surface, rows, weight_decay=decay)
    assert norms == expected and min(norms) > 0.05
    assert few.digest() == all_rows.digest() != tiny_policy().digest()
    held = {leaf_of(few.model.get_parameter(name)) for name in (EMBEDDING, HEAD)}
    assert held <= optimizer.state.keys() and all(p.grad is None for p in few.model.parameters())


@SURFACES
def test_the_gradient_is_that_of_the_whole_table_which_is_zero_in_every_other_row(rows, whole, surface):
    lessons, divisor = select_lessons(rows, ADVANTAGES, weighting="token", episode_tokens=1)
    found = []
    for choose in (lambda policy, s: s.trainable(policy), whole):
        policy = tiny_policy()
        parameters = dict(choose(policy, surface))
        accumulate_gradient(policy, lessons, divisor, settings(), TEMPERATURE, Fixed(None, None))
        found.append((policy, {name: leaf_of(parameters[name]).grad for name in (EMBEDDING, HEAD)}))
    (policy, few), (_, dense) = found
    for name in (EMBEDDING, HEAD):
        chosen = row_gradient(policy.model.get_parameter(name)).rows
        assert torch.equal(dense[name][chosen], few[name]) and bool(few[name].any())
        others = torch.ones(len(dense[name]), dtype=torch.bool).index_fill_(0, chosen, False)
        assert (
            not dense[name][others].any()
            and len(chosen) < len(dense[name])
            and policy.model.get_parameter(name).grad is None
        )


def test_rows_are_those_of_the_prompt_the_states_and_the_action_block():
    policy = tiny_policy()
    TextStack().trainable(policy)
    ids, width = policy.prompt.ids, policy.vocabulary
    block = range(ids.action_block, ids.action_block + width)
    fed = {*policy.prompt.template_P.tolist(), *range(ids.state_start, ids.state_start + STATE_BINS), *block}
    assert row_gradient(policy.model.get_parameter(EMBEDDING)).rows.tolist() == sorted(fed)
    assert row_gradient(policy.model.get_parameter(HEAD)).rows.tolist() == list(block)
    extremes = torch.tensor([[0] * 6, [STATE_BINS - 1] * 6])
    assert set(policy.prompt.prompt_ids(extremes).flatten().tolist()) <= fed
    PatchOnly().trainable(policy)
    assert [row_gradient(policy.model.get_parameter(n)).rows.tolist() for n in (EMBEDDING, HEAD)] == [list(block)] * 2


@pytest.mark.parametrize("kept_whole", [False, True])
def test_no_gradient_of_a_tables_size_is_ever_made(rows, whole, kept_whole):
    """Every tensor that autograd makes on the way back is seen by a mode that looks at all operations."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        made = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                owned = isinstance(tensor, torch.Tensor) and not function.is_view
                if owned and tensor.shape in shapes and "_" != function.overloadpacket.__name__[-1]:
                    self.made += 1
            return result

    policy = tiny_policy()
    shapes = [policy.model.get_parameter(name).shape for name in (EMBEDDING, HEAD)]
    whole(policy, Full()) if kept_whole else Full().trainable(policy)
    lessons, divisor = select_lessons(rows, ADVANTAGES, weighting="token", episode_tokens=1)
    with Largest() as looked:
        accumulate_gradient(policy, lessons, divisor, settings(), TEMPERATURE, Fixed(None, None))
    assert (looked.made > 0) is kept_whole


def test_another_surface_takes_the_tables_back(rows):
    policy = tiny_policy()
    table = policy.model.get_parameter(EMBEDDING)
    TextStack().trainable(policy)
    assert not table.requires_grad and row_gradient(table) is not None
    rowgradients.detach(policy.model)
    assert row_gradient(table) is None and leaf_of(table) is table
    assert not policy.model.get_input_embeddings()._forward_hooks


def test_a_copy_of_the_network_neither_has_the_leaf_nor_gives_it_gradients():
    policy = tiny_policy()
    TextStack().trainable(policy)
    other = copy.deepcopy(policy.model)
    assert row_gradient(other.get_parameter(EMBEDDING)) is None
    assert not other.get_input_embeddings()(torch.tensor([policy.prompt.ids.action_block])).requires_grad
    assert policy.model.get_input_embeddings()(torch.tensor([policy.prompt.ids.action_block])).requires_grad


@pytest.mark.parametrize("how", [{"padding_idx": 3}, {"max_norm": 1.0}, {"sparse": True}])
def test_an_embedding_that_does_more_than_to_look_up_keeps_its_ways(how, rows):
    """torch gives the padding row no gradient; the others are left whole."""
    policy = tiny_policy()
    old = policy.model.get_input_embeddings()
    how = {**how, **({"padding_idx": int(policy.prompt.template_P[0])} if "padding_idx" in how else {})}
    new = nn.Embedding(*old.weight.shape, **how)
    new.weight = old.weight
    policy.model.set_input_embeddings(new)
    TextStack().trainable(policy)
    found = row_gradient(new.weight)
    if "padding_idx" not in how:
        assert found is None and new.weight.requires_grad
        return
    new(policy.prompt.template_P).sum().backward()
    silent = found.rows.tolist().index(how["padding_idx"])
    assert not found.leaf.grad[silent].any() and found.leaf.grad.abs().sum(1).count_nonzero() > 1


def test_an_adapter_that_does_not_tell_its_ids_keeps_whole_tables():
    policy = tiny_policy()

    class Own:
        text_parameters, token_tables = policy.adapter.text_parameters, policy.adapter.token_tables

    policy.adapter = Own()
    parameters = dict(TextStack().trainable(policy))
    assert all(leaf_of(parameters[name]) is parameters[name] for name in (EMBEDDING, HEAD))
    assert all(parameters[name].requires_grad for name in (EMBEDDING, HEAD))


# ------------------------------------------------------------------------------------------- kept, read and taken back
def updated(rows, surface=None, choose=None):
    policy, surface = tiny_policy(), surface or TextStack()
    parameters = choose(policy, surface) if choose else surface.trainable(policy)
    _, optimizer = three_updates(policy, parameters, surface, rows)
    return policy, parameters, optimizer


def fresh(surface=None):
    policy, surface = tiny_policy(), surface or TextStack()
    parameters = surface.trainable(policy)
    return policy, parameters, build_optimizer(parameters, OptimConfig(lr=1e-2), surface)


def test_a_checkpoint_keeps_moments_of_the_rows_alone_and_gives_them_back(rows, tmp_path):
    _, parameters, optimizer = updated(rows)
    path = ckpt.save_checkpoint(tmp_path, 3, parameters, optimizer, {})
    loaded = ckpt.load_checkpoint(path)
    table = row_gradient(dict(parameters)[EMBEDDING])
    assert loaded.moments[f"{EMBEDDING}.exp_avg"].shape == table.leaf.shape
    assert torch.equal(loaded.moments[f"{EMBEDDING}.rows"], table.rows)
    assert loaded.weights[EMBEDDING].shape == table.table.shape
    _, again, other = fresh()
    ckpt.restore(loaded, again, other)
    for (name, a), (_, b) in zip(parameters, again, strict=True):
        assert torch.equal(a, b), name
        for field, value in optimizer.state[leaf_of(a)].items():
            assert torch.equal(other.state[leaf_of(b)][field], value), (name, field)


def test_a_checkpoint_of_format_2_with_moments_of_every_row_goes_on_bit_for_bit(rows, whole, tmp_path, monkeypatch):
    old, parameters, optimizer = updated(rows, choose=whole)
    with monkeypatch.context() as before:
        before.setattr(ckpt, "FORMAT", 2)
        path = ckpt.save_checkpoint(tmp_path, 3, parameters, optimizer, {})
    policy, again, other = fresh()
    ckpt.restore(ckpt.load_checkpoint(path), again, other)
    for some, held, stepped in ((old, parameters, optimizer), (policy, again, other)):
        grpo_update(
            policy=some, parameters=held, optimizer=stepped, rows=rows, advantages=ADVANTAGES,
            settings=settings(lr=1e-2), temperature=TEMPERATURE, step=4,
        )  # fmt: skip
    assert policy.digest() == old.digest()


def test_moments_of_other_rows_are_refused_by_name(rows, whole, tmp_path):
    _, parameters, optimizer = updated(rows, PatchOnly())
    loaded = ckpt.load_checkpoint(ckpt.save_checkpoint(tmp_path, 1, parameters, optimizer, {}))
    loaded.moments[f"{HEAD}.rows"][0] -= 1
    _, again, other = fresh(PatchOnly())
    with pytest.raises(IntegrityError, match=f"other rows of {HEAD}"):
        ckpt.restore(loaded, again, other)
    _, parameters, optimizer = updated(rows, Full(), choose=whole)
    loaded = ckpt.load_checkpoint(ckpt.save_checkpoint(tmp_path, 2, parameters, optimizer, {}))
    loaded.moments[f"{EMBEDDING}.exp_avg"][0] += 1.0  # no prompt has this id
    with pytest.raises(IntegrityError, match=f"other rows of {EMBEDDING}"):
        ckpt.restore(loaded, *fresh(Full())[1:])


def test_an_undone_update_leaves_weights_and_moments_of_the_rows_as_they_were(rows):
    policy, parameters, optimizer = updated(rows)
    before, kept = Snapshot(parameters, optimizer), state(policy)
    moments = copy.deepcopy([optimizer.state[leaf_of(p)] for _, p in parameters])
    grpo_update(
        policy=policy, parameters=parameters, optimizer=optimizer, rows=rows, advantages=ADVANTAGES,
        settings=settings(lr=1e-2), temperature=TEMPERATURE, step=4,
    )  # fmt: skip
    assert not torch.equal(policy.model.get_parameter(EMBEDDING), kept[EMBEDDING])
    before.put_back()
    assert all(torch.equal(p, kept[name]) for name, p in policy.model.named_parameters())
    for (name, p), old in zip(parameters, moments, strict=True):
        assert all(torch.equal(value, old[field]) for field, value in optimizer.state[leaf_of(p)].items()), name


@pytest.mark.parametrize("loss", [{}, {"trust_region": 1e-9}], ids=["plain", "undone"])
def test_a_run_that_is_resumed_ends_in_the_weights_of_whole_tables(tmp_path, monkeypatch, loss):
    def stop(event):
        if isinstance(event, StepDone):
            raise Killed

    settings = {"loss": LossConfig(**loss), "surface": Full()}
    with monkeypatch.context() as before:
        before.setattr(rowgradients, "attach", lambda *_: None)
        expected = toy_trainer(tmp_path / "whole", **settings)
        finish(expected)
    with pytest.raises(Killed):
        finish(toy_trainer(tmp_path / "run", on_event=stop, **settings))
    resumed = toy_trainer(tmp_path / "run", **settings)
    finish(resumed)
    assert resumed.policy.digest() == expected.policy.digest()
    assert np.isfinite([row["grad_norm"] for row in resumed.run_dir.rows("train.jsonl")]).all()
