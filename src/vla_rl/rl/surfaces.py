"""Surfaces: which weights GRPO may move.

In: a policy. Out: its trainable (name, parameter) pairs, with everything else frozen. A surface that may move only some
rows of a table masks their gradients; the other rows then stay bit-identical. Left out: adapters, optimiser.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

NamedParameters = list[tuple[str, nn.Parameter]]


class Surface(Protocol):
    """What the trainer needs of a surface.

    Attributes:
        allows_decay: False if weight decay would move rows that the surface promises to leave alone.
    """

    allows_decay: bool

    def trainable(self, policy: Any) -> NamedParameters: ...


class Full:
    """Every weight, the vision tower included."""

    allows_decay = True

    def trainable(self, policy: Any) -> NamedParameters:
        return _only(policy.model, lambda name: True)


class TextStack:
    """The text transformer with its embedding and head; the pictures' tower and projector stay as they are."""

    allows_decay = True

    def trainable(self, policy: Any) -> NamedParameters:
        return _only(policy.model, lambda name: name.startswith(policy.adapter.text_parameters))


class PatchOnly:
    """The action-block rows of embedding and head; every other row and weight stays bit-identical."""

    allows_decay = False

    def trainable(self, policy: Any) -> NamedParameters:
        chosen = _only(policy.model, lambda name: name in policy.adapter.token_tables)
        first = policy.prompt.ids.action_block
        for _, parameter in chosen:
            _mask_rows(parameter, first, first + policy.vocabulary)
        return chosen


def _only(model: nn.Module, wanted: Any) -> NamedParameters:
    """Freeze all but the wanted parameters, which are returned sorted by name."""
    chosen: NamedParameters = []
    for name, parameter in sorted(model.named_parameters()):
        parameter.requires_grad_(wanted(name))
        if wanted(name):
            chosen.append((name, parameter))
    if not chosen:
        raise ValueError("the surface selects no parameter of this policy")
    return chosen


def _mask_rows(parameter: nn.Parameter, first: int, end: int) -> None:
    """Zero the gradient outside rows first..end-1 as it arrives, so that norm and optimiser never see it."""
    keep = torch.zeros(parameter.shape[0], 1, dtype=torch.bool, device=parameter.device)
    keep[first:end] = True

    def masked(gradient: Tensor) -> Tensor:
        return torch.where(keep, gradient, torch.zeros((), dtype=gradient.dtype, device=gradient.device))

    parameter.register_hook(masked)
