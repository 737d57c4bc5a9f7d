"""A policy's network in another number format, kept up to date: sampling reads half the bytes, training its own.

In: a policy whose weights move in place. Out: a policy that acts like it, as far as the format tells numbers apart.
What it samples has log-probabilities of its own; the trainer scores the rows again in its format
(`loss.old_logp=rescored`).
"""

from __future__ import annotations

import copy
from threading import Lock

import torch
from torch import nn

from vla_rl.policy.policy import VlaPolicy


class ShortCopy:
    """The copy, made at the first use.

    Args:
        policy: whose weights count.
        dtype: of the copy's weights; other tensors, like rotary frequencies, are as they are.
    """

    def __init__(self, policy: VlaPolicy, dtype: torch.dtype) -> None:
        self._policy, self.dtype, self._lock = policy, dtype, Lock()
        self._copy: VlaPolicy | None = None
        self._seen: list[int] = []

    def policy(self) -> VlaPolicy:
        """The copy with the weights of now; the same object until it is released. Several threads may ask.

        Weights that moved without a sign (torch's fused optimisers, `.data`) count after `release` only.
        """
        with self._lock, torch.no_grad():
            return self._current()

    def _current(self) -> VlaPolicy:
        seen = [weight._version for weight in self._policy.model.parameters()]
        if self._copy is None:
            weights = {
                id(w): nn.Parameter(w.detach().to(self.dtype, copy=True), requires_grad=False)
                for w in self._policy.model.parameters()
            }
            self._copy = copy.copy(self._policy)
            self._copy.model = copy.deepcopy(self._policy.model, weights)
        elif seen != self._seen:
            for mine, theirs in zip(self._copy.model.parameters(), self._policy.model.parameters(), strict=True):
                mine.copy_(theirs)
        self._seen = seen
        return self._copy

    def release(self) -> None:
        """Give its memory back until it is needed again."""
        self._copy = None
