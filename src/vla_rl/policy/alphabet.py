"""How a codec spells levels as text for its byte-pair encoding, in two spellings.

In: integer levels. Out: strings, and the levels that a piece of the vocabulary stands for.

`PlainAlphabet` gives every level a code point of its own that no normaliser or byte mapping touches, and needs no
pre-tokenizer: every level is encodable and a piece is as long as its levels. New codecs use it.

`ByteLevelAlphabet` is the released MolmoAct2 artifact's (class `UniversalActionProcessor`): ``chr(level - min_token)``,
read by GPT-2's byte-level pre-tokenizer. That one rewrites code points 0 to 32 to others, which only those levels have
that occurred in the release's training data: the rest are *holes*, which vanish on encoding. The raw code points 0 to
32 stand in the vocabulary too, decode to one level each and are never emitted. Code points from 128 on would take two
bytes, and pieces could split them; an artifact that holds any is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from vla_rl.errors import ConfigError

BYTE_LEVEL_CLASS = "UniversalActionProcessor"
PLAIN_CLASS = "PlainBpeFast"
_FIRST_CHAR = 0x4E00  # a run of code points that no normaliser or byte mapping touches
_ASCII = 128
_REPLACEMENT = "\ufffd"


class CodecError(ConfigError):
    """An action codec's files or inputs do not work."""


class AlphabetError(CodecError):
    """A vocabulary cannot spell the levels that its codec must write."""


class Alphabet(Protocol):
    """What a codec needs of a spelling; `lowest` and `highest` are the levels between which it can spell at all."""

    @property
    def lowest(self) -> int: ...
    @property
    def highest(self) -> int: ...
    def text(self, levels_BN: np.ndarray) -> list[str]: ...
    def symbols(self, bpe: Tokenizer, pieces: Sequence[str], ids: Sequence[int]) -> list[np.ndarray]: ...
    def spellable(self, bpe: Tokenizer) -> np.ndarray: ...
    def lost(self, levels_BN: np.ndarray, spellable: np.ndarray) -> np.ndarray: ...
    def emitted(self, piece: str) -> bool: ...
    def train(self, texts: Sequence[str], vocabulary: int) -> Tokenizer: ...


@dataclass(frozen=True)
class PlainAlphabet:
    """Levels -top..top as code points of their own."""

    top: int

    @property
    def lowest(self) -> int:
        return -self.top

    @property
    def highest(self) -> int:
        return self.top

    def text(self, levels_BN: np.ndarray) -> list[str]:
        """One string a row; levels past the ends are clipped (rounding may reach one past the top)."""
        codes = (np.clip(levels_BN, -self.top, self.top) + self.top + _FIRST_CHAR).astype("<u4")
        return [row.tobytes().decode("utf-32-le") for row in codes]

    def symbols(self, bpe: Tokenizer, pieces: Sequence[str], ids: Sequence[int]) -> list[np.ndarray]:
        """Levels of each piece."""
        return [np.array([ord(c) for c in piece], dtype=np.int64) - _FIRST_CHAR - self.top for piece in pieces]

    def spellable(self, bpe: Tokenizer) -> np.ndarray:
        """Bool [levels]: whether each level from `lowest` on is in the vocabulary.

        Raises:
            AlphabetError: one is not; a plain vocabulary has no holes.
        """
        present = np.array([bpe.token_to_id(chr(_FIRST_CHAR + i)) is not None for i in range(2 * self.top + 1)])
        if not present.all():
            raise AlphabetError("the codec's BPE does not hold every level", where="fast_tokenizer")
        return present

    def lost(self, levels_BN: np.ndarray, spellable: np.ndarray) -> np.ndarray:
        """Levels of each row without a symbol of their own, int64 [B]: none, the one past the top is clipped."""
        return np.zeros(len(levels_BN), dtype=np.int64)

    def emitted(self, piece: str) -> bool:
        """Whether the encoder's text can hold these characters: always."""
        return True

    def train(self, texts: Sequence[str], vocabulary: int) -> Tokenizer:
        """Learn merges; every level is in the initial alphabet."""
        bpe = Tokenizer(models.BPE())
        alphabet = [chr(_FIRST_CHAR + i) for i in range(2 * self.top + 1)]
        bpe.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=vocabulary, min_frequency=2, initial_alphabet=alphabet, show_progress=False
        ))  # fmt: skip
        return bpe


@dataclass(frozen=True)
class ByteLevelAlphabet:
    """Levels from `min_token` on as ``chr(level - min_token)`` behind a byte-level pre-tokenizer."""

    min_token: int

    @property
    def lowest(self) -> int:
        return self.min_token

    @property
    def highest(self) -> int:
        return self.min_token + _ASCII - 1

    def text(self, levels_BN: np.ndarray) -> list[str]:
        """One string a row; levels below the lowest are written as the lowest, as the release does."""
        codes = np.maximum(levels_BN - self.min_token, 0).astype("<u4")
        return [row.tobytes().decode("utf-32-le") for row in codes]

    def symbols(self, bpe: Tokenizer, pieces: Sequence[str], ids: Sequence[int]) -> list[np.ndarray]:
        """Levels of each id as the release's decoder reads it alone.

        Raises:
            AlphabetError: an id does not stand for whole symbols, so that lengths would not add up.
        """
        texts = [bpe.decode([i], skip_special_tokens=False) for i in ids]
        for number, text in zip(ids, texts, strict=True):
            if not text or _REPLACEMENT in text or max(text) >= chr(_ASCII):
                raise AlphabetError(
                    f"id {number} of the FAST tokenizer reads {text!r}, not a run of symbols below {_ASCII}",
                    where="fast_tokenizer/tokenizer.json",
                    remedy="use an artifact whose levels span at most 127 values; longer chunks need a smaller scale",
                )
        return [np.array([ord(c) for c in text], dtype=np.int64) + self.min_token for text in texts]

    def spellable(self, bpe: Tokenizer) -> np.ndarray:
        """Bool [128]: whether each level from `min_token` on has a character that the pre-tokenizer produces."""
        return np.array([bpe.token_to_id(_shown(code)) is not None for code in range(_ASCII)])

    def lost(self, levels_BN: np.ndarray, spellable: np.ndarray) -> np.ndarray:
        """Levels of each row without a symbol of their own, int64 [B]: outside the alphabet, or holes in it."""
        inside = (levels_BN >= self.lowest) & (levels_BN <= self.highest)
        index = np.where(inside, levels_BN - self.lowest, 0)
        return (~(inside & spellable[index])).sum(1)

    def emitted(self, piece: str) -> bool:
        """Whether the pre-tokenizer's text can hold these characters: it never shows a raw code point 0 to 32."""
        return all(c in _SHOWN for c in piece)

    def train(self, texts: Sequence[str], vocabulary: int) -> Tokenizer:
        """Learn merges by the release's recipe: raw code points as initial alphabet, which is what makes holes."""
        highest = max(max(text) for text in texts)
        if ord(highest) >= _ASCII - 1:
            raise AlphabetError(
                f"{ord(highest) + 1} levels do not fit into single bytes",
                where="codec scale",
                remedy="use a smaller scale, a shorter chunk, or a plain codec",
            )
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        bpe.post_processor = processors.ByteLevel(trim_offsets=False)
        bpe.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=vocabulary, min_frequency=2, max_token_length=10_000, show_progress=False,
            initial_alphabet=[chr(code) for code in range(ord(highest) + 1)],
        ))  # fmt: skip
        return bpe


def released_config(min_token: int, scale: float, vocabulary: int) -> dict[str, Any]:
    """`processor_config.json` as the release writes it; horizon and width come from the checkpoint's tables."""
    return {
        "action_dim": None,
        "auto_map": {"AutoProcessor": f"processing_action_tokenizer.{BYTE_LEVEL_CLASS}"},
        "min_token": min_token,
        "processor_class": BYTE_LEVEL_CLASS,
        "scale": scale,
        "time_horizon": None,
        "vocab_size": vocabulary,
    }


_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_SHOWN = frozenset(pre_tokenizers.ByteLevel.alphabet())


def _shown(code: int) -> str:
    """The character that the pre-tokenizer makes of a code point below 128."""
    return _BYTE_LEVEL.pre_tokenize_str(chr(code))[0][0]
