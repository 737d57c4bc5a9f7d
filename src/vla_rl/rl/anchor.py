"""The policy as it was when the run began, kept beside the one that learns.

In: a policy and its trainable parameters before the first update. Out: the same network under the old weights for as
long as a block lasts. Only the surface is copied; the rest does not move. Of a surface that is an adapter nothing is:
the policy as it was is the base with the adapter switched off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

from vla_rl.policy.lora import acting_pairs, pairs, switched_off
from vla_rl.rl.snapshot import Weights
from vla_rl.rl.surfaces import NamedParameters


class Anchor(ABC):
    """The policy of step 0."""

    @staticmethod
    def of(policy: Any, parameters: NamedParameters) -> Anchor:
        """The anchor of a run that is about to begin."""
        return Copied(parameters) if Anchor.copies(policy, parameters) else AdapterOff(policy)

    @staticmethod
    def copies(policy: Any, parameters: NamedParameters) -> bool:
        """Whether that takes a copy: it does, unless all that can move is an adapter that does nothing yet."""
        added = {name for pair in pairs(policy.model) for name, _ in pair.named()}
        return not added or added != {name for name, _ in parameters} or bool(acting_pairs(policy.model))

    @abstractmethod
    def installed(self) -> AbstractContextManager[None]:
        """The anchor's weights while the block runs, then the live ones again, bit for bit."""


class Copied(Anchor):
    """A copy of a surface's weights, in the host's memory; while it is installed the live weights lie in its place.

    Args:
        parameters: the surface; what it holds now is the anchor.
    """

    def __init__(self, parameters: NamedParameters) -> None:
        self._weights = Weights(parameters)

    def installed(self) -> AbstractContextManager[None]:
        return self._weights.installed()


class AdapterOff(Anchor):
    """The base of a policy whose adapter alone moves.

    A fresh adapter adds zeros, so this is bit for bit what a copy of it would give.

    Args:
        policy: carries the adapter.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def installed(self) -> AbstractContextManager[None]:
        return switched_off(self._policy.model)
