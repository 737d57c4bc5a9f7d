"""The policy as it was when the run began, kept beside the one that learns.

In: the trainable parameters before the first update. Out: the same network under the old weights for as long as a
block lasts. Only the surface is copied (the rest does not move), to the host's memory, so that an accelerator holds one
network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vla_rl.rl.surfaces import NamedParameters


class Anchor:
    """A copy of a surface's weights.

    Args:
        parameters: the surface; what it holds now is the anchor.

    Attributes:
        digest: SHA-256 over names and values, part of every checkpoint.
    """

    def __init__(self, parameters: NamedParameters) -> None:
        self._parameters = parameters
        self._tensors = [_copied(parameter) for _, parameter in parameters]
        digest = hashlib.sha256()
        for (name, _), tensor in zip(parameters, self._tensors, strict=True):
            digest.update(name.encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy())
        self.digest = digest.hexdigest()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The anchor's weights while the block runs, then the live ones again, bit for bit."""
        live = [_copied(parameter) for _, parameter in self._parameters]
        try:
            self._install(self._tensors)
            yield
        finally:
            self._install(live)

    @torch.no_grad()
    def _install(self, tensors: list[Tensor]) -> None:
        for (_, parameter), tensor in zip(self._parameters, tensors, strict=True):
            parameter.copy_(tensor)


def _copied(parameter: Tensor) -> Tensor:
    return parameter.detach().to("cpu", copy=True)
