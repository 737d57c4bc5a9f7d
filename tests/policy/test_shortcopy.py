"""Sampling in another number format than the policy's: that of a policy loaded in it, with the weights of now."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from policy_support import TASK

from vla_rl.errors import ConfigError
from vla_rl.policy.policy import load_policy
from vla_rl.policy.sampler import GrammarSampler, PredictRequest


def told(predictions):
    return [(p.bins.tolist(), p.logp.tolist()) for p in predictions]


def sampler_of(policy, **settings):
    return GrammarSampler(batch_rows=4, policy=policy, run_seed=3, **settings)


@pytest.fixture
def moved(policy):
    """A weight that is another one while the test runs."""
    weight = policy.model.model.language_model.norm.weight
    before = weight.detach().clone()
    yield weight
    with torch.no_grad():
        weight.copy_(before)


def test_a_short_copy_samples_what_a_policy_in_that_format_samples(policy, observations, tmp_path, moved):
    requests = [PredictRequest(o, 300 + i, 0, 0) for i, o in enumerate(observations[:6])]
    short = sampler_of(policy, dtype="bfloat16")
    for factor in (1.0, 0.5):
        with torch.no_grad():
            moved *= factor
        policy.save(tmp_path / str(factor))
        loaded = load_policy(
            checkpoint=str(tmp_path / str(factor)), device="cpu", serve_head="ar", task=TASK, dtype="bfloat16"
        )
        assert told(short.sample(requests, 0.8)) == told(sampler_of(loaded).sample(requests, 0.8))
        assert policy.model.lm_head.weight.dtype == torch.float32


def test_what_is_given_back_between_waves_is_there_again(policy, observations):
    requests = [PredictRequest(o, 300 + i, 0, 0) for i, o in enumerate(observations[:6])]
    for sampler in (sampler_of(policy), sampler_of(policy, dtype="bfloat16")):
        before = told(sampler.sample(requests, 0.8))
        sampler.release()
        assert told(sampler.sample(requests, 0.8)) == before


def test_a_large_cache_is_given_back_and_a_small_one_kept(policy, observations, monkeypatch):
    sampler = sampler_of(policy)
    sampler.sample([PredictRequest(observations[0], 300, 0, 0)], 0.0)
    kept = sampler._decoder
    sampler.release()
    assert sampler._decoder is kept and kept.nbytes == 2 * kept._cache.keys.nbytes > 0
    monkeypatch.setattr("vla_rl.policy.sampler.HELD_BYTES", 0)
    sampler.release()
    assert sampler._decoder is None


def test_what_a_fused_optimiser_moved_counts_after_a_release(policy, observations, moved):
    """Such a step leaves no sign that a copy could see."""
    requests = [PredictRequest(o, 300 + i, 0, 0) for i, o in enumerate(observations[:4])]
    sampler = sampler_of(policy, dtype="bfloat16")
    before = told(sampler.sample(requests, 0.8))
    optimizer, flag = torch.optim.AdamW([moved], lr=0.2, fused=True), moved.requires_grad
    moved.grad = torch.ones_like(moved)
    optimizer.step()
    moved.grad = None
    moved.requires_grad_(flag)
    sampler.release()
    after = told(sampler.sample(requests, 0.8))
    assert after != before and after == told(sampler_of(policy, dtype="bfloat16").sample(requests, 0.8))


def test_the_policys_own_format_takes_no_copy(policy):
    assert sampler_of(policy, dtype="float32")._short is None


def test_the_difference_is_small_and_there(policy, observations):
    """Greedy in both formats: log-probabilities of the same first token."""
    requests = [PredictRequest(o, 300 + i, 0, 0) for i, o in enumerate(observations)]
    ours, short = sampler_of(policy).sample(requests, 0.0), sampler_of(policy, dtype="bfloat16").sample(requests, 0.0)
    gaps = [abs(a.logp[0] - b.logp[0]) for a, b in zip(ours, short, strict=True) if a.bins[0] == b.bins[0]]
    assert gaps and 0 < np.max(gaps) < 0.1


def test_another_format_is_refused(policy):
    with pytest.raises(ConfigError, match="no number format"):
        sampler_of(policy, dtype="float8")
