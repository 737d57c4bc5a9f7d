"""Surfaces: which weights GRPO may move.

In: a policy. Out: its trainable (name, parameter) pairs, with everything else frozen. Of a token table only the rows
that a pass can reach get gradients and moments (`vla_rl.policy.rowgradients`), and of a surface that may move only some
rows of it those alone; the other rows stay bit-identical. One adds tensors of its own to the network (`Lora`). Left
out: the optimiser, and what an adapter computes (`vla_rl.policy.lora`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vla_rl.policy import rowgradients
from vla_rl.policy.lora import LoraSettings, attach, pairs, require_peft

NamedParameters = list[tuple[str, nn.Parameter]]


class Surface(Protocol):
    """What the trainer needs of a surface.

    Attributes:
        allows_decay: False if weight decay would move rows that the surface promises to leave alone.
    """

    allows_decay: bool

    def trainable(self, policy: Any) -> NamedParameters:
        """What may move; everything else is frozen."""
        ...

    def moving_rows(self, policy: Any) -> slice | None:
        """Which rows of those tensors may move, `start` to `stop`; None: all. The trainer holds the others to it."""
        ...


class _AllRows:
    def moving_rows(self, policy: Any) -> slice | None:
        return None


class Full(_AllRows):
    """Every weight, the vision tower included."""

    allows_decay = True

    def trainable(self, policy: Any) -> NamedParameters:
        return _with_tables(policy, _only(policy.model, lambda name: True))


class TextStack(_AllRows):
    """The text transformer with its embedding and head; the pictures' tower and projector stay as they are."""

    allows_decay = True

    def trainable(self, policy: Any) -> NamedParameters:
        chosen = _only(policy.model, lambda name: name.startswith(policy.adapter.text_parameters))
        return _with_tables(policy, chosen)


class PatchOnly:
    """The action-block rows of embedding and head; every other row and weight stays bit-identical."""

    allows_decay = False

    def trainable(self, policy: Any) -> NamedParameters:
        chosen = _only(policy.model, lambda name: name in policy.adapter.token_tables)
        _with_tables(policy, chosen, self.moving_rows(policy))
        for _, parameter in chosen:
            if parameter.requires_grad:
                _mask_rows(parameter, self.moving_rows(policy))
        return chosen

    def moving_rows(self, policy: Any) -> slice:
        first = policy.prompt.ids.action_block
        return slice(first, first + policy.vocabulary)


class Lora(_AllRows):
    """A low-rank pair beside projections of the text stack; every weight of the base stays bit-identical.

    Weight decay is allowed: it pulls the pairs towards zero, which is the base.

    Args:
        rank: of every pair.
        alpha: a pair's product counts alpha / rank times.
        targets: last names of the projections.
        run_seed: decides the first A, as B is zero.

    Raises:
        MachineError: peft is not installed.
    """

    allows_decay = True

    def __init__(self, *, rank: int, alpha: float, targets: Sequence[str], run_seed: int) -> None:
        require_peft(", or choose another surface")
        self._settings, self._seed = LoraSettings(rank, alpha, tuple(targets)), run_seed

    def trainable(self, policy: Any) -> NamedParameters:
        attach(policy, self._settings, seed=self._seed)
        added = {name for pair in pairs(policy.model) for name, _ in pair.named()}
        return _only(policy.model, lambda name: name in added)


def _only(model: nn.Module, wanted: Any) -> NamedParameters:
    """Freeze all but the wanted parameters, which are returned sorted by name."""
    chosen: NamedParameters = []
    rowgradients.detach(model)
    for name, parameter in sorted(model.named_parameters()):
        parameter.requires_grad_(wanted(name))
        if wanted(name):
            chosen.append((name, parameter))
    if not chosen:
        raise ValueError("the surface selects no parameter of this policy")
    return chosen


def _with_tables(policy: Any, chosen: NamedParameters, moving: slice | None = None) -> NamedParameters:
    """The same, tables among them with gradients of the rows alone that can have one."""
    rowgradients.attach(policy, [name for name, _ in chosen], moving)
    return chosen


def _mask_rows(parameter: nn.Parameter, rows: slice) -> None:
    """Zero the gradient outside the rows as it arrives, so that norm and optimiser never see it."""
    keep = torch.zeros(parameter.shape[0], 1, dtype=torch.bool, device=parameter.device)
    keep[rows] = True

    def masked(gradient: Tensor) -> Tensor:
        return torch.where(keep, gradient, torch.zeros((), dtype=gradient.dtype, device=gradient.device))

    parameter.register_hook(masked)
