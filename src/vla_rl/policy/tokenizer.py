"""The special tokens of a policy, the twin's text tokenizer, and the fixed layout of a prompt.

In: a tokenizer, a task and the width of the action block. Out: the ids of the token families, and a `PromptLayout` that
says where state and picture tokens go. `build_tokenizer` makes the twin's own tokenizer, with the families in the order
of the MolmoAct2 release. Its byte-level BPE has no regex pre-split and is trained on the template itself, so that a
fixed phrase is one token: the released vocabulary would spend about 80 tokens on text that never changes. Any other
text still encodes (down to bytes).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from vla_rl.errors import ConfigError
from vla_rl.policy.prompt import CAMERAS, SO101, STATE_BINS, Wording, normalise_task, prompt_text

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMAGE_TOKENS = (
    "<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>", "<|image|>", "<im_low>", "<frame_start>",
    "<frame_end>", "<|video|>", "<|points|>", "<|token_index|>", "<|vit_index|>", "<|vit_loc|>",
)  # fmt: skip
# The eight kinds that attend to each other in both directions, across cameras.
_BLOCK_TOKENS = (
    "<im_patch>",
    "<im_col>",
    "<im_start>",
    "<low_res_im_start>",
    "<frame_start>",
    "<im_end>",
    "<frame_end>",
    "<im_low>",
)


@dataclass(frozen=True)
class PictureTokens:
    """How one picture stands in the prompt.

    Attributes:
        image: the token that carries one feature of the picture.
        before, after: tokens around them.
        both_ways: tokens that attend to each other in both directions, across pictures.
    """

    image: str
    before: str = ""
    after: str = ""
    both_ways: tuple[str, ...] = ()


MOLMO2_PICTURES = PictureTokens("<im_patch>", "<im_start>", "<im_end>", _BLOCK_TOKENS)
_SPECIAL = re.compile(r"<[^<>\s]+>")
_BASE_MULTIPLE = 64
_JOINTS = 6


@dataclass(frozen=True)
class TokenIds:
    """Ids that the network and the grammar need; every family is contiguous.

    Attributes:
        base_size: rows of the base vocabulary (input and output). In the Molmo2 layout image tokens start at this id,
            input only.
        state_start: id of ``<state_0>``.
        action_start: id of ``<action_start>``, fed after the prompt and never sampled.
        action_block: id of ``<action_0>``.
        patch: id of the token that carries a picture's features.
    """

    base_size: int
    state_start: int
    action_start: int
    action_block: int
    patch: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, action_width: int, pictures: PictureTokens = MOLMO2_PICTURES) -> TokenIds:
        """Read the ids from a tokenizer and check the release's arithmetic.

        Raises:
            ConfigError: a family is missing or not contiguous.
        """
        block = _id(tokenizer, "<action_0>")
        state = _id(tokenizer, "<state_0>")
        expected = {
            f"<state_{STATE_BINS - 1}>": state + STATE_BINS - 1,
            "<action_start>": block - 2,
            "<action_end>": block - 1,
            f"<action_{action_width - 1}>": block + action_width - 1,
        }
        for token, number in expected.items():
            if tokenizer.token_to_id(token) != number:
                raise ConfigError(f"token {token} is missing or out of order", where="tokenizer.json")
        molmo2 = pictures == MOLMO2_PICTURES
        base = _id(tokenizer, pictures.before) if molmo2 else tokenizer.get_vocab_size()
        return cls(base, state, block - 2, block, _id(tokenizer, pictures.image))


def _id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ConfigError(f"token {token} is missing", where="tokenizer.json")
    return found


@dataclass(frozen=True)
class PromptLayout:
    """The prompt of one task as token ids; only the state slots differ between two prompts.

    Attributes:
        template_P: int64 [P] ids, state bins 0 in the state slots, ending with ``<action_output><action_start>``.
        block_P: bool [P], tokens that attend to each other in both directions (pictures and their markers).
        state_slots_J: int64 [joint], positions of the state tokens.
        image_slots_I: int64 [camera * tokens per picture], positions of the patch tokens, camera by camera.
    """

    template_P: np.ndarray
    block_P: np.ndarray
    state_slots_J: np.ndarray
    image_slots_I: np.ndarray


def build_tokenizer(task: str, action_width: int, *, base_size: int = 0) -> Tokenizer:
    """A byte-level BPE trained on the prompt of `task`, then every special family in release order.

    Args:
        base_size: rows of the base table are at least so many; those that nothing needs have tokens of their own.
    """
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    phrases = [p for p in _SPECIAL.split(prompt_text(normalise_task(task), [], image="<|image|>")) if p]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=2048, min_frequency=2, initial_alphabet=alphabet, show_progress=False)
    tok.train_from_iterator(phrases * 2, trainer)
    families = [PAD, TURN_START, TURN_END, *robot_families(action_width)]
    used = tok.get_vocab_size() + len(families)
    padding = max(-used % _BASE_MULTIPLE, base_size - used)
    add_tokens(tok, [*families, *(f"<extra_{i}>" for i in range(padding)), *IMAGE_TOKENS])
    return tok


def robot_families(action_width: int) -> list[str]:
    """The tokens that make a language model a policy, in the order of the release."""
    families = [f"<{part}_{end}>" for part in ("setup", "control", "state") for end in ("start", "end")]
    families += [f"<state_{i}>" for i in range(STATE_BINS)] + ["<action_output>", "<action_start>", "<action_end>"]
    return families + [f"<action_{i}>" for i in range(action_width)]


def add_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> None:
    """Append special tokens; those that are there already keep their ids."""
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in tokens])


def build_layout(
    tokenizer: Tokenizer,
    task: str,
    *,
    tokens_per_image: int,
    action_width: int,
    wording: Wording = SO101,
    pictures: PictureTokens = MOLMO2_PICTURES,
) -> PromptLayout:
    """Tokenise the prompt of `task` once and find its slots.

    Raises:
        ConfigError: the task is empty or contains text that reads as a special token, or the tokenizer lacks a token.
    """
    ids, text = TokenIds.of(tokenizer, action_width, pictures), normalise_task(task)
    if not text or _SPECIAL.search(text):
        raise ConfigError(
            f"{task!r} is no usable task", where="policy.task", remedy="say in words what the robot should do"
        )
    picture = pictures.before + pictures.image * tokens_per_image + pictures.after
    full = prompt_text(text, [0] * _JOINTS, image=picture, wording=wording) + "<action_start>"
    template = np.array(tokenizer.encode(full, add_special_tokens=False).ids, dtype=np.int64)
    state, image = np.flatnonzero(template == ids.state_start), np.flatnonzero(template == ids.patch)
    assert len(state) == _JOINTS and len(image) == len(CAMERAS) * tokens_per_image
    block = np.isin(template, [_id(tokenizer, t) for t in pictures.both_ways])
    return PromptLayout(template, block, state, image)


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write `tokenizer.json` and the `tokenizer_config.json` that transformers reads."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": TURN_END, "eos_token": TURN_END, "pad_token": PAD,
        "padding_side": "left", "clean_up_tokenization_spaces": False, "add_prefix_space": False,
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
