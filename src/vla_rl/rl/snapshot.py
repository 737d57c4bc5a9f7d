"""Weights of the moment, with or without the optimiser's moments, to go back to.

Copies lie in the host's memory, so that an accelerator holds one network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vla_rl.policy.rowgradients import leaf_of
from vla_rl.rl.surfaces import NamedParameters


class Weights:
    """A copy of a surface's weights.

    Args:
        parameters: what is copied now, and what `put_back` writes to.
    """

    def __init__(self, parameters: NamedParameters) -> None:
        self._parameters = parameters
        self.values = [_copied(parameter) for _, parameter in parameters]

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore them bit for bit."""
        for (_, parameter), value in zip(self._parameters, self.values, strict=True):
            parameter.copy_(value)


class Snapshot:
    """A copy of a surface's weights and of its optimiser's state.

    Args:
        parameters, optimizer: what is copied now, and what `put_back` writes to.
    """

    def __init__(self, parameters: NamedParameters, optimizer: torch.optim.Optimizer) -> None:
        self._leaves, self._optimizer = [leaf_of(parameter) for _, parameter in parameters], optimizer
        self._weights = Weights(parameters)
        self._moments: list[dict[str, Tensor]] = [
            {field: _copied(value) for field, value in optimizer.state.get(leaf, {}).items()} for leaf in self._leaves
        ]

    def put_back(self) -> None:
        """Restore everything bit for bit; moments that did not exist are gone again."""
        self._weights.put_back()
        for leaf, moments in zip(self._leaves, self._moments, strict=True):
            state = self._optimizer.state.pop(leaf, {})
            if moments:
                self._optimizer.state[leaf] = {f: v.to(state[f].device) for f, v in moments.items()}


def _copied(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)
