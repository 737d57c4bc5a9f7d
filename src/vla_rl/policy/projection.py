"""Projections of a layer as one-token steps do them, each with what an adapter adds to it.

In: modules of a network, bare or wrapped by peft. Out: a callable on their common input that rounds as the modules do.
Left out: everything else of a step (`vla_rl.policy.decode`), and what an adapter is (`vla_rl.policy.lora`).

Shapes: D inputs and N outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from vla_rl.policy.lora import halves, is_off, is_wrapped


@dataclass(frozen=True)
class Projection:
    """Projections of one input side by side, with what an adapter adds to each.

    The weights may be one matrix, which saves products and takes a copy: a product rounds alike however many outputs it
    has. Those of rank 4 and 8 do not, so every pair has products of its own, and the result is that of the modules bit
    for bit on a CPU.

    Attributes:
        weights: one [N, D] of all of them, or those of each.
        adapters: outputs of each, with A, B and scale, or None where it has no pair; empty if none has.
    """

    weights: tuple[Tensor, ...]
    adapters: tuple[tuple[int, tuple[Tensor, Tensor, float] | None], ...]

    @classmethod
    def of(cls, *modules: Any, fused: bool) -> Projection:
        """As the modules are now; `fused`: as one matrix."""
        weights = tuple(module.weight for module in modules)
        if fused and len(weights) > 1:
            weights = (torch.cat(weights),)
        pairs = [halves(module) if is_wrapped(module) and not is_off(module) else None for module in modules]
        if not any(pairs):
            return cls(weights, ())
        return cls(weights, tuple((m.weight.shape[0], half) for m, half in zip(modules, pairs, strict=True)))

    def tensors(self) -> list[Tensor]:
        """All that a call reads, in one order."""
        return [*self.weights, *(tensor for _, half in self.adapters if half is not None for tensor in half[:2])]

    def form(self) -> tuple[Any, ...]:
        """What a call does beside its tensors: their shapes and formats, which module has a pair, and its scale."""
        pairs = [(outputs, None if half is None else half[2]) for outputs, half in self.adapters]
        return (*((tensor.shape, tensor.dtype) for tensor in self.tensors()), *pairs)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, D] -> [rows, N], in the number format of the weights."""
        parts = [linear(x, weight) for weight in self.weights]
        if self.adapters:
            if len(parts) < len(self.adapters):
                parts = parts[0].split([outputs for outputs, _ in self.adapters], dim=1)
            parts = [_adapted(x, part, half) for part, (_, half) in zip(parts, self.adapters, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _adapted(x: Tensor, out: Tensor, half: tuple[Tensor, Tensor, float] | None) -> Tensor:
    if half is None:
        return out
    down, up, scale = half
    return (out + linear(linear(x.to(down.dtype), down), up) * scale).to(out.dtype)
