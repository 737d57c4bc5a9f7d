"""An exponential moving average of the weights: what is saved and evaluated when `sft.ema` is on.

In: named float32 parameters and a decay. Out: averaged weights, put in place for the length of a block, and a lossless
form for checkpoints. Update k uses min(decay, (1 + k) / (10 + k)), so that the random start is soon forgotten. With
decay 0 there is no average, and every method does nothing.

The stored form is the difference to the weights in bits (exclusive or), its bytes sorted by significance and deflated:
sign, exponent and leading digits mostly agree, which keeps the resume state of the tiny policy within 64 MiB.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

FAST = 1  # zlib level; higher ones take several times as long for a hundredth


class WeightAverage:
    """The average of some parameters.

    Args:
        parameters: by name, float32; the average starts at their present values.
        decay: 0 for none.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay, self._parameters = decay, parameters
        self._average = {name: p.detach().clone() for name, p in parameters.items()} if decay else {}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after update `step` (from 0) into the average."""
        if self.decay:
            weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
            for name, value in self._average.items():
                value.lerp_(self._parameters[name], weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The parameters hold the average inside the block, and their own values again after it."""
        own = {name: p.detach().clone() for name, p in self._parameters.items()} if self.decay else {}
        try:
            self._put(self._average)
            yield
        finally:
            self._put(own)

    def packed(self) -> dict[str, Tensor]:
        """The average relative to the present weights, uint8 [bytes] by name; empty without an average."""
        return {name: _deflate(_bits(value) ^ _bits(self._parameters[name])) for name, value in self._average.items()}

    @torch.no_grad()
    def restore(self, packed: Mapping[str, Tensor]) -> None:
        """The inverse of `packed`, once the weights are those that it was taken with."""
        for name, value in self._average.items():
            bits = _inflate(packed[name], value.numel()) ^ _bits(self._parameters[name])
            value.copy_(torch.from_numpy(bits.view(np.float32)).view(value.shape))

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._parameters[name].copy_(value)


def _bits(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to("cpu").contiguous().reshape(-1).numpy().view(np.uint32)


def _deflate(bits: np.ndarray) -> Tensor:
    planes = np.ascontiguousarray(bits.view(np.uint8).reshape(-1, 4).T)
    return torch.frombuffer(bytearray(zlib.compress(planes.tobytes(), FAST)), dtype=torch.uint8)


def _inflate(packed: Tensor, count: int) -> np.ndarray:
    planes = np.frombuffer(zlib.decompress(packed.numpy().tobytes()), np.uint8).reshape(4, count)
    return np.ascontiguousarray(planes.T).view(np.uint32).reshape(-1)
