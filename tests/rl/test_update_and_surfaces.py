"""One update of a real twin on sampled rows: what moves, what must not, and what may not change the gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from one_update import ADVANTAGES, SPECS, TEMPERATURE, gradients, settings, state, update
from tiny_policy import tiny_policy, tiny_sampler

from vla_rl.config.schema import OptimConfig
from vla_rl.errors import ConfigError, IntegrityError, MachineError, StoppedRun
from vla_rl.policy.logprob import Scores
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.policy.sampler import PredictRequest
from vla_rl.rl import preflight
from vla_rl.rl import update as update_module
from vla_rl.rl.lessons import select_lessons
from vla_rl.rl.surfaces import Full, PatchOnly, TextStack
from vla_rl.rl.update import Fixed, accumulate_gradient, build_optimizer


def test_the_first_ratio_is_one_nothing_is_clipped_and_the_gap_to_the_sampler_is_small(rows):
    result = update(tiny_policy(), rows)
    assert result.ratios == {
        "mean_ratio": 1.0, "min_ratio": 1.0, "max_ratio": 1.0, "clip_fraction": 0.0, "approx_kl": 0.0,
    }  # fmt: skip
    assert 0 < result.rollout_gap < 1e-5
    assert result.grad_norm > 0 and not result.step_skipped and result.loss is not None


def test_against_the_samplers_log_probabilities_the_ratio_is_one_within_1e_4(rows):
    result = update(tiny_policy(), rows, constants=settings(old_logp="recorded"))
    assert abs(result.ratios["mean_ratio"] - 1) < 1e-4 and result.ratios["clip_fraction"] == 0.0
    assert result.ratios["max_ratio"] - 1 < 1e-4 and 1 - result.ratios["min_ratio"] < 1e-4


def test_loss_and_row_statistics_by_hand_on_policy(rows):
    result = update(tiny_policy(), rows)
    tokens = {s: sum(len(r.bins) for r in rows if r.spec == s) for s in SPECS}
    kept = [s for s in SPECS if ADVANTAGES[s] != 0]
    assert result.loss == pytest.approx(-sum(ADVANTAGES[s] * tokens[s] for s in SPECS) / sum(tokens.values()), abs=1e-6)
    assert result.tokens == sum(tokens[s] for s in kept) and result.rows == sum(r.spec in kept for r in rows)
    assert result.chosen_nll == pytest.approx(np.mean([-r.logp.mean() for r in rows if r.spec in kept]), abs=1e-6)
    assert 0 < result.entropy < np.log(tiny_policy().vocabulary)


def test_under_episode_weighting_a_balanced_pair_of_any_lengths_has_loss_zero(rows):
    assert update(tiny_policy(), rows, constants=settings("episode")).loss == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("weighting", ["token", "episode", "constant"])
def test_the_gradient_does_not_depend_on_the_micro_batch(rows, weighting):
    whole, _ = gradients(rows, settings(weighting, microbatch_rows=1000))
    for size in (1, 2, 5):
        part, _ = gradients(rows, settings(weighting, microbatch_rows=size))
        for name in whole:
            assert torch.allclose(part[name], whole[name], rtol=1e-5, atol=1e-7), name


def test_rows_of_dropped_groups_change_nothing_and_the_order_of_rows_neither(rows):
    kept = {s: a for s, a in ADVANTAGES.items() if s.seed != 102}
    policies = [tiny_policy() for _ in range(3)]
    update(policies[0], rows, advantages=kept)
    update(policies[1], [r for r in rows if r.spec.seed != 102], advantages=kept)
    update(policies[2], rows[::-1], advantages=kept)
    assert policies[0].digest() == policies[1].digest() == policies[2].digest()


def test_rows_with_advantage_zero_count_in_the_normaliser_and_are_not_computed(rows):
    lessons, normaliser = select_lessons(rows, ADVANTAGES, weighting="token", episode_tokens=1)
    assert normaliser == sum(len(r.bins) for r in rows)
    assert {lesson.row.spec.seed for lesson in lessons} == {100, 102}
    lengths = [len(lesson.row.bins) for lesson in lessons]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("advantages", [{}, dict.fromkeys(SPECS, 0.0)])
def test_with_nothing_to_learn_no_weight_moves_and_the_step_is_marked_skipped(rows, advantages):
    policy = tiny_policy()
    before = policy.digest()
    result = update(policy, rows, advantages=advantages, optim=OptimConfig(lr=1e-3, weight_decay=0.1))
    assert policy.digest() == before
    assert result.step_skipped and result.loss is None and result.loss_finite and set(result.ratios.values()) == {None}


def test_the_update_raises_the_likelihood_of_good_episodes_and_the_sampler_feels_it(rows):
    policy = tiny_policy()
    sampler = tiny_sampler(policy)
    request = PredictRequest(type("O", (), {"frames": rows[0].frames, "state_deg": rows[0].state_deg})(), 100, 0, 0)
    before = sampler.sample([request], TEMPERATURE)[0]
    update(policy, rows, advantages={SPECS[0]: 1.0, SPECS[1]: -1.0}, optim=OptimConfig(lr=1e-2))
    after = sampler.sample([request], TEMPERATURE)[0]
    assert not np.array_equal(before.logp, after.logp)
    again = update(policy, rows, advantages={SPECS[0]: 1.0}, constants=settings(old_logp="recorded"))
    assert again.ratios["mean_ratio"] > 1.0


def test_learning_rate_zero_keeps_ratio_gap_and_weights_for_ten_updates(rows):
    policy = tiny_policy()
    before = policy.digest()
    for _ in range(10):
        result = update(policy, rows, constants=settings(old_logp="recorded", lr=0.0), optim=OptimConfig(lr=0.0))
        assert result.rollout_gap < 1e-5
    assert policy.digest() == before


def test_patch_only_moves_action_rows_of_embedding_and_head_and_nothing_else_bit_for_bit(rows):
    policy = tiny_policy()
    before, first = state(policy), policy.prompt.ids.action_block
    block = slice(first, first + policy.vocabulary)
    result = update(policy, rows, surface=PatchOnly())
    after = state(policy)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"model.language_model.embed_tokens.weight", "lm_head.weight"}
    for name in moved:
        changed = (before[name] != after[name]).any(dim=1)
        assert changed[block].any() and not changed[:first].any() and not changed[block.stop :].any()
    assert result.grad_norm > 0


def test_the_text_stack_leaves_every_vision_weight_bit_identical_and_moves_every_text_matrix(rows):
    policy = tiny_policy()
    before = state(policy)
    update(policy, rows, surface=TextStack())
    after = state(policy)
    text = {name for name in before if name.startswith(("model.language_model.", "lm_head."))}
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved <= text and {name for name in text if before[name].ndim == 2} <= moved


def test_the_full_surface_moves_the_vision_tower(rows):
    policy = tiny_policy()
    before = state(policy)
    update(policy, rows, surface=Full())
    after = state(policy)
    tower = [name for name in before if "vision_tower" in name and before[name].ndim == 2]
    assert tower and all(not torch.equal(before[name], after[name]) for name in tower)


def test_weight_decay_on_a_partial_surface_is_refused():
    policy = tiny_policy()
    with pytest.raises(ConfigError, match="weight decay"):
        build_optimizer(PatchOnly().trainable(policy), OptimConfig(weight_decay=0.1), PatchOnly())


def test_a_gradient_that_is_not_finite_skips_the_step_and_says_so(rows):
    policy = tiny_policy()
    weight = policy.model.model.language_model.norm.weight
    handle = weight.register_hook(lambda grad: grad * float("nan"))
    before = policy.digest()
    result = update(policy, rows)
    handle.remove()
    assert result.step_skipped and result.loss_finite and result.grad_norm is None
    assert policy.digest() == before and weight.grad is None


def test_a_loss_that_is_not_finite_moves_nothing(rows):
    policy = tiny_policy()
    with torch.no_grad():
        policy.model.lm_head.weight.fill_(float("nan"))
    others = {n: w for n, w in state(policy).items() if n != "lm_head.weight"}
    result = update(policy, rows)
    assert result.step_skipped and not result.loss_finite and result.loss is None
    assert all(torch.equal(w, state(policy)[n]) for n, w in others.items())


def test_a_row_whose_mask_or_log_probability_was_tampered_with_is_refused_by_name(rows):
    broken = replace(rows[0], legal_packed=rows[0].legal_packed ^ 1)
    with pytest.raises(IntegrityError, match="seed000100_draw00 replan 0"):
        update(tiny_policy(), [broken, *rows[1:]])
    broken = replace(rows[0], logp=rows[0].logp * np.float32("inf"))
    with pytest.raises(IntegrityError, match="not finite"):
        update(tiny_policy(), [broken, *rows[1:]])


def test_the_warm_up_rises_linearly_to_the_learning_rate():
    constants = settings(lr=3e-5, warmup_steps=5)
    assert [constants.lr_at(s) for s in (1, 2, 5, 6, 50)] == pytest.approx([0.6e-5, 1.2e-5, 3e-5, 3e-5, 3e-5])
    assert settings(lr=3e-5).lr_at(1) == 3e-5


def test_the_learning_rate_falls_as_one_over_the_update_where_it_is_asked_to():
    constants = settings(lr=3e-5, warmup_steps=5, decay_after=20)
    assert [constants.lr_at(s) for s in (1, 20, 40, 60)] == pytest.approx([0.6e-5, 3e-5, 1.5e-5, 1e-5])
    assert settings(lr=3e-5, warmup_steps=4, decay_after=2).lr_at(4) == pytest.approx(1.5e-5)


@pytest.mark.parametrize("bad", [{"old_logp": "sampler"}, {"weighting": "row"}, {"microbatch_rows": 0}])
def test_constants_that_make_no_sense_are_refused(bad):
    with pytest.raises(ConfigError):
        settings(**bad)


def test_the_dry_update_covers_the_longest_row_and_leaves_no_trace(rows):
    policy = tiny_policy()
    surface = PatchOnly()
    parameters = surface.trainable(policy)
    optimizer = build_optimizer(parameters, OptimConfig(lr=1e-3), surface)
    before = policy.digest()
    observation = type("O", (), {"frames": rows[0].frames, "state_deg": rows[0].state_deg})()
    tokens = preflight.dry_update(policy, parameters, optimizer, settings(), TEMPERATURE, observation)
    assert tokens == policy.grammar.total == 24
    assert policy.digest() == before and not optimizer.state and all(leaf_of(p).grad is None for _, p in parameters)
    with torch.no_grad():
        policy.model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(StoppedRun, match="dry update"):
        preflight.dry_update(policy, parameters, optimizer, settings(), TEMPERATURE, observation)


def test_everything_that_a_loss_is_given_lies_where_the_scores_lie(rows, monkeypatch):
    """Scores come from torch's device without storage, with which nothing on the CPU can be computed together."""
    given, real = [], update_module.score_rows
    lessons, divisor = select_lessons(rows, ADVANTAGES, weighting="token", episode_tokens=1.0)
    held = [torch.from_numpy(lesson.row.logp) for lesson in lessons]

    def elsewhere(*arguments):
        return Scores(*(value.to("meta") for value in vars(real(*arguments)).values()))

    def loss(inputs, objective):
        given.append({name: value for name, value in vars(inputs).items() if isinstance(value, torch.Tensor)})
        raise InterruptedError

    monkeypatch.setattr(update_module, "score_rows", elsewhere)
    constants = replace(settings(loss={"kl_beta": 0.1, "entropy_bonus": 0.1}), token_loss=loss)
    for fixed in (Fixed(None, held), Fixed(held, held)):
        with pytest.raises(InterruptedError):
            accumulate_gradient(tiny_policy(), lessons, divisor, constants, TEMPERATURE, fixed)
    assert [len(tensors) for tensors in given] == [7, 7]
    assert {value.device.type for tensors in given for value in tensors.values()} == {"meta"}


def test_a_full_disk_is_found_before_the_first_wave(rows, tmp_path, monkeypatch):
    policy = tiny_policy()
    parameters = Full().trainable(policy)
    observation = type("O", (), {"frames": rows[0].frames, "state_deg": rows[0].state_deg})()
    needed = preflight.check_disk(tmp_path, policy, parameters, observation, rows=100, checkpoints=3)
    assert needed > 3 * 4 * sum(p.numel() + 2 * leaf_of(p).numel() for _, p in parameters)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: type("U", (), {"free": needed - 1})())
    with pytest.raises(MachineError, match="GiB are free"):
        preflight.check_disk(tmp_path, policy, parameters, observation, rows=100, checkpoints=3)
