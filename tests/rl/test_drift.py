"""Anchor, drift, several epochs, micro-batches by tokens: what is measured and what is put back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from one_update import SPECS, TEMPERATURE, gradients, settings, state, update
from tiny_policy import tiny_policy

from vla_rl.config.schema import OptimConfig
from vla_rl.errors import StoppedRun
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.rl import drift, snapshot
from vla_rl.rl.anchor import Copied
from vla_rl.rl.drift import kl_cost_cm, log_probabilities, measure, sample_rows
from vla_rl.rl.lessons import BatchLimits, micro_batches
from vla_rl.rl.rowchecks import check_first
from vla_rl.rl.snapshot import Snapshot
from vla_rl.rl.surfaces import Full, TextStack
from vla_rl.rl.update import build_optimizer


def test_the_anchor_is_the_old_policy_for_as_long_as_it_is_installed(rows):
    policy = tiny_policy()
    parameters = TextStack().trainable(policy)
    anchor, before = Copied(parameters), policy.digest()
    with torch.no_grad():
        for _, parameter in parameters:
            parameter += 0.01
    moved = policy.digest()
    with anchor.installed():
        assert policy.digest() == before
    assert policy.digest() == moved != before
    with pytest.raises(RuntimeError, match="inside"), anchor.installed():
        raise RuntimeError("inside")
    assert policy.digest() == moved


@pytest.mark.parametrize("piece_bytes", [4, 100, 2**26])
def test_live_weights_and_anchor_change_places_whatever_the_size_of_a_piece(piece_bytes, monkeypatch):
    """There and back twice: both are what they were, and a sampler's copy is told that weights have moved."""
    monkeypatch.setattr(snapshot, "PIECE_BYTES", piece_bytes)
    policy = tiny_policy()
    parameters = [pair for pair in TextStack().trainable(policy) if pair[1].ndim == 1 or pair[0] == "lm_head.weight"]
    anchor, before = Copied(parameters), policy.digest()
    with torch.no_grad():
        for _, parameter in parameters:
            parameter += 0.01
    moved = policy.digest()
    for _ in range(2):
        versions = [parameter._version for _, parameter in parameters]
        with anchor.installed():
            assert policy.digest() == before
            assert all(parameter._version > v for (_, parameter), v in zip(parameters, versions, strict=True))
        assert policy.digest() == moved


@pytest.mark.parametrize("exchanges", [1, 5])
def test_an_anchor_that_fails_to_move_in_leaves_the_live_weights(exchanges, monkeypatch):
    policy, left = tiny_policy(), [exchanges]
    parameters = TextStack().trainable(policy)
    anchor, real = Copied(parameters), snapshot._exchange
    with torch.no_grad():
        for _, parameter in parameters:
            parameter += 0.01
    moved = policy.digest()

    def exchange(*pair):
        left[0] -= 1
        if left[0] == 0:
            raise torch.OutOfMemoryError
        real(*pair)

    monkeypatch.setattr(snapshot, "_exchange", exchange)
    with pytest.raises(torch.OutOfMemoryError), anchor.installed():
        raise AssertionError("never reached")
    assert policy.digest() == moved


def test_a_policy_that_has_not_moved_is_at_distance_zero_and_one_that_has_is_not(rows):
    policy = tiny_policy()
    parameters = Full().trainable(policy)
    anchor = Copied(parameters)
    still = measure(policy, anchor, rows[:6], temperature=TEMPERATURE, limits=BatchLimits(4))
    assert still is not None and still.anchor_kl == 0.0 and still.update_kl < 1e-9 and still.rows == 6
    update(policy, rows, optim=OptimConfig(lr=3e-3), constants=settings(lr=3e-3))
    moved = measure(policy, anchor, rows[:6], temperature=TEMPERATURE, limits=BatchLimits(4))
    assert moved is not None and moved.anchor_kl > 1e-4 and moved.update_kl > 1e-4
    assert measure(policy, anchor, [], temperature=TEMPERATURE, limits=BatchLimits(4)) is None


def test_the_sample_is_spread_over_seeds_and_draws_and_depends_on_the_step_alone(rows):
    for count in (3, 6):
        sample = sample_rows(rows, count, step=4)
        assert len(sample) == count and len({id(row) for row in sample}) == count
        assert set(Counter(row.spec.seed for row in sample).values()) == {count // 3}
        shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
        assert [(r.spec, r.replan) for r in sample_rows(shuffled, count, 4)] == [(r.spec, r.replan) for r in sample]
    assert {row.spec for row in sample_rows(rows, 6, 4)} == set(SPECS)
    assert len(sample_rows(rows, 10**6, 4)) == len(rows) and sample_rows([], 5, 1) == []
    chosen = {tuple((r.spec, r.replan) for r in sample_rows(rows, 3, step)) for step in range(12)}
    assert len(chosen) > 1


def test_with_two_epochs_the_second_is_off_policy_and_goes_further(rows):
    once, twice = tiny_policy(), tiny_policy()
    first = update(once, rows)
    second = update(twice, rows, constants=settings(loss={"epochs": 2}))
    assert first.ratios["max_ratio"] == 1.0 < second.ratios["max_ratio"] and second.ratios["approx_kl"] > 0
    assert second.rollout_gap == first.rollout_gap and second.entropy == first.entropy
    assert once.digest() != twice.digest()


def test_the_first_epoch_of_several_has_ratio_one_bit_for_bit(rows):
    result = update(tiny_policy(), rows, constants=settings(loss={"epochs": 2}, lr=0.0), optim=OptimConfig(lr=1e-3))
    assert result.ratios["min_ratio"] == result.ratios["max_ratio"] == 1.0 and result.ratios["approx_kl"] == 0.0


def test_a_kl_term_pulls_back_and_is_zero_at_the_anchor(rows):
    policy = tiny_policy()
    anchor = Copied(Full().trainable(policy))
    constants = settings(loss={"kl_beta": 5.0})
    nothing = {spec: 0.0 for spec in SPECS}
    at_home = update(policy, rows, constants=constants, anchor=anchor, advantages=nothing)
    assert at_home.anchor_k3 == 0.0 and at_home.grad_norm == 0.0 and at_home.rows == len(rows)
    update(policy, rows, constants=settings(lr=3e-3), optim=OptimConfig(lr=3e-3))
    away = update(policy, rows, constants=replace(constants, lr=1e-4), anchor=anchor, advantages=nothing)
    back = update(policy, rows, constants=replace(constants, lr=1e-4), anchor=anchor, advantages=nothing)
    assert away.anchor_k3 is not None and back.anchor_k3 is not None and 0 < back.anchor_k3 < away.anchor_k3
    with pytest.raises(ValueError, match="anchor"):
        update(policy, rows, constants=constants)


def test_the_kl_cost_of_an_episode_is_beta_times_its_summed_estimate(rows):
    policy = tiny_policy()
    anchor = Copied(Full().trainable(policy))
    arguments = {"temperature": TEMPERATURE, "limits": BatchLimits(4)}
    still = kl_cost_cm(policy, anchor, rows, beta=2.0, estimator="k1", **arguments)
    assert set(still) == set(SPECS) and max(map(abs, still.values())) < 1e-3
    shifted = [replace(row, logp=row.logp + np.float32(0.1)) for row in rows]
    costs = kl_cost_cm(policy, anchor, shifted, beta=2.0, estimator="k1", **arguments)
    tokens = Counter()
    for row in rows:
        tokens[row.spec] += len(row.bins)
    assert costs == pytest.approx({spec: 0.2 * tokens[spec] for spec in SPECS}, rel=1e-2)


def test_an_update_that_is_undone_leaves_weights_and_moments_as_they_were(rows):
    policy = tiny_policy()
    parameters = Full().trainable(policy)
    optimizer = build_optimizer(parameters, OptimConfig(lr=1e-3), Full())
    for _, parameter in parameters:
        leaf_of(parameter).grad = torch.ones_like(leaf_of(parameter))
    fresh = Snapshot(parameters, optimizer)
    optimizer.step()
    weights = state(policy)
    moments = {name: {f: v.clone() for f, v in optimizer.state[leaf_of(p)].items()} for name, p in parameters}
    later = Snapshot(parameters, optimizer)
    optimizer.step()
    later.put_back()
    assert all(torch.equal(weights[name], p) for name, p in parameters)
    assert all(moments.values())
    assert all(torch.equal(moments[n][f], v) for n, p in parameters for f, v in optimizer.state[leaf_of(p)].items())
    fresh.put_back()
    assert not optimizer.state and policy.digest() == tiny_policy().digest()


@pytest.mark.parametrize("tokens", [1, 60, 100, 10**6])
def test_micro_batches_by_tokens_change_no_gradient(rows, tokens):
    whole, _ = gradients(rows, settings(microbatch_rows=len(rows)))
    parts, _ = gradients(rows, settings(microbatch_rows=len(rows), microbatch_tokens=tokens))
    for name, gradient in whole.items():
        assert torch.allclose(gradient, parts[name], rtol=1e-4, atol=1e-7), name


@pytest.mark.parametrize("lengths", [[5, 9, 3, 3, 3, 20, 1], sorted([5, 9, 3, 3, 3, 20, 1]), [7], [40] * 9])
def test_micro_batches_keep_the_order_and_both_limits(lengths):
    parts = list(micro_batches(lengths, BatchLimits(4, 75), prompt_tokens=15))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(lengths)))
    for part in parts:
        batch, more = lengths[part], lengths[part.start : part.stop + 1]
        assert len(batch) == 1 or (len(batch) <= 4 and len(batch) * (15 + max(batch)) <= 75)
        assert more == batch or len(more) > 4 or len(more) * (15 + max(more)) > 75  # no smaller than need be
    assert {part.stop - part.start for part in micro_batches(lengths, BatchLimits(4, 1), 15)} == {1}
    assert [part.stop for part in micro_batches([3] * 9, BatchLimits(4), 15)] == [4, 8, 9]
    assert list(micro_batches([], BatchLimits(4), 15)) == []


def test_passes_without_gradient_keep_to_the_token_limit_too(rows, monkeypatch):
    sizes, real = [], drift.score_rows

    def counted(policy, observations, *rest):
        sizes.append(len(observations))
        return real(policy, observations, *rest)

    monkeypatch.setattr(drift, "score_rows", counted)
    together, alone = (
        log_probabilities(tiny_policy(), rows, temperature=TEMPERATURE, limits=limits)
        for limits in (BatchLimits(100), BatchLimits(100, 1))
    )
    assert sizes == [len(rows)] + [1] * len(rows)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(together, alone, strict=True))


def test_progress_counts_the_rows_of_all_passes(rows):
    told = []
    result = update(
        tiny_policy(),
        rows,
        constants=settings(loss={"epochs": 3}),
        progress=lambda done, total: told.append((done, total)),
    )
    done = [count for count, _ in told]
    assert (
        {total for _, total in told} == {3 * result.rows} and done == sorted(set(done)) and done[-1] == 3 * result.rows
    )


def test_rows_that_another_policy_sampled_are_noticed_before_any_update(rows):
    assert check_first(tiny_policy(), rows, settings(), TEMPERATURE) < 1e-5
    with pytest.raises(StoppedRun, match="trainer and sampler differ"):
        check_first(tiny_policy(), [replace(row, logp=row.logp - np.float32(0.1)) for row in rows], settings(), 1.3)
