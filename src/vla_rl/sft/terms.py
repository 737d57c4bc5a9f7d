"""What supervised training minimises: the token term, the flow term, or both.

In: a policy and a batch. Out: the terms and their sum. ``ar`` is the cross-entropy of the demonstrated tokens, ``flow``
the mean squared error of the expert's velocity (rows count the same), ``joint`` flow + ce_weight * cross-entropy out of
one pass of the trunk. Each term is the number that its own objective computes, bit for bit on the CPU, because no
prompt position looks at an action token and the expert is given prompt positions alone.

Insulated, the flow term sends no gradient into the trunk (knowledge insulation: Driess et al., 2025, arXiv:2505.23705).
The trunk's pass may be in mixed precision; the expert and both losses are float32.

Shapes: R rows, T tokens, V bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vla_rl.policy.expert import KeyValues
from vla_rl.policy.flow import (
    Draws,
    insulated,
    logits_and_keys_values,
    own_expert,
    prompt_keys_values,
    seen_positions,
    velocity_loss,
)
from vla_rl.policy.policy import VlaPolicy
from vla_rl.sft.batches import Batch
from vla_rl.sft.objective import token_cross_entropy
from vla_rl.sft.transitions import Objective


@dataclass(frozen=True)
class Terms:
    """A batch's loss and what it is made of; what the objective does not have is None.

    Attributes:
        total: what is minimised; `tokens` in nats a token, `flow` in squared normalised units.
        logits_RTV: of the token term.
    """

    total: Tensor
    tokens: Tensor | None = None
    flow: Tensor | None = None
    logits_RTV: Tensor | None = None


@dataclass(frozen=True)
class Passes:
    """What an update asks of the two networks; each may be compiled, and says the same up to rounding.

    Attributes:
        logits: of the token term alone.
        both: logits, and what the expert sees, out of one pass of the trunk.
        prompt: what the expert sees, alone.
        flow: the flow term, given what the expert sees, chunks and draws.
    """

    logits: Callable[..., Tensor]
    both: Callable[..., tuple[Tensor, KeyValues]]
    prompt: Callable[..., KeyValues]
    flow: Callable[..., Tensor]

    @classmethod
    def of(cls, policy: VlaPolicy, *, compiled: bool = False) -> Passes:
        """Of a policy; without an expert only `logits` can be asked."""

        def made(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function) if compiled else function

        seen_S = None if policy.expert is None else seen_positions(policy)  # other families have no place for one
        return cls(
            logits=made(policy.logits),
            both=made(lambda *inputs: logits_and_keys_values(policy, *inputs, seen_S=seen_S)),
            prompt=made(lambda *inputs: prompt_keys_values(policy, *inputs, seen_S=seen_S)),
            flow=made(partial(_flow_term, policy)),
        )


def _flow_term(policy: VlaPolicy, keys_values: KeyValues, chunks_RHJ: Tensor, draws: Draws) -> Tensor:
    expert = own_expert(policy)
    return velocity_loss(expert, expert.context(keys_values), chunks_RHJ, draws).mean()


def loss_terms(
    objective: Objective, policy: VlaPolicy, batch: Batch, *, mixed: bool = False, passes: Passes | None = None
) -> Terms:
    """The terms of one batch, differentiable.

    Args:
        mixed: the trunk's pass in bfloat16.
        passes: of the policy, e.g. compiled ones.

    Raises:
        ConfigError: there is a flow term and the policy's expert is not loaded.
    """
    if objective.has_flow:
        own_expert(policy)
    passes = passes or Passes.of(policy)
    inputs = (batch.frames, batch.state_bins_RJ)
    logits_RTV, keys_values = None, None
    with torch.autocast(batch.frames.device.type, torch.bfloat16, enabled=mixed):
        if not objective.has_flow:
            logits_RTV = passes.logits(*inputs, batch.bins_RT)
        elif objective.has_tokens:
            logits_RTV, keys_values = passes.both(*inputs, batch.bins_RT)
        else:
            with torch.set_grad_enabled(not objective.insulate):
                keys_values = passes.prompt(*inputs)
    tokens = None if logits_RTV is None else token_cross_entropy(logits_RTV, batch.labels_RT)
    flow = None
    if keys_values is not None:
        assert batch.draws is not None, "the batches were told of no flow"
        flow = passes.flow(insulated(keys_values) if objective.insulate else keys_values, batch.chunks_RHJ, batch.draws)
    if flow is None or tokens is None:
        total = tokens if flow is None else flow
        assert total is not None
    else:
        total = flow + objective.ce_weight * tokens
    return Terms(total, tokens, flow, logits_RTV)
