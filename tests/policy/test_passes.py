"""How teacher-forced passes are made: layers that are computed again in the backward pass give the same gradient, bit
for bit, for less that is kept; mixed ones nearly the same."""

from __future__ import annotations

import pytest
import torch
from test_policy import chunk_bins

from vla_rl.config.schema import OptimConfig
from vla_rl.errors import ConfigError
from vla_rl.policy.logprob import score_rows
from vla_rl.rl.preflight import set_passes

PLAIN = OptimConfig()
AGAIN, MIXED, BOTH = (
    OptimConfig(recompute=True), OptimConfig(precision="bfloat16"), OptimConfig(precision="bfloat16", recompute=True)
)  # fmt: skip


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


@pytest.fixture
def passes(boat_policy):
    """Gradients and kept numbers of the trainable boat policy under settings; plain ones afterwards."""
    boat_policy.model.requires_grad_(True)

    def found(optim, observations):
        set_passes(boat_policy, optim)
        return gradients_and_kept(boat_policy, observations)

    yield found
    set_passes(boat_policy, PLAIN)


@pytest.mark.parametrize(("once", "again"), [(PLAIN, AGAIN), (MIXED, BOTH)])
def test_recomputed_layers_give_the_same_gradient_and_keep_less(passes, observations, once, again):
    plain, kept = passes(once, observations[:3])
    repeated, kept_less = passes(again, observations[:3])
    assert plain.keys() == repeated.keys() and len(plain) > 50
    assert all(torch.equal(plain[name], repeated[name]) for name in plain)
    assert kept_less < 0.7 * kept


def test_a_mixed_pass_has_nearly_the_gradient_in_the_format_of_the_weights(passes, observations):
    plain, mixed = (passes(optim, observations[:3])[0] for optim in (PLAIN, MIXED))
    assert plain.keys() == mixed.keys() and all(grad.dtype == torch.float32 for grad in mixed.values())
    whole, other = (torch.cat([grad.flatten() for grad in found.values()]).double() for found in (plain, mixed))
    assert 1e-4 < float((whole - other).norm() / whole.norm()) < 0.1


def test_logits_of_a_mixed_pass_are_not_rounded_to_its_format(boat_policy, passes, observations):
    passes(MIXED, observations[:1])
    bins = torch.from_numpy(chunk_bins(boat_policy, observations[:1])[0])[None]
    with torch.no_grad():
        logits = boat_policy.logits(
            boat_policy.frames_tensor(observations[:1]), boat_policy.state_tensor(observations[:1]), bins
        )
    assert logits.dtype == torch.float32 and not torch.equal(logits, logits.bfloat16().float())


def test_a_network_that_cannot_is_refused(policy, monkeypatch):
    monkeypatch.setattr(type(policy.adapter), "can_recompute", False)
    with pytest.raises(ConfigError, match="compute their layers again"):
        set_passes(policy, AGAIN)
    assert policy.recompute is False
