"""Log-probabilities and entropies of stored action streams under the current weights.

In: observations and their bin streams. Out: differentiable float32 tensors under the same grammar mask and
temperature as the sampler's. Loss and ratios are made of them in `vla_rl.rl`.

Shapes: R rows, T tokens of the longest stream, V bins of the action block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.grammar import legal_at
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.prompt import Observation

LEAST_TEMPERATURE = 1e-6  # below, a softmax is greedy anyway; from about 1e-37 on logits / T overflows float32


@dataclass(frozen=True)
class Scores:
    """Likelihoods of chosen tokens.

    Attributes:
        logp_RT: float32, log-probability of the chosen bin; 0 in the padding.
        entropy_RT: float32, entropy in nats of the masked distribution; 0 in the padding.
        mask_RT: bool, True at real tokens.
    """

    logp_RT: Tensor
    entropy_RT: Tensor
    mask_RT: Tensor


def pad_streams(streams: Sequence[np.ndarray], device: str) -> tuple[Tensor, Tensor]:
    """Streams of different length as int64 [R, T] (padded with bin 0) and the bool [R, T] of real tokens."""
    longest = max(len(s) for s in streams)
    bins = np.zeros((len(streams), longest), dtype=np.int64)
    for row, stream in zip(bins, streams, strict=True):
        row[: len(stream)] = stream
    lengths = torch.tensor([len(s) for s in streams], device=device)
    return torch.from_numpy(bins).to(device), torch.arange(longest, device=device) < lengths[:, None]


def check_temperature(temperature: float, *, remedy: str) -> None:
    """Refuse a temperature under which logits would overflow or turn around.

    Raises:
        ConfigError: it is below `LEAST_TEMPERATURE`, or no number.
    """
    if not temperature >= LEAST_TEMPERATURE:
        raise ConfigError(f"{temperature} is no temperature to sample at", where="temperature", remedy=remedy)


def masked_log_softmax(logits: Tensor, legal: Tensor, temperature: float) -> Tensor:
    """Float32 log-softmax over legal bins of ``logits / temperature``; -inf at illegal ones. [..., V]"""
    return (logits.float() / temperature).masked_fill(~legal, float("-inf")).log_softmax(-1)


def scores_of(logits_RTV: Tensor, bins_RT: Tensor, mask_RT: Tensor, legal_RTV: Tensor, temperature: float) -> Scores:
    """Scores from teacher-forced logits; padding must be marked in `mask_RT` and has no gradient."""
    legal = legal_RTV | ~mask_RT[..., None]  # padding has no legal bin, and an empty softmax is nan
    logp_RTV = masked_log_softmax(logits_RTV, legal, temperature)
    chosen = logp_RTV.gather(-1, bins_RT[..., None]).squeeze(-1)
    entropy = -(logp_RTV.exp() * logp_RTV.masked_fill(~legal, 0.0)).sum(-1)
    zero = chosen.new_zeros(())
    return Scores(torch.where(mask_RT, chosen, zero), torch.where(mask_RT, entropy, zero), mask_RT)


def score_rows(
    policy: VlaPolicy, observations: Sequence[Observation], bins: Sequence[np.ndarray], temperature: float
) -> Scores:
    """Teacher-forced scores of complete streams; gradients flow to the policy's weights.

    Args:
        observations: R observations.
        bins: R streams, integer [token], each complete under the policy's grammar.
        temperature: the sampling temperature; at least `LEAST_TEMPERATURE`.

    Raises:
        ConfigError: the temperature is below that, counts differ, or a stream is not complete.
    """
    check_temperature(temperature, remedy="score greedy rows at 1.0")
    if not 0 < len(observations) == len(bins):
        raise ConfigError(f"{len(observations)} observations but {len(bins)} streams", where="score_rows")
    padded, mask = pad_streams(bins, policy.device)
    totals = (policy.lengths_V[padded] * mask).sum(1)
    if bool((totals != policy.grammar.total).any()):
        raise ConfigError(
            "a stream is not complete", where="score_rows", remedy="rows must come from this policy's sampler"
        )
    logits = policy.logits(policy.frames_tensor(observations), policy.state_tensor(observations), padded)
    return scores_of(logits, padded, mask, legal_at(policy.lengths_V, padded, policy.grammar.total), temperature)
