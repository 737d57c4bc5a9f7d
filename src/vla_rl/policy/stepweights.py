"""The weights of a one-token step, and the arithmetic between cache and logits.

In: a Molmo2 policy as it is now. Out: `StepWeights`, whose methods do a layer, an attention and the head on plain
tensors. Left out: the cache, and how a step is run (`vla_rl.policy.decode`, `vla_rl.policy.graphed`).

Shapes: R rows, H query heads, G key-value heads, L cached tokens, D text width, E head width, V bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, rms_norm, scaled_dot_product_attention, silu

from vla_rl.policy.projection import Projection

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one decoder layer for a step; the first half of the sine table is negated."""

    attention_norm_D: Tensor
    query_key_value: Projection
    query_key_norm_HE: Tensor
    out: Projection
    mlp_norm_D: Tensor
    gate_up: Projection
    down: Projection
    cos_LE: Tensor
    sin_LE: Tensor

    @classmethod
    def of(cls, layer: Any, config: Any, cos: Tensor, sin: Tensor, *, fused: bool) -> LayerWeights:
        """Of a layer of transformers' text stack, with its rotary tables [1, L, E]; `fused`: projections of one input
        are one matrix."""
        attention, mlp, half = layer.self_attn, layer.mlp, config.head_dim // 2
        norms = [
            attention.q_norm.weight.expand(config.num_attention_heads, -1),
            attention.k_norm.weight.expand(config.num_key_value_heads, -1),
        ]
        return cls(
            attention_norm_D=layer.input_layernorm.weight,
            query_key_value=Projection.of(attention.q_proj, attention.k_proj, attention.v_proj, fused=fused),
            query_key_norm_HE=torch.cat(norms),
            out=Projection.of(attention.o_proj, fused=fused),
            mlp_norm_D=layer.post_attention_layernorm.weight,
            gate_up=Projection.of(mlp.gate_proj, mlp.up_proj, fused=fused),
            down=Projection.of(mlp.down_proj, fused=fused),
            cos_LE=cos[0],
            sin_LE=torch.cat((-sin[0][:, :half], sin[0][:, half:]), dim=1),
        )

    def tensors(self) -> list[Tensor]:
        """All of them, in one order."""
        norms = [self.attention_norm_D, self.query_key_norm_HE, self.mlp_norm_D, self.cos_LE, self.sin_LE]
        projections = (self.query_key_value, self.out, self.gate_up, self.down)
        return norms + [tensor for projection in projections for tensor in projection.tensors()]

    def made(self) -> list[Tensor]:
        """Those that are no weights of the network even where nothing is fused."""
        return [self.query_key_norm_HE, self.cos_LE, self.sin_LE]

    def form(self) -> tuple[Any, ...]:
        """What the layer does beside its numbers; see `Projection.form`."""
        projections = (self.query_key_value, self.out, self.gate_up, self.down)
        return (self.cos_LE.shape, *(projection.form() for projection in projections))


@dataclass(frozen=True)
class StepWeights:
    """All that a one-token step reads: rows of the embedding and the head, the last norm, the layers, and numbers.

    Fused, projections of one input are one matrix: fewer products, and a copy of the network.
    """

    embedding: Tensor
    head: Tensor
    final_norm_D: Tensor
    layers: tuple[LayerWeights, ...]
    heads: int
    groups: int
    width: int
    eps: float
    fused: bool

    @classmethod
    def of(cls, policy: VlaPolicy, columns: slice, length: int, *, fused: bool) -> StepWeights:
        """As they are now, in a policy of Molmo2.

        Args:
            columns: the ids that a step can feed and predicts.
            length: positions that there are.
            fused: see the class.
        """
        model = policy.model
        text, config = model.model.language_model, model.config.text_config
        positions = torch.arange(length, device=model.lm_head.weight.device)[None]
        rotary = {"scaled": text.rotary_emb, "unscaled": text.rotary_emb_unscaled}
        tables = {kind: rotary[kind](model.lm_head.weight, position_ids=positions) for kind in set(text.rope_types)}
        return cls(
            embedding=text.embed_tokens.weight[columns],
            head=model.lm_head.weight[columns],
            final_norm_D=text.norm.weight,
            layers=tuple(
                LayerWeights.of(layer, config, *tables[kind], fused=fused)
                for layer, kind in zip(text.layers, text.rope_types, strict=True)
            ),
            heads=config.num_attention_heads,
            groups=config.num_key_value_heads,
            width=config.head_dim,
            eps=config.rms_norm_eps,
            fused=fused,
        )

    def tensors(self) -> list[Tensor]:
        """All of them, in one order."""
        return [self.embedding, self.head, self.final_norm_D, *(t for layer in self.layers for t in layer.tensors())]

    def own(self) -> list[bool]:
        """Which of them are the network's own, at the places where it keeps them; in the same order."""
        made = {id(tensor) for layer in self.layers for tensor in layer.made()}
        return [not self.fused and id(tensor) not in made for tensor in self.tensors()]

    def form(self) -> tuple[Any, ...]:
        """Equal for weights that differ in their numbers alone, adapters included."""
        sizes = (
            self.fused,
            self.heads,
            self.groups,
            self.width,
            self.eps,
            self.embedding.shape,
            self.head.shape,
            self.head.dtype,
        )
        return (*sizes, *(layer.form() for layer in self.layers))

    def layer(
        self, layer: LayerWeights, hidden: Tensor, cos_E: Tensor, sin_E: Tensor, attend: Callable[..., Tensor]
    ) -> Tensor:
        """Hidden states [R, D] after one layer.

        Args:
            cos_E, sin_E: of this token's position.
            attend: given queries [R, H, E], keys and values [R, G, E] of this token; what attention reads, [R, H * E].
        """
        heads, groups, width = self.heads, self.groups, self.width
        projected = layer.query_key_value(normed(hidden, layer.attention_norm_D, self.eps))
        projected = projected.view(-1, heads + 2 * groups, width)
        turned = layer.query_key_norm_HE * normed(projected[:, : heads + groups], None, self.eps)
        # The half that rotation negates has its sign in the table: (-x) s is x (-s), bit for bit.
        turned = turned * cos_E + turned.roll(width // 2, -1) * sin_E
        hidden = hidden + layer.out(attend(turned[:, :heads], turned[:, heads:], projected[:, heads + groups :]))
        gate, up = layer.gate_up(normed(hidden, layer.mlp_norm_D, self.eps)).chunk(2, dim=1)
        return hidden + layer.down(silu(gate) * up)

    def read(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, idle: int = 0) -> Tensor:
        """Attention of one token a row, [R, H * E]; queries that share a key head become a query sequence, so that keys
        need not be repeated. `idle` more of them make the product as large as one that rounds alike.

        In float32 on CUDA torch's kernel takes 11 to 17 us a layer longer than the products that it is made of (64 and
        128 rows, one H200).
        """
        if queries.is_cuda and queries.dtype == torch.float32:
            return self.read_by_products(queries, keys, values, seen)
        shared = self.heads // self.groups
        asked = pad(queries.reshape(-1, self.groups, shared, self.width), (0, 0, 0, idle))
        read = scaled_dot_product_attention(asked, keys, values, attn_mask=seen)
        return read[:, :, :shared].reshape(-1, self.heads * self.width)

    def read_by_products(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """What `read` gives, by two batched products and a softmax."""
        asked = queries.reshape(-1, self.heads // self.groups, self.width)
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        scores = torch.baddbmm(seen[0], asked, keys.transpose(1, 2), alpha=self.width**-0.5)
        return torch.bmm(scores.softmax(-1), values).view(-1, self.heads * self.width)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 [R, V]."""
        return linear(normed(hidden, self.final_norm_D, self.eps), self.head).float()


def normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, by the operations of the network's own: in float32, then back to the
    type of `x`, then times `weight`. torch's function does the same in float32, on a CPU bit for bit, with less
    overhead."""
    if x.dtype == torch.float32:
        return rms_norm(x, x.shape[-1:], weight, eps)
    wide = x.float()
    scaled = (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
    return scaled if weight is None else weight * scaled
