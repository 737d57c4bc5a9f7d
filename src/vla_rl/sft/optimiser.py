"""The optimiser of supervised training: AdamW, linear warm-up, cosine decay.

In: parameters and constants. Out: an optimiser, and the learning rate of a step. Trunk and action expert may have peak
rates of their own; the shape of the schedule is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

FINAL_LR_SHARE = 0.03
PEAK = "peak"  # key of a parameter group: its highest rate


def adamw(
    parts: Sequence[tuple[Sequence[nn.Parameter], float]], betas: tuple[float, float], decay: float, *, fused: bool
) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only.

    Args:
        parts: parameters with their peak rate.
    """
    groups = []
    for parameters, peak in parts:
        matrices, vectors = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
        groups.append({"params": matrices, "weight_decay": decay, PEAK: peak})
        groups.append({"params": vectors, "weight_decay": 0.0, PEAK: peak})
    return torch.optim.AdamW(groups, lr=parts[0][1], betas=betas, fused=fused)


def set_rates(optimizer: torch.optim.Optimizer, step: int, steps: int, warmup_steps: int) -> None:
    """Give every group its rate of update `step` (from 0)."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, steps, group[PEAK], warmup_steps)


def learning_rate(step: int, steps: int, peak: float, warmup_steps: int) -> float:
    """Rate of update `step` (from 0): cosine from `peak` to 3 % of it over `steps`, times a linear warm-up."""
    decay = FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * (1 + math.cos(math.pi * step / steps)) / 2
    return peak * decay * min(1.0, (step + 1) / max(1, warmup_steps))
