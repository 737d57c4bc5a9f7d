"""Which action bins are legal next: those whose symbols still fit into what is left of the chunk.

In: a codec (or the symbol length of every bin) and the bins chosen so far. Out: boolean masks over the action block;
other columns of the vocabulary are never computed. A stream is complete when its lengths sum to exactly `total`; since
at least one legal bin has length 1, no prefix can run into a dead end, so no look-ahead is needed. The mask is a pure
function of the prefix: trainer and sampler compute it from the same two functions.

Two sets of bins can be legal. ``reachable``: those that the codec's encoder can emit (`FastCodec.reachable_V`), so that
a policy never writes what no demonstration could have taught it. ``documented``: every bin that decodes, as in the
documented runs; on the release's artifact that adds ids 0 to 32, a second spelling of 26 levels and the only one of 7.

Shapes: R rows, T tokens, V bins of the action block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.fast import FastCodec

REACHABLE, DOCUMENTED = "reachable", "documented"


@dataclass(frozen=True)
class Grammar:
    """The remaining-budget grammar of a codec.

    Attributes:
        lengths_V: int64 [V], symbols per bin, 0 for bins that are never legal.
        total: symbols of a complete stream (horizon * dim).
        wider_V: bool [V], legal bins that the encoder never emits.
    """

    lengths_V: np.ndarray
    total: int
    wider_V: np.ndarray

    @classmethod
    def of(cls, codec: FastCodec, bins: str) -> Grammar:
        """The grammar of a codec over its ``reachable`` or over its ``documented`` bins.

        Raises:
            ConfigError: another set, or none of its bins has length 1.
        """
        if bins not in (REACHABLE, DOCUMENTED):
            raise ConfigError(f"there is no grammar {bins!r}", where="policy.grammar", remedy="reachable or documented")
        wider = (codec.lengths_V > 0) & ~codec.reachable_V
        if bins == REACHABLE:
            return cls(np.where(codec.reachable_V, codec.lengths_V, 0), codec.symbols, np.zeros_like(wider))
        return cls(codec.lengths_V, codec.symbols, wider)

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
