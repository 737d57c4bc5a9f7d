"""Tiny image-text-to-text models of other families, as a hub would serve them: no action tokens, random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEXT = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 96, "max_position_embeddings": 1024,
    "pad_token_id": 256, "bos_token_id": 256, "eos_token_id": 256, "initializer_range": 0.1,
}  # fmt: skip
VISION = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 48,
    "patch_size": 8, "initializer_range": 0.1,
}  # fmt: skip
SPECIAL = ("<|endoftext|>", "<image>", "<fake_token_around_image>", "<global-img>")


def plain_tokenizer() -> Tokenizer:
    """A byte-level vocabulary of 256 and the family's own special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def build_network(family: str, *, tied: bool = False) -> Any:
    """A random network of a family; the vocabulary is padded by four rows, as releases do."""
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        LlavaConfig,
        LlavaForConditionalGeneration,
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
    )

    tokenizer = plain_tokenizer()
    image, text = tokenizer.token_to_id("<image>"), {**TEXT, "vocab_size": tokenizer.get_vocab_size() + 4}
    torch.manual_seed(3)
    idefics = {
        "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
        "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration),
    }
    if family in idefics:
        settings, network = idefics[family]
        config = settings(
            text_config=text, vision_config=VISION, scale_factor=2, image_token_id=image, pad_token_id=256,
            tie_word_embeddings=tied,
        )  # fmt: skip
        return network(config).eval()
    vision = {**VISION, "model_type": "clip_vision_model", "projection_dim": 32}
    return LlavaForConditionalGeneration(
        LlavaConfig(text_config=text, vision_config=vision, image_token_index=image)
    ).eval()


def write_model(directory: Path, family: str, *, tied: bool = False) -> Path:
    """A model directory without action tokens; returns it."""
    directory.mkdir(parents=True)
    build_network(family, tied=tied).save_pretrained(str(directory))
    plain_tokenizer().save(str(directory / "tokenizer.json"))
    scaling = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
    (directory / "preprocessor_config.json").write_text(json.dumps(scaling))
    return directory
