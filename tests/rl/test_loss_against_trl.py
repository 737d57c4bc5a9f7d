"""Loss and gradient equal those of TRL's GRPOTrainer on the same logits. Needs the package `trl`, and skips without it.

TRL's `_compute_loss` is called as it is, on a trainer that has only the attributes which it reads, and that scores
tokens from given logits. Here a chunk is an episode, as TRL's completions are.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from vla_rl.rl.loss import LossInputs, Objective, episode_weights, grpo_loss, normaliser

trl = pytest.importorskip("trl", reason="the oracle of the loss is TRL; pip install trl")
ROWS, TOKENS, VOCABULARY, TEMPERATURE = 5, 6, 11, 0.7
LENGTHS = [6, 3, 1, 5, 4]
ADVANTAGE = torch.tensor([1.3, -0.7, 2.0, -1.6, 0.4], dtype=torch.float64)
LOSS_TYPES = {"token": "dapo", "episode": "grpo", "constant": "dr_grpo"}
CONSTANT_TOKENS = 9


def scored(logits_RTV, ids_RT):
    """Log-probabilities of the ids and entropies, at the temperature."""
    logp_RTV = (logits_RTV / TEMPERATURE).log_softmax(-1)
    return logp_RTV.gather(-1, ids_RT[..., None]).squeeze(-1), -(logp_RTV.exp() * logp_RTV).sum(-1)


def case():
    """Logits, sampled ids, mask, and old and anchor log-probabilities far enough away for every clip to bind."""
    generator = torch.Generator().manual_seed(4)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits_RTV = normal(ROWS, TOKENS, VOCABULARY)
    ids_RT = torch.randint(VOCABULARY, (ROWS, TOKENS), generator=generator)
    mask_RT = torch.arange(TOKENS) < torch.tensor(LENGTHS)[:, None]
    live_RT, _ = scored(logits_RTV, ids_RT)
    return logits_RTV, ids_RT, mask_RT, live_RT + 0.8 * normal(ROWS, TOKENS), live_RT + 0.3 * normal(ROWS, TOKENS)


def theirs(weighting, objective):
    logits_RTV, ids_RT, mask_RT, old_RT, anchor_RT = case()
    leaf = logits_RTV.clone().requires_grad_()

    trainer = object.__new__(trl.GRPOTrainer)
    trainer.__dict__.update(
        model=SimpleNamespace(training=True), loss_type=LOSS_TYPES[weighting],
        importance_sampling_level=objective.ratio, beta=objective.kl_beta, epsilon_low=1 - objective.clip_low,
        epsilon_high=objective.clip_high - 1, max_completion_length=CONSTANT_TOKENS, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, use_vllm=False, aux_loss_enabled=False, current_gradient_accumulation_steps=1,
        entropy_coef=objective.entropy_bonus, _entropy_bonus_enabled=objective.entropy_bonus > 0,
        use_adaptive_entropy=False, _get_per_token_logps_and_entropies=lambda *_, **__: (*scored(leaf, ids_RT), None),
        _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(delta=objective.dual_clip, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=SimpleNamespace(
            num_processes=1, sync_gradients=True, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
    )  # fmt: skip
    loss = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": torch.zeros(ROWS, 2, dtype=torch.long),
            "prompt_mask": torch.ones(ROWS, 2, dtype=torch.long),
            "completion_ids": ids_RT,
            "completion_mask": mask_RT.long(),
            "advantages": ADVANTAGE,
            "old_per_token_logps": old_RT,
            "ref_per_token_logps": anchor_RT,
            "num_items_in_batch": mask_RT.sum(),
        },
    )
    loss.backward()
    return loss.item(), leaf.grad


def ours(weighting, objective):
    logits_RTV, ids_RT, mask_RT, old_RT, anchor_RT = case()
    leaf = logits_RTV.clone().requires_grad_()
    logp_RT, entropy_RT = scored(leaf, ids_RT)
    outputs = grpo_loss(
        LossInputs(
            new_logp_RT=logp_RT,
            old_logp_RT=old_RT,
            mask_RT=mask_RT,
            advantage_R=ADVANTAGE,
            weight_R=torch.tensor(episode_weights(LENGTHS, weighting), dtype=torch.float64),
            normaliser=normaliser(LENGTHS, weighting, CONSTANT_TOKENS),
            anchor_logp_RT=anchor_RT,
            entropy_RT=entropy_RT,
        ),
        objective,
    )
    outputs.loss.backward()
    assert 0 < outputs.stats.outside < outputs.stats.tokens  # the clip binds in some places
    return outputs.loss.item(), leaf.grad


@pytest.mark.parametrize("weighting", LOSS_TYPES)
@pytest.mark.parametrize(
    "terms", [{}, {"dual_clip": 1.6}, {"kl_beta": 0.2}, {"ratio": "sequence"}, {"ratio": "sequence", "kl_beta": 0.2}]
)
def test_loss_and_gradient_are_trls(weighting, terms):
    agree(weighting, Objective(0.8, 1.28, **terms))


def test_the_entropy_bonus_is_trls_where_both_average_over_tokens():
    agree("token", Objective(0.8, 1.28, entropy_bonus=0.05, kl_beta=0.1))


def agree(weighting, objective):
    (loss, gradient), (their_loss, their_gradient) = ours(weighting, objective), theirs(weighting, objective)
    assert loss == pytest.approx(their_loss, abs=1e-6)
    assert gradient.abs().max() > 1e-3 and (gradient - their_gradient).abs().max() < 1e-6
