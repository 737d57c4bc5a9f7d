"""A tiny checkpoint in the released layout for LeRobot to read: weights drawn by numpy, a tokenizer of Qwen's kind, an
excerpt of the released FAST artifact, and a head that writes one whole answer.

Unlike the fixture of the policy tests it is the same to the last bit on every machine, and other software can read
it: LeRobot builds the pre-tokenizer of Qwen2 by itself and takes only vocabulary and merges from the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parity_exchange import JOINT_OFFSETS, JOINT_SIGNS, TAG, TASKS
from policy_support import released_artifact
from release_support import HIGH_DEG, LOW_DEG, norm_stats, release_config, release_weights, write_shards
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from vla_rl.policy.fast import FastCodec
from vla_rl.policy.prompt import SO101, normalise_task, prompt_text
from vla_rl.policy.tokenizer import IMAGE_TOKENS, PAD, TURN_END, TURN_START, add_tokens, robot_families

WIDTH = 2048  # of the released action block
PX, PATCH = 40, 8
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def qwen_tokenizer() -> Tokenizer:
    """Qwen2's kind of byte-level BPE, trained on the prompts of this comparison; then the families of the release."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_QWEN_SPLIT), "isolated"), level])
    tok.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tok.train_from_iterator([prompt_text(normalise_task(task), [], image="") for task in TASKS[:2]], trainer)
    families = [PAD, TURN_START, TURN_END, *robot_families(WIDTH)]
    padding = -(tok.get_vocab_size() + len(families)) % 64
    add_tokens(tok, [*families, *(f"<extra_{i}>" for i in range(padding)), *IMAGE_TOKENS])
    return tok


def drawn_weights(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every tensor of the checkpoint, float32: random, of sizes at which nothing vanishes and nothing explodes."""
    rng, drawn = np.random.default_rng(20), {}
    for name, tensor in sorted(release_weights(config).items()):
        shape = tuple(tensor.shape)
        numbers = rng.standard_normal(shape, dtype=np.float32)
        if "inv_freq" in name:
            exponent = np.arange(0, 32, 2, dtype=np.float64) / 32
            numbers = (config["text_config"]["rope_theta"] ** -exponent).astype(np.float32)
        elif len(shape) == 1:
            numbers = np.float32(0.1) * numbers + np.float32("norm" in name or "ln_f" in name)
        elif "embedding" not in name.rsplit(".", 1)[-1]:
            numbers /= np.float32(np.sqrt(shape[-1]))
        drawn[name] = numbers
    return drawn


def answer_ids(tokenizer: Tokenizer, bins: Sequence[int]) -> list[int]:
    """A whole answer as the release writes it, with what it follows: from ``<action_output>`` to the end of turn."""
    names = ["<action_output>", "<action_start>", *(f"<action_{b}>" for b in bins), "<action_end>", TURN_END]
    return [tokenizer.token_to_id(name) for name in names]


def follow(head: np.ndarray, embedding: np.ndarray, ids: Sequence[int], *, strength: float) -> None:
    """Make each id of a sequence, all different, the likeliest successor of the one before: its row of the head leans
    towards the other's embedding."""
    assert len(set(ids)) == len(ids)
    for now, then in zip(ids, ids[1:], strict=False):
        head[then] += np.float32(strength) * embedding[now]


def unrepeated_answer(codec: FastCodec, seed: int) -> list[int]:
    """Bins of a whole chunk, none twice: six that say where the joints are on average, then quiet ones in any order."""
    rng = np.random.default_rng(seed)
    learned = np.flatnonzero(codec.lengths_V).tolist()
    levels = {b: [ord(symbol) + codec.alphabet.lowest for symbol in codec.bpe.decode([b])] for b in learned}
    quiet = [b for b, each in levels.items() if np.abs(each).max() <= 3]
    loud = [b for b, each in levels.items() if len(each) == 1 and 5 < np.abs(each[0]) < 40]
    while True:
        bins, left = rng.choice(loud, 6, replace=False).tolist(), codec.symbols - 6
        for b in rng.permutation(quiet).tolist():
            if len(levels[b]) <= left:
                bins.append(b)
                left -= len(levels[b])
        if not left:
            return bins


def small_files(directory: Path, tokenizer: Tokenizer, config: dict[str, Any], tables: dict[str, Any]) -> None:
    """Everything but weights and codec."""
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    processor = {
        "image_processor": {
            "image_processor_type": "MolmoAct2ImageProcessor", "crop_mode": "resize", "patch_size": PATCH,
            "size": {"height": PX, "width": PX}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2,
            "pooling_size": [2, 2], "do_convert_rgb": True, "max_crops": 8, "overlap_margins": [4, 4],
        },
        "image_use_col_tokens": True, "use_single_crop_col_tokens": False, "use_single_crop_start_token": True,
        "video_use_col_tokens": False, "use_frame_special_tokens": True, "processor_class": "MolmoAct2Processor",
    }  # fmt: skip
    words = {
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": TURN_END, "pad_token": PAD,
        "padding_side": "left", "clean_up_tokenization_spaces": False, "add_prefix_space": False,
    }  # fmt: skip
    bodies = {"config": config, "norm_stats": tables, "processor_config": processor, "tokenizer_config": words}
    for name, body in bodies.items():
        (directory / f"{name}.json").write_text(json.dumps(body, indent=2))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))
    (directory / "configuration_molmoact2.py").write_text("raise SystemExit('remote code ran')\n")


def write_release(root: Path) -> None:
    """`release`, a whole checkpoint, and the small files of two others that differ in their tables alone."""
    tokenizer = qwen_tokenizer()
    config = {**release_config(tokenizer), "num_action_tokens": WIDTH}
    low, high = np.array(LOW_DEG), np.array(HIGH_DEG)
    signs, offsets = np.array(JOINT_SIGNS), np.array(JOINT_OFFSETS)
    for name, state in {
        "release": (low, high),
        "tables_rig": (
            np.array([-42.1, -96.1, -54.6, 4.9, -65.6, -0.3]),
            np.array([48.6, 44.8, 83.6, 93.4, 43.5, 44.8]),
        ),
        "tables_mapped": (signs * (low - offsets), signs * (high - offsets)),
    }.items():
        small_files(root / name, tokenizer, config, tables(*state))
    weights = drawn_weights(config)
    codec = FastCodec.load(released_artifact(root / "release" / "fast_tokenizer"), horizon=30, dim=6)
    ids = answer_ids(tokenizer, unrepeated_answer(codec, 1))
    follow(weights["lm_head.weight"], weights["model.transformer.wte.embedding"], ids, strength=0.25)
    write_shards(root / "release", {name: torch.from_numpy(numbers) for name, numbers in weights.items()}, 3)


def tables(low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """Tables of two robots; actions of ours reach a little further than its states."""
    body = norm_stats(low.tolist(), high.tolist())
    entry = body["metadata_by_tag"][TAG]
    reach = 0.03 * (high - low)
    entry["action_stats"] = {**entry["action_stats"], "q01": (low - reach).tolist(), "q99": (high + reach).tolist()}
    assert entry["setup_type"] == SO101.setup
    return body
