"""Weights of the moment, with or without the optimiser's moments, to go back to.

Copies lie in the host's memory, so that an accelerator holds one network. Of a tensor that is shared by several
processes each copies its own part.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
            _own(parameter).copy_(value)


class Snapshot:
    """A copy of a surface's weights and of its optimiser's state.

    Args:
        parameters, optimizer: what is copied now, and what `put_back` writes to.
    """

    def __init__(self, parameters: NamedParameters, optimizer: torch.optim.Optimizer) -> None:
        self._parameters, self._optimizer = parameters, optimizer
        self._weights = Weights(parameters)
        self._moments: list[dict[str, Tensor]] = [
            {field: _copied(value) for field, value in optimizer.state.get(parameter, {}).items()}
            for _, parameter in parameters
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore everything bit for bit; moments that did not exist are gone again."""
        self._weights.put_back()
        for (_, parameter), moments in zip(self._parameters, self._moments, strict=True):
            state = self._optimizer.state.pop(parameter, {})
            if moments:
                for field, value in moments.items():
                    _own(state[field]).copy_(value)
                self._optimizer.state[parameter] = state


def _copied(value: Tensor) -> Tensor:
    return _own(value.detach()).to("cpu", copy=True)


def _own(value: Tensor) -> Tensor:
    """This process's part, in place."""
    return getattr(value, "to_local", lambda: value)()
