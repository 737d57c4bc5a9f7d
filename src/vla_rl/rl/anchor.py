"""The policy as it was when the run began, kept beside the one that learns.

In: the trainable parameters before the first update. Out: the same network under the old weights for as long as a
block lasts. Only the surface is copied; the rest does not move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vla_rl.rl.snapshot import Weights
from vla_rl.rl.surfaces import NamedParameters


class Anchor:
    """A copy of a surface's weights.

    Args:
        parameters: the surface; what it holds now is the anchor.
    """

    def __init__(self, parameters: NamedParameters) -> None:
        self._parameters, self._weights = parameters, Weights(parameters)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The anchor's weights while the block runs, then the live ones again, bit for bit."""
        live = Weights(self._parameters)
        try:
            self._weights.put_back()
            yield
        finally:
            live.put_back()
