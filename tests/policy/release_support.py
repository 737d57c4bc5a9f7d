"""A checkpoint in the layout of a MolmoAct2 release, made from scratch: random weights, two heads, shards, tables.

`write_release` writes what a user would download, at a thousandth of the size: split embedding, fused projections, a
flow-matching expert, the rotary buffer, two normalisation tags, tokenizer, processor files, remote code (never run),
and a FAST artifact. Tests damage copies of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from policy_support import TASK
from safetensors.torch import save_file

from vla_rl.policy.fast import FastCodec
from vla_rl.policy.layout import native_config, stored_tensors
from vla_rl.policy.molmo2 import build_twin
from vla_rl.policy.tokenizer import build_tokenizer, save_tokenizer

TAG = "so100_so101_molmoact2"
WIDTH = 512  # of the action block, 2048 in the release
LAYERS, HIDDEN, EXPERT_WIDTH = 2, 64, 16
# The released state table in the v2.1 joint frame, rounded (described-system.md, section 5.6).
LOW_DEG = [-42.1, 45.2, 35.4, 4.9, -65.6, -0.3]
HIGH_DEG = [48.6, 186.1, 173.6, 93.4, 43.5, 44.8]


def release_config(tokenizer: Any) -> dict[str, Any]:
    """`config.json` in the release's own spelling: `vit_config`, `vit_layers`, a deeper tower than is stored."""
    token = tokenizer.token_to_id
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "float32_attention": True}
    return {
        "architectures": ["MolmoAct2ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_molmoact2.MolmoAct2Config"},
        "model_type": "molmoact2",
        "torch_dtype": "float32",
        "transformers_version": "4.57.6",
        "text_config": {
            "model_type": "molmoact2_text", "hidden_size": HIDDEN, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 32, "vocab_size": token("<im_start>"), "additional_vocab_size": 128, "qkv_bias": False,
            "num_hidden_layers": LAYERS, "intermediate_size": 96, "hidden_act": "silu", "embedding_dropout": 0.0,
            "attention_dropout": 0.0, "residual_dropout": 0.0, "max_position_embeddings": 1024, "rope_theta": 1000.0,
            "rope_scaling": None, "rope_scaling_layers": None, "use_qk_norm": True, "qk_norm_type": "qwen3",
            "layer_norm_eps": 1e-6, "norm_after": False, "initializer_range": 0.02, "use_cache": True,
            "tie_word_embeddings": False, "attn_implementation": "sdpa",
        },
        "vit_config": {
            "model_type": "molmoact2", **heads, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "image_default_input_size": [40, 40],
            "image_patch_size": 8, "image_num_pos": 25, "attention_dropout": 0.0, "residual_dropout": 0.0,
            "initializer_range": 0.02, "attn_implementation": "sdpa",
        },
        "adapter_config": {
            "model_type": "molmoact2", **heads, "vit_layers": [-2, -3], "pooling_attention_mask": True,
            "hidden_size": 64, "attention_dropout": 0.0, "residual_dropout": 0.0, "hidden_act": "silu",
            "intermediate_size": 96, "text_hidden_size": HIDDEN, "image_feature_dropout": 0.0,
            "initializer_range": 0.02, "attn_implementation": "sdpa",
        },
        "action_expert_config": {
            "model_type": "molmoact2_action_expert", "hidden_size": EXPERT_WIDTH, "num_layers": LAYERS, "num_heads": 2,
            "mlp_ratio": 4.0, "ffn_multiple_of": 16, "timestep_embed_dim": 16, "context_layer_norm": True,
        },
        "add_action_expert": True,
        "action_mode": "both",
        "state_format": "discrete",
        "n_obs_steps": 1,
        "max_action_dim": 32,
        "max_action_horizon": 30,
        "num_action_tokens": WIDTH,
        "action_token_start_id": token("<action_0>"),
        "action_start_token_id": token("<action_start>"),
        "action_end_token_id": token("<action_end>"),
        "action_output_token_id": token("<action_output>"),
        "num_state_tokens": 256,
        "state_token_start_id": token("<state_0>"),
        "state_start_token_id": token("<state_start>"),
        "state_end_token_id": token("<state_end>"),
        "add_setup_tokens": True,
        "add_control_tokens": True,
        "image_start_token_id": token("<im_start>"),
        "image_end_token_id": token("<im_end>"),
        "image_patch_id": token("<im_patch>"),
        "image_col_id": token("<im_col>"),
        "low_res_image_start_token_id": token("<low_res_im_start>"),
        "image_low_res_id": token("<im_low>"),
        "frame_start_token_id": token("<frame_start>"),
        "frame_end_token_id": token("<frame_end>"),
        "bos_token_id": token("<|im_end|>"),
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
        "norm_stats_filename": "norm_stats.json",
        "tie_word_embeddings": False,
    }  # fmt: skip


def expert_weights() -> dict[str, torch.Tensor]:
    """Random weights under the expert's released names."""
    generator, w, kv = torch.Generator().manual_seed(9), EXPERT_WIDTH, 32
    shapes: dict[str, tuple[int, ...]] = {"context_k_proj.weight": (w, kv), "context_v_proj.weight": (w, kv)}

    def linear(name: str, out: int, into: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (out, into), (out,)

    for name, out, into in (
        ("time_embed.1", w, 16), ("time_embed.3", w, w), ("action_embed", w, 32),
        ("final_layer.modulation.linear", 2 * w, w), ("final_layer.linear", 32, w),
    ):  # fmt: skip
        linear(name, out, into)
    for block in range(LAYERS):
        for name, out, into in (
            ("self_attn.qkv", 3 * w, w), ("self_attn.out_proj", w, w), ("cross_attn.q_proj", w, w),
            ("cross_attn.out_proj", w, w), ("mlp.up_proj", 4 * w, w), ("mlp.gate_proj", 4 * w, w),
            ("mlp.down_proj", w, 4 * w), ("modulation.linear", 9 * w, w),
        ):  # fmt: skip
            linear(f"blocks.{block}.{name}", out, into)
    return {f"model.action_expert.{n}": torch.randn(s, generator=generator) for n, s in shapes.items()}


def release_weights(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of the release, float32."""
    network = build_twin(native_config(config), seed=4)
    weights = {name: tensor.contiguous().clone() for name, tensor in stored_tensors(network)}
    theta = config["text_config"]["rope_theta"]
    rotary = 1.0 / theta ** (torch.arange(0, 32, 2, dtype=torch.float32) / 32)
    return {**weights, **expert_weights(), "model.transformer.rotary_emb.inv_freq": rotary}


def norm_stats(low: list[float], high: list[float]) -> dict[str, Any]:
    """Two tags, as a release has several; the second is another robot's."""

    def entry(low: list[float], high: list[float], horizon: int, setup: str) -> dict[str, Any]:
        table = {"q01": low, "q99": high, "mean": low, "std": high, "mask": [True] * len(low), "count": 1000}
        return {
            "action_key": "action", "state_keys": ["observation.state"], "camera_keys": [], "normalize_gripper": True,
            "action_dim": 32, "action_horizon": horizon, "n_action_steps": horizon, "setup_type": setup,
            "control_mode": "absolute joint pose", "action_stats": table, "state_stats": table,
        }  # fmt: skip

    tags = {
        "franka_test": entry([-1.0] * 7, [1.0] * 7, 15, "single franka robotic arm"),
        TAG: entry(low, high, 30, "single so100/so101 robotic arm in molmoact2"),
    }
    return {"format": "molmoact2_norm_stats.v1", "norm_mode": "q01_q99", "metadata_by_tag": tags}


def write_shards(directory: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    """One file, or several with an index."""
    if shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names, where = sorted(weights), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[i::shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    size = sum(w.numel() * w.element_size() for w in weights.values())
    index = {"metadata": {"total_size": size, "total_parameters": size // 4}, "weight_map": dict(sorted(where.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def write_release(directory: Path, codec: FastCodec, *, shards: int = 3) -> Path:
    """The whole directory; returns it."""
    directory.mkdir(parents=True)
    tokenizer = build_tokenizer(TASK, WIDTH)
    config = release_config(tokenizer)
    save_tokenizer(tokenizer, directory)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))
    (directory / "norm_stats.json").write_text(json.dumps(norm_stats(LOW_DEG, HIGH_DEG)))
    columns = {"image_use_col_tokens": True, "use_single_crop_col_tokens": False}
    processor = {"image_processor": {"crop_mode": "resize", "patch_size": 8, "size": {"height": 40, "width": 40}}}
    (directory / "processor_config.json").write_text(json.dumps({**processor, **columns}))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    (directory / "configuration_molmoact2.py").write_text("raise SystemExit('remote code ran')\n")
    write_shards(directory, release_weights(config), shards)
    codec.save(directory / "fast_tokenizer")
    return directory
