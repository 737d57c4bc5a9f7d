"""The policy as it was when the run began, kept beside the one that learns.

In: a policy and its trainable parameters before the first update. Out: the same network under the old weights for as
long as a block lasts. Only the surface is copied; the rest does not move. Of a surface that is an adapter nothing is:
the policy as it was is the base with the adapter switched off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vla_rl.policy.lora import pairs, switched_off
from vla_rl.rl.snapshot import Weights
from vla_rl.rl.surfaces import NamedParameters


class Anchor:
    """A copy of a surface's weights.

    Args:
        parameters: the surface; what it holds now is the anchor.
    """

    def __init__(self, parameters: NamedParameters) -> None:
        self._parameters, self._weights = parameters, Weights(parameters)

    @staticmethod
    def of(policy: Any, parameters: NamedParameters) -> Anchor:
        """The anchor of a run that is about to begin; a copy, unless all that can move is a fresh adapter."""
        added = {name for pair in pairs(policy.model) for name, _ in pair.named()}
        return AdapterOff(policy) if added and added == {name for name, _ in parameters} else Anchor(parameters)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The anchor's weights while the block runs, then the live ones again, bit for bit."""
        live = Weights(self._parameters)
        try:
            self._weights.put_back()
            yield
        finally:
            live.put_back()


class AdapterOff(Anchor):
    """The base of a policy whose adapter alone moves.

    A fresh adapter adds zeros, so this is bit for bit what a copy of it would give.

    Args:
        policy: carries the adapter.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    @contextmanager
    def installed(self) -> Iterator[None]:
        with switched_off(self._policy.model):
            yield
