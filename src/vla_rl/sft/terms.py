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

import torch
from torch import Tensor

from vla_rl.policy.flow import (
    insulated,
    logits_and_keys_values,
    own_expert,
    prompt_keys_values,
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


def loss_terms(
    objective: Objective,
    policy: VlaPolicy,
    batch: Batch,
    *,
    mixed: bool = False,
    logits: Callable[..., Tensor] | None = None,
) -> Terms:
    """The terms of one batch, differentiable.

    Args:
        mixed: the trunk's pass in bfloat16.
        logits: in place of `policy.logits`, e.g. a compiled one.

    Raises:
        ConfigError: there is a flow term and the policy's expert is not loaded.
    """
    inputs = (batch.frames, batch.state_bins_RJ)
    logits_RTV, keys_values = None, None
    with torch.autocast(batch.frames.device.type, torch.bfloat16, enabled=mixed):
        if not objective.has_flow:
            logits_RTV = (logits or policy.logits)(*inputs, batch.bins_RT)
        elif objective.has_tokens:
            logits_RTV, keys_values = logits_and_keys_values(policy, *inputs, batch.bins_RT)
        else:
            with torch.set_grad_enabled(not objective.insulate):
                keys_values = prompt_keys_values(policy, *inputs)
    tokens = None if logits_RTV is None else token_cross_entropy(logits_RTV, batch.labels_RT)
    flow = None
    if keys_values is not None:
        assert batch.draws is not None, "the batches were told of no flow"
        expert = own_expert(policy)
        context = expert.context(insulated(keys_values) if objective.insulate else keys_values)
        flow = velocity_loss(expert, context, batch.chunks_RHJ, batch.draws).mean()
    if flow is None or tokens is None:
        total = tokens if flow is None else flow
        assert total is not None
    else:
        total = flow + objective.ce_weight * tokens
    return Terms(total, tokens, flow, logits_RTV)
