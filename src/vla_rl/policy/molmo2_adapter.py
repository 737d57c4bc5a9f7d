"""The adapter of Molmo2-layout networks: prompt geometry, teacher-forced logits, cached steps.

In: a `VlaPolicy` around a native `Molmo2ForConditionalGeneration`. Out: what `vla_rl.policy.adapter.Adapter` promises.
The arithmetic is in `vla_rl.policy.trunk` and `vla_rl.policy.decode`; networks of the family that differ from the
release (normalisation after a block, over whole queries, biases) step through their own forward instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vla_rl.policy.adapter import StepDecoder
from vla_rl.policy.cached_forward import CachedForward
from vla_rl.policy.decode import Decoder, cache_shape
from vla_rl.policy.expert_files import expert_config, expert_tensors
from vla_rl.policy.layout import stored_tensors
from vla_rl.policy.molmo2 import save_model
from vla_rl.policy.tokenizer import TokenIds, build_layout
from vla_rl.policy.trunk import PromptTensors, action_logits, feedable
from vla_rl.policy.vision import batch_pooling_index, pack_frames

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy


class Molmo2Adapter:
    """Molmo2: pictures as patches that attend to each other both ways, features added to the patch embeddings."""

    text_parameters = ("model.language_model.", "lm_head.")
    can_recompute = True
    token_tables = ("model.language_model.embed_tokens.weight", "lm_head.weight")

    def prompt(self, policy: VlaPolicy) -> PromptTensors:
        vision = policy.model.config.vision_config
        image_px, patch_px = vision.image_size[0], vision.patch_size
        per_image = (-(-(image_px // patch_px) // 2)) ** 2
        ids = TokenIds.of(policy.tokenizer, policy.vocabulary)
        layout = build_layout(
            policy.tokenizer, policy.task, tokens_per_image=per_image, action_width=policy.vocabulary,
            wording=policy.wording,
        )  # fmt: skip
        return PromptTensors.of(layout, ids, image_px=image_px, patch_px=patch_px, device=policy.device)

    def inputs(self, policy: VlaPolicy, frames: Tensor, state_bins_BJ: Tensor) -> dict[str, Tensor]:
        prompt = policy.prompt
        ids = prompt.prompt_ids(state_bins_BJ)
        patches = pack_frames(frames, image_px=prompt.image_px, patch_px=prompt.patch_px)
        side = round(prompt.pooling_I4.shape[0] ** 0.5)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": prompt.block_P.long().expand(len(ids), -1),
            "pixel_values": patches,
            "image_token_pooling": batch_pooling_index(prompt.pooling_I4, *patches.shape[:2]),
            "image_grids": torch.tensor([[side, side, 0, 0]] * len(patches), device=policy.device),
            "image_num_crops": torch.ones(len(patches), dtype=torch.long, device=policy.device),
        }

    def logits(self, policy: VlaPolicy, frames: Tensor, state_bins_BJ: Tensor, bins_BT: Tensor) -> Tensor:
        return action_logits(
            policy.model, policy.prompt, policy.vocabulary, frames, state_bins_BJ, bins_BT, recompute=policy.recompute
        )

    def fed_ids(self, policy: VlaPolicy) -> Tensor:
        return feedable(policy.prompt.template_P, policy.prompt.ids, policy.vocabulary)

    def decoder(self, policy: VlaPolicy, rows: int, *, unconstrained: int | None = None) -> StepDecoder:
        """The fused decoder, or the network's own forward where its layers differ from the release's."""
        text = policy.model.config.text_config
        plain = text.qk_norm_type == "qwen3" and not text.norm_after and not text.attention_bias
        fused = plain and text.hidden_act == "silu"
        return (Decoder if fused else CachedForward)(policy, rows, unconstrained=unconstrained)

    def cached_numbers(self, policy: VlaPolicy, rows: int, unconstrained: int | None) -> int:
        return 2 * prod(cache_shape(policy, rows, unconstrained))

    def stored_tensors(self, model: Any) -> Iterator[tuple[str, Tensor]]:
        return stored_tensors(model)

    def save_network(self, policy: VlaPolicy, directory: Path) -> None:
        save_model(policy.model, directory, expert=dict(expert_tensors(policy)), more=expert_config(policy))

    def parameters(self) -> None:
        return None
