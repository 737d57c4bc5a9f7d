"""Weights of the moment, with or without the optimiser's moments, to go back to.

Copies lie in the host's memory, so that an accelerator holds one network. A copy takes the network's place for a while
by changing places with it, a piece at a time: no third set of weights is held, neither here nor there. Of a tensor that
is shared by several processes each copies its own part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vla_rl.policy.rowgradients import leaf_of
from vla_rl.rl.surfaces import NamedParameters

PIECE_BYTES = 64 * 2**20  # what lies aside while a piece changes places


class Weights:
    """A copy of a surface's weights.

    Args:
        parameters: what is copied now, and what `put_back` and `installed` write to.
    """

    def __init__(self, parameters: NamedParameters) -> None:
        self._parameters = parameters
        self.values = [_copied(parameter) for _, parameter in parameters]

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore them bit for bit."""
        for (_, parameter), value in zip(self._parameters, self.values, strict=True):
            _own(parameter).copy_(value)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """These weights while the block runs, then those from before it again, bit for bit."""
        exchanged: list[tuple[Tensor, Tensor]] = []
        try:
            for (_, parameter), value in zip(self._parameters, self.values, strict=True):
                for pair in zip(_pieces(_own(parameter.detach())), _pieces(value), strict=True):
                    _exchange(*pair)
                    exchanged.append(pair)
            yield
        finally:
            for pair in exchanged:
                _exchange(*pair)


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

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore everything bit for bit; moments that did not exist are gone again."""
        self._weights.put_back()
        for leaf, moments in zip(self._leaves, self._moments, strict=True):
            state = self._optimizer.state.pop(leaf, {})
            if moments:
                for field, value in moments.items():
                    _own(state[field]).copy_(value)
                self._optimizer.state[leaf] = state


@torch.no_grad()
def _exchange(live: Tensor, kept: Tensor) -> None:
    aside = live.clone()
    live.copy_(kept)
    kept.copy_(aside)


def _pieces(whole: Tensor) -> tuple[Tensor, ...]:
    return whole.view(-1).split(max(1, PIECE_BYTES // whole.element_size()))


def _copied(value: Tensor) -> Tensor:
    return _own(value.detach()).to("cpu", copy=True)


def _own(value: Tensor) -> Tensor:
    """This process's part, in place."""
    return getattr(value, "to_local", lambda: value)()
