"""The supervised token objective: cross-entropy of the demonstrated action bins, teacher-forced.

In: logits over the action block and padded label streams. Out: a scalar loss and its metrics. Only the columns of the
action block enter the softmax (text tokens can never be sampled), but the grammar mask does not: it would take the
gradient away from bins that merely do not fit any more, near the end of a chunk, and the plain block softmax is what is
known to work. Every token of a batch counts the same, so a chunk with more tokens, one that moves more, weighs more.
The network's own forward pass is `vla_rl.policy`'s.

Shapes: R rows, T tokens (padded), V bins of the action block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

IGNORED = -100


def labels(bins_RT: Tensor, length_R: Tensor) -> Tensor:
    """Label streams with everything past the end marked as ignored, int64 [R, T]."""
    past_end = torch.arange(bins_RT.shape[1], device=bins_RT.device) >= length_R[:, None]
    return bins_RT.masked_fill(past_end, IGNORED)


def token_cross_entropy(logits_RTV: Tensor, labels_RT: Tensor) -> Tensor:
    """Mean negative log-likelihood per label token, nats, in float32.

    Args:
        logits_RTV: logits of the action block before each token.
        labels_RT: bins, `IGNORED` past the end of a stream.
    """
    return cross_entropy(logits_RTV.float().flatten(0, 1), labels_RT.flatten(), ignore_index=IGNORED)


def token_accuracy(logits_RTV: Tensor, labels_RT: Tensor) -> Tensor:
    """Share of label tokens that are the most likely bin."""
    counted = labels_RT != IGNORED
    return ((logits_RTV.argmax(-1) == labels_RT) & counted).sum() / counted.sum()
