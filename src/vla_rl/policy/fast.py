"""FAST action codec: a chunk of joint targets <-> a short stream of bins.

In: chunks normalised to [-1, 1], shape [horizon, dim]. Out: bins, and back. Encoding: orthonormal DCT-II over time,
times `scale`, rounded half to even, clipped to +-round(scale * sqrt(horizon)); the levels, frequency outer and joint
inner, are the symbols of a byte-pair encoding (FAST, Pertsch et al. 2025). The BPE is plain: no pre-tokenizer and no
byte level, so merges cross any pair of levels, every level is encodable and symbol lengths add up. A released
MolmoAct2 artifact (with holes) is not read here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, trainers

from vla_rl.errors import ConfigError

_FIRST_CHAR = 0x4E00  # a run of code points that no normaliser or byte mapping touches


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
        scale: levels per unit of DCT coefficient.
        horizon, dim: ticks and joints of a chunk.
        vocabulary: width of the action block; bins past the learned ones exist but are never legal.
        lengths_V: int64 [vocabulary], symbols that a bin expands to, 0 where it is not learned.
    """

    bpe: Tokenizer
    scale: float
    horizon: int
    dim: int
    vocabulary: int
    lengths_V: np.ndarray = field(init=False)
    _levels: np.ndarray = field(init=False)
    _offsets_V: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        pieces = sorted(self.bpe.get_vocab().items(), key=lambda item: item[1])
        alphabet = {_FIRST_CHAR + i for i in range(2 * self.top_level + 1)}
        if len(pieces) > self.vocabulary or not alphabet <= {ord(p) for p, _ in pieces if len(p) == 1}:
            raise ConfigError(
                "the codec's BPE does not hold every level or is wider than its block", where="fast_tokenizer"
            )
        lengths = np.zeros(self.vocabulary, dtype=np.int64)
        lengths[: len(pieces)] = [len(p) for p, _ in pieces]
        levels = np.array([ord(c) for p, _ in pieces for c in p], dtype=np.int64) - _FIRST_CHAR - self.top_level
        for name, value in (("lengths_V", lengths), ("_levels", levels), ("_offsets_V", np.cumsum(lengths) - lengths)):
            object.__setattr__(self, name, value)

    @property
    def top_level(self) -> int:
        """The largest level, ``round(scale * sqrt(horizon))``: what a constant chunk at 1 gives."""
        return round(self.scale * self.horizon**0.5)

    @property
    def symbols(self) -> int:
        """Symbols of a chunk, horizon * dim."""
        return self.horizon * self.dim

    @classmethod
    def fit(cls, chunks: np.ndarray, *, scale: float, vocabulary: int) -> FastCodec:
        """Learn merges on normalised chunks [sample, horizon, dim].

        Raises:
            ConfigError: the block is too narrow to hold every level.
        """
        horizon, dim = chunks.shape[1:]
        top = round(scale * horizon**0.5)
        if vocabulary < 2 * top + 1:
            raise ConfigError(f"{2 * top + 1} levels do not fit into {vocabulary} bins", where="codec vocabulary")
        alphabet = [chr(_FIRST_CHAR + i) for i in range(2 * top + 1)]
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, min_frequency=2, initial_alphabet=alphabet, show_progress=False
        )
        bpe = Tokenizer(models.BPE())
        bpe.train_from_iterator(_text(_quantise(chunks, scale), top), trainer)
        return cls(bpe, scale, horizon, dim, vocabulary)

    def encode(self, chunks: np.ndarray) -> list[np.ndarray]:
        """Bins of normalised chunks [sample, horizon, dim]: one int16 [token] each; values outside [-1, 1] are clamped.

        Raises:
            ConfigError: a chunk has another shape or is not finite.
        """
        chunks = np.asarray(chunks)
        if chunks.ndim != 3 or chunks.shape[1:] != (self.horizon, self.dim) or not np.isfinite(chunks).all():
            raise ConfigError(
                f"chunks of shape {chunks.shape} are not finite [n, {self.horizon}, {self.dim}]", where="codec"
            )
        batch = self.bpe.encode_batch_fast(
            _text(_quantise(chunks, self.scale), self.top_level), add_special_tokens=False
        )
        return [np.array(e.ids, dtype=np.int16) for e in batch]

    def decode(self, streams: Sequence[np.ndarray]) -> np.ndarray:
        """Normalised chunks, float64 [sample, horizon, dim] in [-1, 1], of bin streams.

        Raises:
            ConfigError: a stream holds an unlearned bin or does not expand to exactly horizon * dim symbols.
        """
        bins = (
            np.concatenate([np.asarray(s, dtype=np.int64) for s in streams]) if len(streams) else np.zeros(0, np.int64)
        )
        if bins.size and not (0 <= bins.min() and bins.max() < self.vocabulary):
            raise ConfigError("a stream holds a bin outside the action block", where="codec")
        lengths = self.lengths_V[bins]
        owner = np.repeat(np.arange(len(streams)), [len(s) for s in streams])
        totals = np.bincount(owner, weights=lengths, minlength=len(streams))
        if (lengths == 0).any() or (totals != self.symbols).any():
            raise ConfigError(f"a stream does not expand to exactly {self.symbols} symbols", where="codec")
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        levels = self._levels[np.repeat(self._offsets_V[bins], lengths) + within]
        coefficients = levels.reshape(len(streams), self.horizon, self.dim) / self.scale
        return np.clip(np.einsum("kt,bkd->btd", dct_matrix(self.horizon), coefficients), -1.0, 1.0)

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json` and `processor_config.json` into `directory`, which is created."""
        directory.mkdir(parents=True, exist_ok=True)
        self.bpe.save(str(directory / "tokenizer.json"))
        config = {
            "processor_class": "PlainBpeFast", "scale": self.scale, "vocab_size": self.vocabulary,
            "min_token": -self.top_level, "time_horizon": self.horizon, "action_dim": self.dim,
        }  # fmt: skip
        (directory / "processor_config.json").write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> FastCodec:
        """Read a codec that `save` wrote.

        Raises:
            ConfigError: files are missing, or the directory holds another kind of FAST tokenizer.
        """
        try:
            config = json.loads((directory / "processor_config.json").read_text())
            if config.get("processor_class") != "PlainBpeFast":
                raise ConfigError("this FAST tokenizer is not of the plain-BPE kind", where=str(directory))
            bpe = Tokenizer.from_str((directory / "tokenizer.json").read_text())
            return cls(bpe, config["scale"], config["time_horizon"], config["action_dim"], config["vocab_size"])
        except (OSError, KeyError, json.JSONDecodeError) as error:
            raise ConfigError(f"no usable action codec: {error}", where=str(directory)) from error


def _quantise(chunks: np.ndarray, scale: float) -> np.ndarray:
    """Levels [sample, horizon * dim] of chunks [sample, horizon, dim], frequency outer, joint inner."""
    clamped = np.clip(np.asarray(chunks, dtype=np.float64), -1.0, 1.0)
    horizon = clamped.shape[1]
    top = round(scale * horizon**0.5)
    levels = np.rint(np.einsum("kt,btd->bkd", dct_matrix(horizon), clamped) * scale)
    return np.clip(levels, -top, top).astype(np.int64).reshape(len(clamped), -1)


def _text(levels: np.ndarray, top_level: int) -> list[str]:
    codes = (levels + top_level + _FIRST_CHAR).astype("<u4")
    return [row.tobytes().decode("utf-32-le") for row in codes]
