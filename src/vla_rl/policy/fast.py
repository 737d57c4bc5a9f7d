"""FAST action codec: a chunk of joint targets <-> a short stream of bins.

In: chunks normalised to [-1, 1], shape [horizon, dim]. Out: bins, and back. Encoding: orthonormal DCT-II over time,
times `scale`, rounded half to even; the levels, frequency outer and joint inner, are the symbols of a byte-pair
encoding (FAST, Pertsch et al. 2025). Two spellings of levels exist (`vla_rl.policy.alphabet`): the released MolmoAct2
artifact's byte-level one, with its holes, and a plain one without any, which newly fitted codecs use.

A level that the vocabulary cannot spell vanishes from the text and one below the artifact's lowest is written as the
lowest: such labels do not describe the chunk. They are counted (`holes`) and refused unless a caller allows them.
Which bins a policy may choose is `vla_rl.policy.grammar`'s.

Shapes: B chunks, H ticks, D joints, V bins of the action block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from vla_rl.policy.alphabet import (
    BYTE_LEVEL_CLASS,
    PLAIN_CLASS,
    Alphabet,
    AlphabetError,
    ByteLevelAlphabet,
    CodecError,
    PlainAlphabet,
    released_config,
)

# Why a stream of bins is no chunk, as the release tells them apart (it executes an all-zero chunk for each).
STREAM_FAULTS = ("empty", "ragged", "short", "long")


class HorizonError(CodecError):
    """Chunks of this length reach levels that the artifact cannot write."""


class HoleError(CodecError):
    """A chunk has levels that the vocabulary has no symbol for."""


def dct_matrix(horizon: int) -> np.ndarray:
    """Orthonormal DCT-II, float64 [frequency, tick].

    Row k is ``sqrt(2/H) cos(pi (2t + 1) k / 2H)``, row 0 divided by sqrt 2.
    """
    k, t = np.arange(horizon)[:, None], np.arange(horizon)[None, :]
    matrix = np.sqrt(2.0 / horizon) * np.cos(np.pi * (2 * t + 1) * k / (2 * horizon))
    matrix[0] /= np.sqrt(2.0)
    return matrix


@dataclass(frozen=True)
class FastCodec:
    """A fitted codec.

    Attributes:
        bpe: the byte-pair encoding over level symbols.
        alphabet: how levels are spelled.
        scale: levels per unit of DCT coefficient.
        horizon, dim: ticks and joints of a chunk.
        vocabulary: width of the action block; bins past the learned ones exist but are never legal.
        record: `processor_config.json` as it is stored.
        lengths_V: int64 [vocabulary], symbols that a bin expands to, 0 where it is not learned.
        reachable_V: bool [vocabulary], bins that the encoder can emit, see `_reachable`.
        spellable: bool, whether each level from ``alphabet.lowest`` on has a symbol.
    """

    bpe: Tokenizer
    alphabet: Alphabet
    scale: float
    horizon: int
    dim: int
    vocabulary: int
    record: Mapping[str, Any]
    lengths_V: np.ndarray = field(init=False)
    reachable_V: np.ndarray = field(init=False)
    spellable: np.ndarray = field(init=False)
    _levels: np.ndarray = field(init=False)
    _offsets_V: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        vocabulary = sorted(self.bpe.get_vocab().items(), key=lambda item: item[1])
        if not vocabulary:
            raise AlphabetError("the codec's BPE is empty", where="fast_tokenizer")
        pieces, ids = zip(*vocabulary, strict=True)
        if ids[-1] >= self.vocabulary:
            raise AlphabetError(
                f"the codec's BPE has ids up to {ids[-1]}, its block only {self.vocabulary} bins",
                where="fast_tokenizer",
            )
        symbols = self.alphabet.symbols(self.bpe, pieces, ids)
        lengths = np.zeros(self.vocabulary, dtype=np.int64)
        lengths[list(ids)] = [len(s) for s in symbols]
        values = {
            "lengths_V": lengths,
            "reachable_V": _reachable(self.bpe, self.alphabet, pieces, ids, self.vocabulary),
            "spellable": self.alphabet.spellable(self.bpe),
            "_levels": np.concatenate(symbols),
            "_offsets_V": np.cumsum(lengths) - lengths,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def top_level(self) -> int:
        """The largest level of a chunk, ``round(scale * sqrt(horizon))``: what a constant chunk at 1 gives."""
        return _top_level(self.scale, self.horizon)

    def facts(self) -> tuple[np.ndarray | float, ...]:
        """What each bin stands for: the levels that it expands to, the size of a level and the shape of a chunk."""
        return (self.lengths_V, self._levels.astype(np.int64), float(self.scale), self.horizon, self.dim)

    @property
    def symbols(self) -> int:
        """Symbols of a chunk, horizon * dim."""
        return self.horizon * self.dim

    @classmethod
    def fit(cls, chunks_BHD: np.ndarray, *, scale: float, vocabulary: int, byte_level: bool = False) -> FastCodec:
        """Learn merges on normalised chunks.

        Args:
            chunks_BHD: chunks in [-1, 1]; values outside are clamped.
            scale: levels per unit of DCT coefficient.
            vocabulary: width of the action block.
            byte_level: follow the release's recipe, holes included (for other programs to read), instead of the plain
                spelling.

        Raises:
            CodecError: the block is too narrow to hold every level, or the levels are too many for the spelling.
        """
        horizon, dim = chunks_BHD.shape[1:]
        levels, top = _quantise(chunks_BHD, scale), _top_level(scale, horizon)
        if byte_level:
            alphabet: Alphabet = ByteLevelAlphabet(int(levels.min()))
            wanted, record = int(levels.max() - levels.min()) + 1, released_config(alphabet.lowest, scale, vocabulary)
            record |= {"time_horizon": horizon, "action_dim": dim}
        else:
            alphabet, wanted = PlainAlphabet(top), 2 * top + 1
            record = {
                "processor_class": PLAIN_CLASS, "scale": scale, "vocab_size": vocabulary,
                "min_token": -top, "time_horizon": horizon, "action_dim": dim,
            }  # fmt: skip
        if vocabulary < wanted:
            raise AlphabetError(f"{wanted} levels do not fit into {vocabulary} bins", where="codec vocabulary")
        bpe = alphabet.train(alphabet.text(levels), vocabulary)
        return cls(bpe, alphabet, scale, horizon, dim, vocabulary, record)

    def holes(self, chunks_BHD: np.ndarray) -> np.ndarray:
        """How many levels of each chunk the vocabulary cannot write, int64 [B]; counts of several workers add up.

        Raises:
            CodecError: as `encode`, except for the holes themselves.
        """
        return self.alphabet.lost(_quantise(self._checked(chunks_BHD), self.scale), self.spellable)

    def encode(self, chunks_BHD: np.ndarray, *, allow_holes: bool = False) -> list[np.ndarray]:
        """Bins of normalised chunks: one int16 [token] each; values outside [-1, 1] are clamped.

        Args:
            chunks_BHD: B chunks.
            allow_holes: let levels without a symbol vanish, as the release does; such a stream is short, and no policy
                under the grammar can emit it.

        Raises:
            HoleError: a chunk has levels without a symbol, and that is not allowed.
            CodecError: a chunk has another shape or is not finite.
        """
        levels = _quantise(self._checked(chunks_BHD), self.scale)
        lost = self.alphabet.lost(levels, self.spellable)
        if lost.any() and not allow_holes:
            raise HoleError(
                f"{np.count_nonzero(lost)} of {len(lost)} chunks have levels without a symbol, {lost.sum()} in all",
                where="action codec",
                remedy="fit a plain codec, drop these chunks, or allow holes explicitly",
            )
        batch = self.bpe.encode_batch_fast(self.alphabet.text(levels), add_special_tokens=False)
        return [np.array(e.ids, dtype=np.int16) for e in batch]

    def fault(self, bins: np.ndarray) -> str | None:
        """Why a stream of bins does not decode: one of `STREAM_FAULTS`, or None.

        Bins that are not learned count as nothing, as in the release. ``ragged``: the symbols are no whole number of
        ticks; else ``short`` or ``long``.
        """
        total = int(self.lengths_V[np.asarray(bins, dtype=np.int64)].sum())
        if total == self.symbols:
            return None
        if total == 0:
            return "empty"
        return "ragged" if total % self.dim else "short" if total < self.symbols else "long"

    def decode(self, streams: Sequence[np.ndarray]) -> np.ndarray:
        """Normalised chunks, float64 [B, H, D] in [-1, 1], of bin streams.

        Raises:
            CodecError: a stream holds an unlearned bin or does not expand to exactly horizon * dim symbols.
        """
        bins = (
            np.concatenate([np.asarray(s, dtype=np.int64) for s in streams]) if len(streams) else np.zeros(0, np.int64)
        )
        if bins.size and not (0 <= bins.min() and bins.max() < self.vocabulary):
            raise CodecError("a stream holds a bin outside the action block", where="codec")
        lengths = self.lengths_V[bins]
        owner = np.repeat(np.arange(len(streams)), [len(s) for s in streams])
        totals = np.bincount(owner, weights=lengths, minlength=len(streams))
        if (lengths == 0).any() or (totals != self.symbols).any():
            raise CodecError(f"a stream does not expand to exactly {self.symbols} symbols", where="codec")
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        levels = self._levels[np.repeat(self._offsets_V[bins], lengths) + within]
        coefficients = levels.reshape(len(streams), self.horizon, self.dim) / self.scale
        return np.clip(np.einsum("kt,bkd->btd", dct_matrix(self.horizon), coefficients), -1.0, 1.0)

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json` and `processor_config.json` into `directory`, which is created."""
        directory.mkdir(parents=True, exist_ok=True)
        self.bpe.save(str(directory / "tokenizer.json"))
        (directory / "processor_config.json").write_text(json.dumps(dict(self.record), indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path, *, horizon: int | None = None, dim: int | None = None) -> FastCodec:
        """Read a codec that `save` wrote, or a released artifact.

        Args:
            directory: holds `tokenizer.json` and `processor_config.json`.
            horizon, dim: ticks and joints of a chunk, needed where the artifact does not say (the release does not).

        Raises:
            HorizonError: the artifact is for another horizon, or cannot write what chunks of this one reach.
            AlphabetError: its vocabulary does not fit its block, or holds pieces of symbols.
            CodecError: files are missing or unreadable, or of another kind of FAST tokenizer.
        """
        try:
            record = json.loads((directory / "processor_config.json").read_text())
            kind, scale, block, low = (record.get(k) for k in ("processor_class", "scale", "vocab_size", "min_token"))
            stated = {key: record[key] for key in ("time_horizon", "action_dim")}
            if not (isinstance(block, int) and isinstance(low, int) and isinstance(scale, int | float) and scale > 0):
                raise ValueError(f"scale {scale!r}, vocab_size {block!r} and min_token {low!r} are no numbers to use")
            if not all(number is None or isinstance(number, int) for number in stated.values()):
                raise ValueError(f"time_horizon and action_dim are {list(stated.values())}")
            bpe = Tokenizer.from_str((directory / "tokenizer.json").read_text())
        except Exception as error:  # `tokenizers` raises bare Exceptions
            raise CodecError(f"no usable action codec: {error}", where=str(directory)) from error
        if kind not in (PLAIN_CLASS, BYTE_LEVEL_CLASS):
            raise CodecError(f"{kind!r} is no kind of FAST tokenizer known here", where=str(directory))
        ticks = _agreed("time_horizon", stated["time_horizon"], horizon, directory)
        joints = _agreed("action_dim", stated["action_dim"], dim, directory)
        alphabet = PlainAlphabet(_top_level(scale, ticks)) if kind == PLAIN_CLASS else ByteLevelAlphabet(low)
        codec = cls(bpe, alphabet, scale, ticks, joints, block, record)
        if stated["time_horizon"] is None:
            codec._check_reach(directory)
        return codec

    def _checked(self, chunks_BHD: np.ndarray) -> np.ndarray:
        chunks = np.asarray(chunks_BHD)
        if chunks.ndim != 3 or chunks.shape[1:] != (self.horizon, self.dim) or not np.isfinite(chunks).all():
            raise CodecError(
                f"chunks of shape {chunks.shape} are not finite [n, {self.horizon}, {self.dim}]", where="codec"
            )
        return chunks

    def _check_reach(self, directory: Path) -> None:
        """Refuse a horizon whose constant chunks reach past the artifact's levels on either side."""
        highest = self.alphabet.lowest + int(np.flatnonzero(self.spellable)[-1])
        if self.top_level > min(-self.alphabet.lowest, highest):
            longest = int((min(-self.alphabet.lowest, highest) + 0.5) ** 2 / self.scale**2)
            raise HorizonError(
                f"chunks of {self.horizon} ticks reach levels of +-{self.top_level}; the artifact writes "
                f"{self.alphabet.lowest} to {highest}",
                where=str(directory),
                remedy=f"use chunks of at most {longest} ticks, or fit a codec of your own",
            )


def _reachable(
    bpe: Tokenizer, alphabet: Alphabet, pieces: Sequence[str], ids: Sequence[int], vocabulary: int
) -> np.ndarray:
    """Bool [V]: ids that the encoder can emit.

    An id is reachable if and only if the pre-tokenizer can produce all characters of its piece and the merges, applied
    to the piece alone, end in that one id. Necessary: where the encoder emits an id, no merge crossed the ends of its
    piece, so exactly these merges happened inside. Sufficient: the piece's own levels encode to it. (A piece that a
    pre-tokenizer would always split could not have been learned behind the same pre-tokenizer.)
    """
    merges_only = Tokenizer(bpe.model)
    reachable = np.zeros(vocabulary, dtype=bool)
    alone = merges_only.encode_batch_fast(list(pieces), add_special_tokens=False)
    for piece, number, encoding in zip(pieces, ids, alone, strict=True):
        reachable[number] = alphabet.emitted(piece) and encoding.ids == [number]
    return reachable


def _agreed(name: str, stated: int | None, wanted: int | None, directory: Path) -> int:
    """The artifact's own value, or the caller's where it has none; they may not differ."""
    if stated is not None and wanted is not None and stated != wanted:
        kind = HorizonError if name == "time_horizon" else CodecError
        raise kind(f"the action codec is for {name} {stated}, not {wanted}", where=str(directory))
    value = stated if stated is not None else wanted
    if not value or value < 1:
        raise CodecError(
            f"the action codec does not say its {name}", where=str(directory), remedy="take it from the norm table"
        )
    return value


def _top_level(scale: float, horizon: int) -> int:
    return round(scale * horizon**0.5)


def _quantise(chunks_BHD: np.ndarray, scale: float) -> np.ndarray:
    """Levels int64 [B, H * D], frequency outer, joint inner."""
    clamped = np.clip(np.asarray(chunks_BHD, dtype=np.float64), -1.0, 1.0)
    levels = np.rint(np.einsum("kt,btd->bkd", dct_matrix(clamped.shape[1]), clamped) * scale)
    return levels.astype(np.int64).reshape(len(clamped), -1)
