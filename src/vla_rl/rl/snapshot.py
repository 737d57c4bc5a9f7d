"""Weights and moments of the moment, to go back to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vla_rl.rl.surfaces import NamedParameters


class Snapshot:
    """A copy in the host's memory of a surface and of its optimiser's state.

    Args:
        parameters, optimizer: what is copied now, and what `put_back` writes to.
    """

    def __init__(self, parameters: NamedParameters, optimizer: torch.optim.Optimizer) -> None:
        self._parameters, self._optimizer = parameters, optimizer
        self._weights = [_copied(parameter) for _, parameter in parameters]
        self._moments: list[dict[str, Any]] = [
            {field: _copied(value) for field, value in optimizer.state.get(parameter, {}).items()}
            for _, parameter in parameters
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore everything bit for bit; moments that did not exist are gone again."""
        for (_, parameter), weight, moments in zip(self._parameters, self._weights, self._moments, strict=True):
            parameter.copy_(weight)
            state = self._optimizer.state.pop(parameter, {})
            if moments:
                self._optimizer.state[parameter] = {f: v.to(state[f].device) for f, v in moments.items()}


def _copied(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)
