"""The surface `lora`: what moves and what stays, one likelihood, the anchor, checkpoints, a whole run."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from bandit import bandit_trainer
from one_update import ADVANTAGES, TEMPERATURE, settings
from test_learning import success_rates
from test_memory import told_of
from test_trainer import evidence, finish, lived, lives  # noqa: F401 (a fixture)
from tiny_policy import tiny_policy, tiny_sampler
from toy_run import STEPS, lora, toy_trainer

from vla_rl.config.schema import LossConfig, OptimConfig
from vla_rl.errors import ConfigError, IntegrityError, MachineError
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.lora import merge, pairs, plain_state, switched_off
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import PredictRequest
from vla_rl.rl.anchor import AdapterOff, Anchor, Copied
from vla_rl.rl.checkpoint import checkpoints, load_checkpoint
from vla_rl.rl.drift import log_probabilities, measure
from vla_rl.rl.forecast import parameter_counts
from vla_rl.rl.lessons import BatchLimits
from vla_rl.rl.rundir import BASE_DIGEST
from vla_rl.rl.trained import put_weights
from vla_rl.rl.update import build_optimizer, grpo_update
from vla_rl.rollout import store

# Of the tiny network, at rank 1: q, k, v and o are 32 x 32, gate and up 48 x 32, down 32 x 48, in each of two layers.
ONE_RANK = 2 * (4 * (32 + 32) + 3 * (32 + 48))


class Learner:
    """A tiny policy with an adapter, and as many updates as wanted on the same rows."""

    def __init__(self, rows, lr=1e-2, **keys):
        self.rows, self.policy, surface = rows, tiny_policy(), lora(**keys)
        self.parameters = surface.trainable(self.policy)
        self.optimizer, self.constants = build_optimizer(self.parameters, OptimConfig(lr=lr), surface), settings(lr=lr)
        self.step = 0

    def update(self, **more):
        self.step += 1
        return grpo_update(
            policy=self.policy, parameters=self.parameters, optimizer=self.optimizer, rows=self.rows,
            advantages=ADVANTAGES, settings=more.pop("constants", self.constants), temperature=TEMPERATURE,
            step=self.step, **more,
        )  # fmt: skip

    def halves(self):
        return {name: half.detach().clone() for pair in pairs(self.policy.model) for name, half in pair.named()}


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def frozen(policy):
    return {name: tensor.detach().clone() for name, tensor in plain_state(policy.model).items()}


def test_parameters_are_counted_by_hand_and_nothing_else_may_move():
    for rank in (1, 4):
        policy = tiny_policy()
        total = sum(p.numel() for p in policy.model.parameters())
        parameters = lora(rank=rank).trainable(policy)
        assert sum(p.numel() for _, p in parameters) == rank * ONE_RANK
        assert {name for name, p in policy.model.named_parameters() if p.requires_grad} == {n for n, _ in parameters}
        counts = parameter_counts(policy, parameters)
        assert counts["total"] == total + rank * ONE_RANK and counts["trainable"] == rank * ONE_RANK
        assert counts["by_surface"]["lora"] == {"tensors": rank * ONE_RANK, "moving": rank * ONE_RANK}
        assert counts["by_surface"]["full"]["tensors"] == total
    some = tiny_policy()
    assert sum(p.numel() for _, p in lora(rank=1, targets=["q_proj", "down_proj"]).trainable(some)) == 2 * (64 + 80)


def test_bytes_of_an_update_are_those_of_the_adapter_and_the_anchor_is_no_copy(rows):
    policy = tiny_policy()
    base = 4 * sum(p.numel() for p in policy.model.parameters())
    parameters = lora().trainable(policy)
    told, _ = told_of(policy, parameters, rows)
    adapter = 4 * 4 * ONE_RANK
    assert told["weights"] == base + adapter and told["gradients"] == adapter
    assert told["moments"] == 2 * adapter + 4 * len(parameters)  # and a step count each
    assert isinstance(Anchor.of(policy, parameters), AdapterOff) and told["copies"] == 0


def test_b_moves_in_the_first_update_a_in_the_second_and_the_base_never(rows):
    learner = Learner(rows)
    base, start = frozen(learner.policy), learner.halves()
    ups = {name for name in start if ".lora_B." in name}
    assert all(not start[name].any() for name in ups) and len(start) == 28
    learner.update()
    first = learner.halves()
    assert changed(start, first) == ups
    learner.update()
    assert changed(start, learner.halves()) == set(start)
    assert changed(base, frozen(learner.policy)) == set()
    assert set(base) == set(tiny_policy().model.state_dict())


def test_a_fresh_adapter_is_the_base_bit_for_bit_and_has_its_digest(rows):
    base, policy = tiny_policy(), tiny_policy()
    lora().trainable(policy)
    assert policy.digest() == base.digest()
    limits = BatchLimits(4)
    bare, adapted = (log_probabilities(p, rows, temperature=TEMPERATURE, limits=limits) for p in (base, policy))
    assert all(torch.equal(a, b) for a, b in zip(bare, adapted, strict=True))


def test_the_run_seed_decides_the_first_a():
    def start(run_seed):
        policy = tiny_policy()
        return dict(lora(run_seed=run_seed).trainable(policy))

    one, same, other = start(0), start(0), start(1)
    downs = [name for name in one if ".lora_A." in name]
    assert all(torch.equal(one[n], same[n]) and not torch.equal(one[n], other[n]) for n in downs)
    assert all(float(one[n].detach().abs().max()) <= one[n].shape[1] ** -0.5 for n in downs)


def test_the_first_a_of_a_projection_is_its_own_whatever_else_gets_a_pair():
    every, some = (dict(lora(**keys).trainable(tiny_policy())) for keys in ({}, {"targets": ["v_proj", "down_proj"]}))
    assert len(some) == 8 and all(torch.equal(every[name], half) for name, half in some.items())
    downs = [half for name, half in every.items() if ".q_proj.lora_A." in name or ".k_proj.lora_A." in name]
    assert not any(torch.equal(a, b) for i, a in enumerate(downs) for b in downs[:i])


@pytest.mark.parametrize("rank", [1, 4, 8, 16, 32])
def test_trainer_and_sampler_agree_to_the_last_bit_while_the_adapter_moves_and_the_first_ratio_is_one(rows, rank):
    learner = Learner(rows, rank=rank)
    requests = [
        PredictRequest(Observation(row.frames, row.state_deg), row.spec.seed, row.spec.draw, row.replan) for row in rows
    ]
    before = tiny_sampler(learner.policy).sample(requests, TEMPERATURE)
    for _ in range(2):
        result = learner.update()
        assert set(result.ratios[k] for k in ("mean_ratio", "min_ratio", "max_ratio")) == {1.0}
        assert result.ratios["clip_fraction"] == 0.0
    after = tiny_sampler(learner.policy).sample(requests, TEMPERATURE)
    assert any(not np.array_equal(a.bins, b.bins) for a, b in zip(before, after, strict=True))
    fresh = [_resampled(row, answer) for row, answer in zip(rows, after, strict=True)]
    scored = log_probabilities(learner.policy, fresh, temperature=TEMPERATURE, limits=BatchLimits(3))
    assert all(torch.equal(s, torch.from_numpy(r.logp)) for s, r in zip(scored, fresh, strict=True))
    bare = log_probabilities(tiny_policy(), fresh, temperature=TEMPERATURE, limits=BatchLimits(3))
    assert max(float((s - torch.from_numpy(r.logp)).abs().max()) for s, r in zip(bare, fresh, strict=True)) > 1e-2


def _resampled(row, answer):
    return replace(row, bins=answer.bins, logp=answer.logp, legal_packed=answer.legal_packed)


def test_the_digest_changes_with_the_adapter_alone_and_with_what_it_counts(rows):
    learner = Learner(rows)
    fresh = learner.policy.digest()
    learner.update()
    moved = learner.policy.digest()
    assert moved != fresh
    with switched_off(learner.policy.model):
        assert learner.policy.digest() == fresh
    assert learner.policy.digest() == moved
    twice = Learner(rows, alpha=16.0)
    for name, half in twice.parameters:
        half.data.copy_(learner.halves()[name])
    assert twice.policy.digest() not in (moved, fresh)


def test_the_anchor_without_a_copy_gives_the_figures_of_a_copy_bit_for_bit(rows):
    learner = Learner(rows)
    copied, off = Copied(learner.parameters), Anchor.of(learner.policy, learner.parameters)
    how = {"temperature": TEMPERATURE, "limits": BatchLimits(4)}
    still = measure(learner.policy, off, rows[:6], **how)
    assert still is not None and still.anchor_kl == 0.0
    learner.update()
    learner.update()
    assert measure(learner.policy, off, rows[:6], **how) == measure(learner.policy, copied, rows[:6], **how)
    live = log_probabilities(learner.policy, rows[:6], **how)
    with off.installed():
        one = log_probabilities(learner.policy, rows[:6], **how)
    with copied.installed():
        other = log_probabilities(learner.policy, rows[:6], **how)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    again = log_probabilities(learner.policy, rows[:6], **how)
    assert all(torch.equal(a, b) for a, b in zip(live, again, strict=True))
    assert all(half.requires_grad for _, half in learner.parameters)


def test_an_adapter_that_acts_already_is_anchored_by_a_copy():
    policy = tiny_policy()
    parameters = lora().trainable(policy)
    with torch.no_grad():
        for pair in pairs(policy.model):
            pair.up.fill_(0.1)
    begun, anchor = policy.digest(), Anchor.of(policy, parameters)
    with torch.no_grad():
        for _, half in parameters:
            half.mul_(2.0)
    with anchor.installed():
        assert policy.digest() == begun != tiny_policy().digest()
    assert policy.digest() != begun


def test_after_an_error_the_adapter_is_on_again_and_what_was_off_or_frozen_before_stays_so(rows):
    learner = Learner(rows)
    off = Anchor.of(learner.policy, learner.parameters)
    learner.update()
    moved, first = learner.policy.digest(), pairs(learner.policy.model)[0]
    first.down.requires_grad_(False)
    with pytest.raises(RuntimeError, match="inside"), off.installed():
        assert learner.policy.digest() == tiny_policy().digest()
        raise RuntimeError("inside")
    assert learner.policy.digest() == moved
    trained = {name for name, half in learner.parameters if half.requires_grad}
    assert trained == {name for name, _ in learner.parameters} - {name for name, _ in list(first.named())[:1]}
    with off.installed():
        with off.installed():
            pass
        assert learner.policy.digest() == tiny_policy().digest()


def test_a_kl_term_pulls_the_adapter_alike_whichever_anchor_measures_it(rows):
    constants, ends = settings(loss={"kl_beta": 0.5}, lr=1e-2), []
    for kind in (lambda x: Copied(x.parameters), lambda x: Anchor.of(x.policy, x.parameters)):
        learner = Learner(rows)
        anchor = kind(learner)
        results = [learner.update(constants=constants, anchor=anchor) for _ in range(2)]
        ends.append((learner.policy.digest(), results[1].anchor_k3))
    assert ends[0] == ends[1] and ends[0][1] > 0


def test_a_merged_adapter_gives_the_same_log_probabilities_to_1e_5(rows):
    learner = Learner(rows)
    learner.update()
    learner.update()
    names = set(tiny_policy().model.state_dict())
    how = {"temperature": TEMPERATURE, "limits": BatchLimits(4)}
    apart = log_probabilities(learner.policy, rows, **how)
    with pytest.raises(ConfigError, match="merge it first"):
        learner.policy.save(None)  # type: ignore[arg-type]
    assert merge(learner.policy) == pytest.approx(1.0, abs=1e-4)
    assert set(learner.policy.model.state_dict()) == names and not hasattr(learner.policy.model, "peft_config")
    merged = log_probabilities(learner.policy, rows, **how)
    assert max(float((a - b).abs().max()) for a, b in zip(apart, merged, strict=True)) <= 1e-5
    assert learner.policy.digest() != tiny_policy().digest()


@pytest.mark.parametrize(("added", "kept"), [(1 / 1024, 0.0), (3 / 512, 2 / 3), (1 / 128, 1.0), (0.0, 1.0)])
def test_what_a_merge_into_bfloat16_keeps_is_told(added, kept):
    policy = tiny_policy()
    policy.model.to(torch.bfloat16)
    lora(rank=1, alpha=1.0, targets=["q_proj"]).trainable(policy)
    with torch.no_grad():
        for pair in pairs(policy.model):
            policy.model.get_submodule(pair.path).get_base_layer().weight.fill_(1.0)  # the next number is 1 + 1/128
            pair.down.fill_(1.0)
            pair.up.fill_(added)
    assert merge(policy) == pytest.approx(kept, abs=1e-12)
    weight = policy.model.get_submodule("model.language_model.layers.0.self_attn.q_proj").weight
    assert set(weight.flatten().tolist()) == {1 + (1 / 128 if kept and added else 0)}


def test_beside_a_base_in_bfloat16_the_adapter_is_float32_and_the_gap_is_that_of_bfloat16():
    policy = tiny_policy()
    policy.model.to(torch.bfloat16)
    parameters = lora().trainable(policy)
    assert {half.dtype for _, half in parameters} == {torch.float32}
    with torch.no_grad():
        for pair in pairs(policy.model):
            pair.up.copy_(torch.linspace(-0.02, 0.02, pair.up.numel()).view_as(pair.up))
    rng = np.random.default_rng(0)
    observations = [
        Observation(rng.integers(0, 255, (2, 16, 16, 3), dtype=np.uint8), rng.uniform(-9, 9, 6)) for _ in range(4)
    ]
    answers = tiny_sampler(policy).sample([PredictRequest(o, 1, i, 0) for i, o in enumerate(observations)], 1.0)
    scores = score_rows(policy, observations, [a.bins for a in answers], 1.0).logp_RT.detach().numpy()
    assert max(np.abs(s[: len(a.bins)] - a.logp).max() for s, a in zip(scores, answers, strict=True)) <= 5.6e-2


# ------------------------------------------------------------------------------------------------------ what is refused
def test_unknown_projections_and_a_second_adapter_are_refused_by_name():
    for targets, message in ((["lm_head"], "no projection 'lm_head'"), ([], "no projection is named")):
        with pytest.raises(ConfigError, match=message) as refused:
            lora(targets=targets).trainable(tiny_policy())
        assert "q_proj" in str(refused.value)
    policy = tiny_policy()
    lora().trainable(policy)
    with pytest.raises(ConfigError, match="already"):
        lora().trainable(policy)


def test_without_peft_the_surface_names_the_remedy_and_nothing_else_needs_it(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.split(".")[0] == "peft":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.delitem(sys.modules, "peft", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MachineError, match=r"vla-rl\[lora\]', or choose another surface") as refused:
        lora()
    assert refused.value.exit_code == 2
    policy = tiny_policy()
    assert policy.digest() and pairs(policy.model) == []


# ---------------------------------------------------------------------------------------------------------- a whole run
@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("lora") / "run"
    trainer = toy_trainer(path, surface=lora(), keep_rows=True)
    finish(trainer)
    return path, trainer


def test_a_run_samples_with_its_adapter_and_its_rows_say_so(reference):
    path, trainer = reference
    rows = [json.loads(line) for line in (path / "train.jsonl").read_text().splitlines()]
    assert all(row["mean_ratio"] == 1.0 and row["rollout_gap"] <= 1e-5 for row in rows)
    assert len(rows) == STEPS and all(row["anchor_kl"] > 0 for row in rows)
    waves = [store.read_wave(store.wave_dir(path, step)) for step in (1, 2, 3)]
    sampled = [{row.policy_digest for _, some in wave for row in some} for wave in waves]
    base = tiny_policy().digest()
    assert sampled[0] == {base} == {(path / BASE_DIGEST).read_text().strip()}
    last = load_checkpoint(checkpoints(path / "checkpoints")[-1])
    assert len(set().union(*sampled)) == 3 and last.state["policy_digest"] == trainer.policy.digest()
    assert sampled[2] == {load_checkpoint(path / "checkpoints" / "step_0002").state["policy_digest"]}


def test_a_checkpoint_holds_the_adapter_and_its_moments_alone_and_names_its_base(reference):
    path, trainer = reference
    last = checkpoints(path / "checkpoints")[-1]
    loaded = load_checkpoint(last)
    assert sum(w.numel() for w in loaded.weights.values()) == 4 * ONE_RANK
    assert all(".lora_" in name for name in (*loaded.weights, *loaded.moments))
    assert loaded.state["base_digest"] == tiny_policy().digest()
    assert loaded.state["adapter"] == {"rank": 4, "alpha": 8.0, "targets": trainer.policy.lora.body()["targets"]}
    assert {p.suffix for p in last.iterdir()} == {".safetensors", ".json"}
    again = tiny_policy()
    put_weights(again, loaded.state["base_digest"], loaded)
    assert again.digest() == trainer.policy.digest()


@pytest.mark.parametrize("every", [1, 2])
def test_killed_at_event_after_event_it_ends_in_the_same_adapter_rows_and_counters(reference, tmp_path, every):
    path = tmp_path / "run"

    def run(die):
        finish(toy_trainer(path, surface=lora(), on_event=die, every=every, keep_rows=True))

    assert lived(run, range(5, 200, 9)) > 3
    assert evidence(path) == evidence(reference[0])


@pytest.mark.slow
@pytest.mark.parametrize(("event", "count"), [("EpisodeDone", 7), ("UpdateProgress", 3), ("fsync", 70)])
def test_kill_minus_9_then_resume_ends_in_the_same_adapter(reference, lives, tmp_path, event, count):  # noqa: F811
    assert lives(tmp_path / "run", event, count, 1, 0, STEPS, "lora") == -9
    finish(toy_trainer(tmp_path / "run", surface=lora()))
    assert evidence(tmp_path / "run") == evidence(reference[0])


def test_another_base_another_adapter_and_a_base_that_nothing_names_any_more_are_refused(reference, tmp_path):
    path = shutil.copytree(reference[0], tmp_path / "run")
    with pytest.raises(IntegrityError, match="another surface"):
        finish(toy_trainer(path, surface=lora(rank=2)))
    with pytest.raises(IntegrityError, match="alpha 8, not 9") as alpha:
        finish(toy_trainer(path, surface=lora(alpha=9.0)))
    assert "the surface that the run was started with" in str(alpha.value)
    trainer = toy_trainer(path, surface=lora())
    with torch.no_grad():
        trainer.policy.model.lm_head.weight[0, 0] += 1.0
    with pytest.raises(IntegrityError, match="started from"):
        finish(trainer)
    os.remove(path / BASE_DIGEST)
    trainer = toy_trainer(path, surface=lora())
    with torch.no_grad():
        trainer.policy.model.lm_head.weight[0, 0] += 1.0
    with pytest.raises(IntegrityError, match="do not give the weights") as refused:
        finish(trainer)
    assert refused.value.exit_code == 5


def test_weight_decay_and_a_kl_term_leave_the_base_bit_identical(tmp_path):
    trainer = toy_trainer(
        tmp_path / "run", surface=lora(), loss=LossConfig(kl_beta=0.1), steps=1,
        optim=OptimConfig(lr=3e-3, weight_decay=0.1, microbatch_rows=4),
    )  # fmt: skip
    base = frozen(trainer.policy)
    finish(trainer)
    assert changed(base, frozen(trainer.policy)) == set()


@pytest.mark.slow
def test_a_bandit_is_learned_by_the_adapter_alone(tmp_path):
    surface, optim = lora(rank=8, alpha=16.0), OptimConfig(lr=2e-2, microbatch_rows=32)
    before, after = success_rates(bandit_trainer(tmp_path / "run", surface=surface, optim=optim), "eval.jsonl")
    assert 0.4 < before < 0.65 and after > 0.85
