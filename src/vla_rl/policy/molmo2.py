"""The tiny twin of MolmoAct2's language model and its files.

In: an architecture and token ids. Out: a `Molmo2ForConditionalGeneration` of transformers in evaluation mode, and its
files. Weights are stored under the released key names (`vla_rl.policy.layout`), so a twin's directory reads like a
released one and `vla_rl.policy.released` loads both. A flow-matching expert is made elsewhere (`expert_files`) and only
written here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_rl.config.schema import TwinConfig
from vla_rl.policy.layout import stored_tensors
from vla_rl.policy.prompt import STATE_BINS
from vla_rl.policy.shardfiles import write_tensors
from vla_rl.policy.sources import CONFIG
from vla_rl.policy.tokenizer import IMAGE_TOKENS, PAD, TURN_END, TokenIds
from vla_rl.policy.weightfiles import MODEL


@dataclass(frozen=True)
class TwinArchitecture:
    """Sizes of a network. Attention heads are 32 wide, unless it is told otherwise.

    Attributes:
        image_px, patch_px: side of the square picture and of a patch; 2x2 patches become one image token.
        vision_width, vision_layers, vision_mlp: the vision transformer; the adapter pools its last and middle layer.
        text_width, text_layers, text_kv_heads, text_mlp: the decoder.
        adapter_mlp: hidden width of the projector from vision to text.
        rope_theta: base of the rotary positions; the release's 5e6 would leave most frequencies idle in 200 tokens.
        vision_head, text_head: width of an attention head.
        text_heads: of the decoder; as many as fit into its width, if 0.
        vision_read: layers of the vision transformer whose outputs the adapter pools; last and middle, if empty.
    """

    image_px: int
    patch_px: int
    vision_width: int
    vision_layers: int
    vision_mlp: int
    text_width: int
    text_layers: int
    text_kv_heads: int
    text_mlp: int
    adapter_mlp: int
    rope_theta: float
    vision_head: int = 32
    text_head: int = 32
    text_heads: int = 0
    vision_read: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: TwinConfig, *, image_px: int) -> TwinArchitecture:
        """The section `twin` of a configuration, for pictures of a given size."""
        return cls(image_px=image_px, **{f.name: getattr(config, f.name) for f in fields(TwinConfig)})


_CONTEXT = 1024


def twin_config(arch: TwinArchitecture, tokenizer: Any, ids: TokenIds, action_width: int) -> Any:
    """The transformers configuration of a twin, with the action and state ids of a release beside it."""
    from transformers import Molmo2Config

    vision_heads = arch.vision_width // arch.vision_head
    text_heads = arch.text_heads or arch.text_width // arch.text_head
    token = tokenizer.token_to_id
    heads = {"num_attention_heads": vision_heads, "num_key_value_heads": vision_heads, "head_dim": arch.vision_head}
    turn_end, pad = token(TURN_END), token(PAD)
    ends = {"bos_token_id": turn_end, "eos_token_id": turn_end, "pad_token_id": pad}
    text = {
        "hidden_size": arch.text_width,
        "num_hidden_layers": arch.text_layers,
        "num_attention_heads": text_heads,
        "num_key_value_heads": arch.text_kv_heads,
        "head_dim": arch.text_head,
        "intermediate_size": arch.text_mlp,
        "vocab_size": ids.base_size,
        "additional_vocab_size": len(IMAGE_TOKENS),
        "qk_norm_type": "qwen3",
        "max_position_embeddings": _CONTEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": arch.rope_theta},
        "tie_word_embeddings": False,
        **ends,
    }
    vision = {
        **heads,
        "hidden_size": arch.vision_width,
        "num_hidden_layers": arch.vision_layers,
        "intermediate_size": arch.vision_mlp,
        "image_size": [arch.image_px, arch.image_px],
        "patch_size": arch.patch_px,
        "hidden_act": "silu",  # the release's tanh-GELU costs a tenth of a CPU forward and buys nothing at this size
    }
    adapter = {
        **heads,
        "hidden_size": arch.vision_width,
        "intermediate_size": arch.adapter_mlp,
        "text_hidden_size": arch.text_width,
        "vision_feature_layer": list(arch.vision_read) or [arch.vision_layers - 1, arch.vision_layers // 2 - 1],
    }
    robot = {
        "action_mode": "discrete",
        "action_output_token_id": token("<action_output>"),
        "action_start_token_id": ids.action_start,
        "action_end_token_id": token("<action_end>"),
        "action_token_start_id": ids.action_block,
        "num_action_tokens": action_width,
        "state_format": "discrete",
        "state_start_token_id": token("<state_start>"),
        "state_end_token_id": token("<state_end>"),
        "state_token_start_id": ids.state_start,
        "num_state_tokens": STATE_BINS,
        "add_setup_tokens": True,
        "add_control_tokens": True,
        "n_obs_steps": 1,
        "norm_stats_filename": "norm_stats.json",
    }
    return Molmo2Config(
        text_config=text,
        vision_config=vision,
        adapter_config=adapter,
        image_start_token_id=token("<im_start>"),
        image_end_token_id=token("<im_end>"),
        image_patch_id=token("<im_patch>"),
        low_res_image_start_token_id=token("<low_res_im_start>"),
        frame_start_token_id=token("<frame_start>"),
        frame_end_token_id=token("<frame_end>"),
        tie_word_embeddings=False,
        **ends,
        **robot,
    )


def build_twin(config: Any, *, seed: int, device: str = "cpu") -> Any:
    """A network with fresh float32 weights that depend on `config`, `seed` and the kind of `device` alone; they are
    made there."""
    from transformers import Molmo2ForConditionalGeneration

    with torch.device(device):
        model = Molmo2ForConditionalGeneration(config)
    _initialise(model, seed)
    return model.eval()


@torch.no_grad()
def _initialise(model: Any, seed: int) -> None:
    """Matrices N(0, 1/fan_in), those that write into a residual stream divided by sqrt(2 * layers); tables N(0, 0.2).

    transformers' default of 0.02 leaves the pictures without effect on the logits (1e-6) in a network this narrow.
    """
    generator = torch.Generator(model.lm_head.weight.device).manual_seed(seed)

    def drawn(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, device=like.device)

    depth = {
        "vision_tower": model.config.vision_config.num_hidden_layers,
        "language_model": model.config.text_config.num_hidden_layers,
    }
    for name, weight in sorted(model.named_parameters()):
        if name.endswith("bias"):
            weight.zero_()
        elif weight.ndim == 1:
            weight.fill_(1.0)
        elif "embed" in name.split(".")[-2] and "patch" not in name or name.endswith("positional_embedding"):
            weight.copy_(drawn(weight) * 0.2)
        else:
            layers = next((n for part, n in depth.items() if part in name), None)
            writes = name.split(".")[-2] in ("o_proj", "down_proj", "fc2") and layers is not None
            gain = 1.0 / math.sqrt(2 * layers) if writes and layers else 1.0
            weight.copy_(drawn(weight) * (gain / math.sqrt(weight.shape[1])))


def save_model(model: Any, directory: Path, *, expert: Mapping[str, Tensor], more: Mapping[str, Any]) -> None:
    """Write `config.json` and the weights (float32, released key names), in shards if they need more than one file.

    Args:
        expert: tensors of an action expert under their stored names.
        more: what `config.json` has to say of it.
    """
    released = {k: v.to("cpu", torch.float32) for k, v in (*stored_tensors(model), *expert.items())}
    write_tensors(released, directory, MODEL, metadata={"format": "pt"})
    config = {
        **_stable(model.config.to_dict()),
        **more,
        "architectures": ["Molmo2ForConditionalGeneration"],
        "dtype": "float32",
    }
    (directory / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _stable(config: dict[str, Any]) -> dict[str, Any]:
    """Without what transformers notes about how an object came to be, so that equal models give equal files."""
    kept = {k: v for k, v in config.items() if k not in ("_name_or_path", "dtype")}
    return {k: _stable(v) if isinstance(v, dict) else v for k, v in kept.items()}
