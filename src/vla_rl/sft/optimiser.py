"""The optimiser of supervised training: AdamW, linear warm-up, cosine decay.

In: parameters and constants. Out: an optimiser, and the learning rate of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

FINAL_LR_SHARE = 0.03


def adamw(
    parameters: Iterable[nn.Parameter], lr: float, betas: tuple[float, float], decay: float, *, fused: bool
) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    parameters = list(parameters)
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused)


def learning_rate(step: int, steps: int, peak: float, warmup_steps: int) -> float:
    """Rate of update `step` (from 0): cosine from `peak` to 3 % of it over `steps`, times a linear warm-up."""
    decay = FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * (1 + math.cos(math.pi * step / steps)) / 2
    return peak * decay * min(1.0, (step + 1) / max(1, warmup_steps))
