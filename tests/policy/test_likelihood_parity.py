"""One likelihood everywhere: what the sampler stored, the trainer's pass and the network's own forward.

Bounds: 1e-5 for the same decomposition (prompt and stream in this package's forward against its cached steps), 1e-4
against any other one, 5.6e-2 in bfloat16.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from vla_rl.policy.cached_forward import CachedForward
from vla_rl.policy.logprob import Scores, masked_log_softmax, pad_streams, score_rows
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import GrammarSampler, Prediction, PredictRequest


def predictions(policy: VlaPolicy, observations: list[Observation], temperature: float, **kinds) -> list[Prediction]:
    sampler = GrammarSampler(batch_rows=8, policy=policy, run_seed=7, **kinds)
    return sampler.sample(
        [PredictRequest(o, seed=300, draw=i, replan=0) for i, o in enumerate(observations)], temperature
    )


def gap(rows: torch.Tensor | Scores, sampled: list[Prediction]) -> float:
    """Largest difference to the stored log-probabilities."""
    logp = rows.logp_RT if isinstance(rows, Scores) else rows
    pairs = zip(logp.detach().numpy(), sampled, strict=True)
    return max(float(np.abs(row[: len(p.bins)] - p.logp).max()) for row, p in pairs)


def chosen(logits: torch.Tensor, policy: VlaPolicy, sampled: list[Prediction], temperature: float) -> torch.Tensor:
    """Masked log-probabilities [R, T] of the stored bins from block logits [R, T, V]."""
    bins, _ = pad_streams([p.bins for p in sampled], "cpu")
    rows = []
    for row, stream, p in zip(logits, bins, sampled, strict=True):
        legal = torch.ones(len(stream), policy.vocabulary, dtype=torch.bool)
        legal[: len(p.bins)] = torch.from_numpy(policy.grammar.masks(p.bins))
        rows.append(masked_log_softmax(row, legal, temperature).gather(1, stream[:, None]).squeeze(1))
    return torch.stack(rows)


def test_temperature_divides_the_logits_before_the_softmax():
    # log_softmax([2, 0] / 1.6) at the first entry is -log(1 + exp(-1.25)); an illegal third entry changes nothing.
    logits, legal = torch.tensor([[2.0, 0.0, 9.0]]), torch.tensor([[True, True, False]])
    logp = masked_log_softmax(logits, legal, 1.6)[0]
    assert logp[0].item() == pytest.approx(-np.log1p(np.exp(-1.25)), abs=1e-7) and logp[2] == -torch.inf
    assert masked_log_softmax(logits.bfloat16(), legal, 1.6).dtype == torch.float32


@pytest.mark.parametrize("keys", ["named", "documented", "device"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.6])
def test_trainer_and_sampler_agree_to_1e_5(policy, observations, temperature: float, keys: str):
    sampled = predictions(policy, observations, temperature, keys=keys)
    assert gap(score_rows(policy, observations, [p.bins for p in sampled], temperature or 1.0), sampled) <= 1e-5


@torch.no_grad()
def test_another_decomposition_agrees_to_1e_4(policy, observations):
    sampled, temperature = predictions(policy, observations, 0.7), 0.7
    bins, _ = pad_streams([p.bins for p in sampled], "cpu")
    streams = [p.bins for p in sampled]
    # One row at a time, in two other orders of summation (no padding to a common length).
    alone = torch.zeros(bins.shape)
    for i, stream in enumerate(streams):
        alone[i, : len(stream)] = score_rows(policy, observations[i : i + 1], [stream], temperature).logp_RT[0]
    # transformers' own forward over prompt and stream at once, with explicit softmax attention.
    eager = deepcopy(policy.model)
    eager.set_attn_implementation("eager")
    batch = policy.prompt_batch(observations)
    ids = torch.cat([batch["input_ids"], bins[:, :-1] + policy.prompt.ids.action_block], dim=1)
    batch |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["mm_token_type_ids"] = torch.nn.functional.pad(batch["mm_token_type_ids"], (0, bins.shape[1] - 1))
    block = slice(policy.prompt.ids.action_block, policy.prompt.ids.action_block + policy.vocabulary)
    whole = eager(**batch, logits_to_keep=bins.shape[1]).logits[..., block]
    # Its modules step by step with a growing cache.
    stepper = CachedForward(policy, len(observations))
    steps = [stepper.prefill(policy.frames_tensor(observations), policy.state_tensor(observations))]
    steps += [stepper.step(bins[:, t]) for t in range(bins.shape[1] - 1)]
    for other in (alone, *(chosen(logits, policy, sampled, temperature) for logits in (whole, torch.stack(steps, 1)))):
        assert gap(other, sampled) <= 1e-4


@torch.no_grad()
def test_in_bfloat16_trainer_and_sampler_agree_to_5_6e_2(policy, observations):
    half = VlaPolicy(
        model=deepcopy(policy.model).to(torch.bfloat16), tokenizer=policy.tokenizer, codec=policy.codec,
        stats=policy.stats, task=policy.task, device="cpu",
    )  # fmt: skip
    sampled = predictions(half, observations, 0.7)
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert gap(score_rows(half, observations, [p.bins for p in sampled], 0.7), sampled) <= 5.6e-2
    # The bound would not hold by itself: float32 weights differ by more than rounding.
    assert gap(score_rows(policy, observations, [p.bins for p in sampled], 0.7), sampled) > 1e-3
