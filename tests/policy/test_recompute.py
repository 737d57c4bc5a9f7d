"""Layers that are computed again in the backward pass: the same gradient, bit for bit, for less that is kept."""

from __future__ import annotations

import pytest
import torch
from test_policy import chunk_bins

from vla_rl.errors import ConfigError
from vla_rl.policy.logprob import score_rows
from vla_rl.rl.preflight import set_recompute


def gradients_and_kept(policy, observations) -> tuple[dict[str, torch.Tensor], int]:
    """Gradients of summed log-probabilities, and how many numbers the graph keeps for them."""
    kept: dict[int, int] = {}

    def save(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    policy.model.zero_grad(set_to_none=True)
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = score_rows(policy, observations, chunk_bins(policy, observations), 1.0).logp_RT.sum()
    size = sum(kept.values())
    loss.backward()
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad(set_to_none=True)
    return found, size


def test_recomputed_layers_give_the_same_gradient_and_keep_less(boat_policy, observations):
    boat_policy.model.requires_grad_(True)
    plain, kept = gradients_and_kept(boat_policy, observations[:3])
    try:
        set_recompute(boat_policy, True)
        again, kept_less = gradients_and_kept(boat_policy, observations[:3])
    finally:
        set_recompute(boat_policy, False)
    assert plain.keys() == again.keys() and len(plain) > 50
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    assert kept_less < 0.7 * kept


def test_a_network_that_cannot_is_refused(policy, monkeypatch):
    monkeypatch.setattr(type(policy.adapter), "can_recompute", False)
    with pytest.raises(ConfigError, match="compute their layers again"):
        set_recompute(policy, True)
    assert policy.recompute is False
