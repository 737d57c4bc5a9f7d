"""The forward pass of a Molmo2 policy, without the parts that do not batch.

In: a native `Molmo2ForConditionalGeneration`, a fixed prompt layout, frames and state bins as tensors. Out: hidden
states of the action tokens and their logits over the action block. Every weight is applied by transformers' own
modules (so adapters wrapped around a projection work); what is replaced is the glue between them, which in
`model.forward` synchronises with the GPU four times a call (list of split sizes, two boolean gathers, a masked
scatter) and builds masks anew. Tests hold the result equal to `model.forward`. No loss, no sampling, no text head.

Shapes: B rows, C cameras, P prompt tokens, T action tokens, L tokens in the text stack, D text width, J joints, V
bins, N = B * C pictures, I image tokens per picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vla_rl.policy.prompt import STATE_BINS
from vla_rl.policy.rowgradients import read_rows
from vla_rl.policy.tokenizer import PromptLayout, TokenIds
from vla_rl.policy.vision import pack_frames, pooling_index

VECTOR = 8  # float32 numbers in a vector register of the narrowest processor supported (AVX2)


@dataclass(frozen=True)
class PromptTensors:
    """A prompt layout and the picture geometry as tensors on the model's device."""

    template_P: Tensor
    block_P: Tensor
    state_slots_J: Tensor
    image_slots: Tensor
    pooling_I4: Tensor
    ids: TokenIds
    image_px: int
    patch_px: int

    @classmethod
    def of(cls, layout: PromptLayout, ids: TokenIds, *, image_px: int, patch_px: int, device: str) -> PromptTensors:
        """Move a layout to `device`."""
        return cls(
            template_P=torch.from_numpy(layout.template_P).to(device),
            block_P=torch.from_numpy(layout.block_P).to(device),
            state_slots_J=torch.from_numpy(layout.state_slots_J).to(device),
            image_slots=torch.from_numpy(layout.image_slots_I).to(device),
            pooling_I4=pooling_index(image_px=image_px, patch_px=patch_px).to(device),
            ids=ids,
            image_px=image_px,
            patch_px=patch_px,
        )

    @property
    def length(self) -> int:
        """Prompt tokens, P, the fed ``<action_start>`` included."""
        return self.template_P.shape[0]

    def prompt_ids(self, state_bins_BJ: Tensor) -> Tensor:
        """Token ids int64 [B, P] of prompts that differ in their state bins only."""
        return filled_prompts(self.template_P, self.state_slots_J, state_bins_BJ, self.ids)

    def attention_mask(self, length: int) -> Tensor:
        """Bool [1, 1, length, length]: causal, and both ways among picture tokens. Action tokens follow the prompt."""
        block = nn.functional.pad(self.block_P, (0, length - self.length))
        causal = torch.ones(length, length, dtype=torch.bool, device=block.device).tril()
        return (causal | (block[:, None] & block[None, :]))[None, None]


def filled_prompts(template_P: Tensor, state_slots_J: Tensor, state_bins_BJ: Tensor, ids: TokenIds) -> Tensor:
    """Token ids int64 [B, P]: the template with the state bins of each row in their slots."""
    prompts = template_P.expand(state_bins_BJ.shape[0], -1).clone()
    prompts[:, state_slots_J] = state_bins_BJ.long() + ids.state_start
    return prompts


def feedable(template_P: Tensor, ids: TokenIds, width: int) -> Tensor:
    """Sorted ids that such a prompt or a stream after it can hold; the action block has `width` of them."""
    families = ((ids.state_start, STATE_BINS), (ids.action_block, width))
    ranges = [torch.arange(first, first + count, device=template_P.device) for first, count in families]
    return torch.cat([template_P, *ranges]).unique()


def image_tokens(model: Any, patches_NPF: Tensor, pooling_I4: Tensor) -> Tensor:
    """Text-width features of every image token, [N, I, D]: vision tower, 2x2 attention pooling, projector."""
    tower, adapter = model.model.vision_tower, model.model.multi_modal_projector
    hidden = tower.patch_embedding(patches_NPF.to(tower.positional_embedding.dtype))
    hidden = hidden + tower.positional_embedding.to(hidden.dtype)
    wanted = [layer % len(tower.layers) for layer in model.config.adapter_config.vision_feature_layer]
    outputs: dict[int, Tensor] = {}
    for i, layer in enumerate(tower.layers[: max(wanted) + 1]):
        hidden = layer(hidden, None)
        outputs[i] = hidden
    features = torch.cat([outputs[i] for i in wanted], dim=-1)
    valid = pooling_I4 >= 0
    window = features[:, pooling_I4.clamp(min=0)] * valid[..., None].to(features.dtype)
    query = window.sum(-2, keepdim=True) / valid.sum(-1).clamp(min=1).to(features.dtype)[:, None, None]
    shown = valid.repeat(len(window), 1)[:, None, None, :]
    pooled, _ = adapter.image_pooling_2d(query.flatten(0, 1), window.flatten(0, 1), attention_mask=shown)
    return adapter.image_projector(pooled.squeeze(1)).unflatten(0, window.shape[:2])


def prompt_embeddings(model: Any, prompt: PromptTensors, frames: Tensor, state_bins_BJ: Tensor) -> Tensor:
    """Input embeddings [B, P, D] of the prompts, with picture features added at the patch tokens.

    Args:
        frames: uint8 [B, C, height, width, 3].
        state_bins_BJ: integer [B, J].
    """
    patches = pack_frames(frames, image_px=prompt.image_px, patch_px=prompt.patch_px)
    features = image_tokens(model, patches, prompt.pooling_I4)
    embedded = model.model.language_model.embed_tokens(prompt.prompt_ids(state_bins_BJ))
    features = features.reshape(len(embedded), -1, embedded.shape[-1]).to(embedded.dtype)
    return embedded.index_add(1, prompt.image_slots, features)


def text_stack(
    model: Any, prompt: PromptTensors, embedded: Tensor, cache: Any | None = None, *, recompute: bool = False
) -> Tensor:
    """Decoder layers over a whole sequence of embeddings [B, L, D]; the result is before the final norm.

    The sequence is padded on the right to whole vectors, so that a token's attention rounds alike whatever the length
    of the sequence and in one-token steps (`vla_rl.policy.decode`); nothing looks at the padding.

    Args:
        cache: anything with the `update` method of a transformers cache; it sees the padding too.
        recompute: keep a layer's input alone for the backward pass, and compute the rest again there; not with a cache,
            which would be written twice.
    """
    text, length = model.model.language_model, embedded.shape[1]
    embedded = nn.functional.pad(embedded, (0, 0, 0, -length % VECTOR))
    mask = prompt.attention_mask(embedded.shape[1])
    positions = torch.arange(embedded.shape[1], device=embedded.device)[None]
    tables: dict[str, Callable] = {"scaled": text.rotary_emb, "unscaled": text.rotary_emb_unscaled}
    rotary = {kind: tables[kind](embedded, position_ids=positions) for kind in set(text.rope_types)}
    hidden = embedded
    for layer, kind in zip(text.layers, text.rope_types, strict=True):
        how = {"attention_mask": mask, "position_embeddings": rotary[kind]}
        if recompute and cache is None and torch.is_grad_enabled():
            hidden = checkpoint(layer, hidden, use_reentrant=False, preserve_rng_state=False, **how)
        else:
            hidden = layer(hidden, **how, cache=cache)
    return hidden[:, :length]


def block_logits(model: Any, hidden: Tensor, block_start: int, width: int) -> Tensor:
    """Logits over the action block only, float32 [..., V], of hidden states before the final norm."""
    normed = model.model.language_model.norm(hidden)
    rows = read_rows(model.lm_head.weight, slice(block_start, block_start + width))
    # A likelihood is a small difference of logits: they are not rounded to the format of a mixed pass.
    with torch.autocast(normed.device.type, enabled=False):
        return nn.functional.linear(normed, rows).float()


def action_logits(
    model: Any,
    prompt: PromptTensors,
    width: int,
    frames: Tensor,
    state_bins_BJ: Tensor,
    bins_BT: Tensor,
    *,
    recompute: bool = False,
) -> Tensor:
    """Teacher-forced logits of every action token, float32 [B, T, V].

    Tokens only see what stands before them, so right padding of `bins_BT` (any bin) changes nothing before it.

    Args:
        frames: uint8 [B, C, height, width, 3].
        state_bins_BJ: integer [B, J].
        bins_BT: integer [B, T], the streams; the last column is predicted but not fed.
        recompute: see `text_stack`.
    """
    embedded = prompt_embeddings(model, prompt, frames, state_bins_BJ)
    fed = model.model.language_model.embed_tokens(bins_BT[:, :-1].long() + prompt.ids.action_block)
    sequence = torch.cat([embedded, fed.to(embedded.dtype)], dim=1)
    hidden = text_stack(model, prompt, sequence, recompute=recompute)
    return block_logits(model, hidden[:, prompt.length - 1 :], prompt.ids.action_block, width)
