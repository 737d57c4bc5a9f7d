"""What tests of the policy share: a very small twin (under 0.5 M parameters), smooth random chunks, pictures, and an
excerpt of the released FAST artifact."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import pre_tokenizers

from vla_rl.policy.molmo2 import TwinArchitecture

TASK = "Pick up the toy boat and place it on the wooden disk."
MINI = TwinArchitecture(
    image_px=48, patch_px=8, vision_width=64, vision_layers=2, vision_mlp=128, text_width=96, text_layers=2,
    text_kv_heads=1, text_mlp=128, adapter_mlp=96, rope_theta=1000.0,
)  # fmt: skip


def smooth_chunks(count: int, seed: int) -> np.ndarray:
    """Joint targets in degrees [count, 30, 6]: an offset, a ramp and a wave a joint."""
    rng = np.random.default_rng(seed)
    t = np.arange(30)[None, :, None] / 30
    offset, slope, wave = (rng.normal(0, s, (count, 1, 6)) for s in (20, 25, 6))
    return offset + slope * t + wave * np.sin(3 * t + rng.uniform(0, 6, (count, 1, 6)))


def picture(rng: np.random.Generator) -> np.ndarray:
    """Two camera frames uint8 [2, 48, 48, 3]: a coloured rectangle on a plain ground."""
    frames = np.full((2, 48, 48, 3), 1, dtype=np.uint8) * rng.integers(0, 256, (2, 1, 1, 3), dtype=np.uint8)
    for frame in frames:
        y, x = rng.integers(0, 32, 2)
        frame[y : y + 16, x : x + 12] = rng.integers(0, 256, 3)
    return frames


# Facts of the released artifact (allenai/MolmoAct2-FAST-Tokenizer, 1,005 ids): raw code points 0 to 121 are ids 0 to
# 121, the 26 byte-level characters that its training data showed follow, then merges. The merges here are those that
# its own stream RELEASED_STREAM needs, under their own ids.
RELEASED_HOLES = (3, 9, 12, 14, 19, 22, 27)
RELEASED_STREAM = (
    63, 51, 57, 50, 53, 58, 50, 59, 230, 58, 51, 306, 149, 268, 174, 174, 56, 161, 56, 157, 56, 161, 200, 152, 148, 54,
    150, 149, 148, 54, 213,
)  # fmt: skip
_ZEROS = ((148, 1, 1), (149, 2, 2), (150, 4, 4), (151, 8, 8), (152, 16, 16), (153, 32, 32), (155, 16, 8), (157, 2, 1))
_MERGES = (
    *((number, "7" * left, "7" * right) for number, left, right in (*_ZEROS, (164, 24, 3), (213, 64, 27))),
    (161, "7", "6"), (166, "7", "8"), (168, "6", "6"), (172, "6", "8"), (174, "8", "8"), (180, "6", "7"),
    (185, "8", "78"), (192, "7", "5"), (197, "6", "76"), (200, "77", "8"), (204, "5", "7"), (214, "777", "6"),
    (230, "5", "6"), (233, "6", "7777"), (268, "6", "78"), (306, "78", "8"),
)  # fmt: skip


def released_artifact(directory: Path) -> Path:
    """Write the excerpt in the release's files: 174 of its ids in a block of 2,048."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    shown = [level.pre_tokenize_str(chr(code))[0][0] for code in range(33) if code not in RELEASED_HOLES]
    merges = sorted(_MERGES)
    vocab = {piece: number for number, piece in enumerate([*map(chr, range(122)), *shown])}
    vocab |= {left + right: number for number, left, right in merges}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [[left, right] for _, left, right in merges]},
    }  # fmt: skip
    config = {
        "action_dim": None, "auto_map": {"AutoProcessor": "processing_action_tokenizer.UniversalActionProcessor"},
        "min_token": -55, "processor_class": "UniversalActionProcessor", "scale": 10, "time_horizon": None,
        "vocab_size": 2048,
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "processor_config.json").write_text(json.dumps(config, indent=2))
    return directory
