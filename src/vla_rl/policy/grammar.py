"""Which action bins are legal next: those whose symbols still fit into what is left of the chunk.

In: the symbol length of every bin and the bins chosen so far. Out: boolean masks. A stream is complete when its
lengths sum to exactly `total`; since at least one legal bin has length 1, no prefix can run into a dead end, so no
look-ahead is needed. The mask is a pure function of the prefix: trainer and sampler compute it from the same two
functions.

Shapes: R rows, T tokens, V bins of the action block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vla_rl.errors import ConfigError


@dataclass(frozen=True)
class Grammar:
    """The remaining-budget grammar of a codec.

    Attributes:
        lengths_V: int64 [V], symbols per bin, 0 for bins that are never legal.
        total: symbols of a complete stream (horizon * dim).
    """

    lengths_V: np.ndarray
    total: int

    def __post_init__(self) -> None:
        if not (self.lengths_V == 1).any():
            raise ConfigError("no bin has length 1, so a stream could get stuck", where="action codec")

    def masks(self, bins_T: np.ndarray) -> np.ndarray:
        """Legal bins at every token of one complete stream: bool [T, V].

        Raises:
            ConfigError: a bin is illegal where it stands, or the stream is not complete.
        """
        lengths = self.lengths_V[np.asarray(bins_T, dtype=np.int64)]
        left = self.total - (np.cumsum(lengths) - lengths)
        if (lengths == 0).any() or lengths.sum() != self.total or (left <= 0).any():
            raise ConfigError(f"the bins do not make a stream of exactly {self.total} symbols", where="action stream")
        return (self.lengths_V > 0) & (self.lengths_V <= left[:, None])

    def packed_masks(self, bins_T: np.ndarray) -> np.ndarray:
        """`masks` as stored in a replay row: uint8 [T, ceil(V / 8)], `numpy.packbits` order."""
        return np.packbits(self.masks(bins_T), axis=1)


def legal_next(lengths_V: Tensor, left_R: Tensor) -> Tensor:
    """Bool [R, V]: bins that fit into `left_R` symbols."""
    return (lengths_V > 0) & (lengths_V <= left_R[:, None])


def legal_at(lengths_V: Tensor, bins_RT: Tensor, total: int) -> Tensor:
    """Bool [R, T, V]: `legal_next` at every token of padded streams; nothing is legal past the end of a stream."""
    lengths = lengths_V[bins_RT]
    left = total - (lengths.cumsum(1) - lengths)
    return legal_next(lengths_V, left.flatten()).unflatten(0, bins_RT.shape)
