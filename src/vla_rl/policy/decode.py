"""Prefill and one-token steps with a key-value cache of fixed size.

In: frames and state bins, then one action bin per row and step. Out: logits over the action block, or over everything
that the network can predict. The prefill runs transformers' modules (`vla_rl.policy.trunk`), once for rows with the
same prompt: the draws of one seed see the same first picture. A step does the same arithmetic on fused weights: in a
network this small, the modules' some 60 small operations a layer cost several times what the arithmetic does. Tests
hold both together.

On the CPU a step gives bit for bit what a teacher-forced pass over the whole stream gives, so that stored and
recomputed log-probabilities are equal; in float32 they would otherwise drift apart by 2e-5 in a trained twin. Four
things make it so: weights are concatenated but never multiplied into each other, a product is rounded before it is
added to the residual, every product has at least `ALIKE_ROWS` rows (MKL takes other kernels for 1 and 2), and
attention reads keys in whole vectors of `VECTOR` with the rest masked.

Nor may a row's numbers depend on its slot there. A matrix product that several threads share treats the rows of
its last, partial tile differently (MKL: steps of 5, 6, 7 and 10 rows on 2 threads; prefills of 2 or more rows on 3). So
steps run on one thread, where they are as fast at these sizes, and prefill goes in the groups of `prefill_rows`, all
of one size.

Shapes: R rows, U different prompts, H query heads, G key-value heads, L cached tokens, D text width, E head width, V
bins.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, rms_norm, scaled_dot_product_attention, silu

from vla_rl.policy.cached_forward import answer
from vla_rl.policy.projection import Projection
from vla_rl.policy.trunk import VECTOR, block_logits, prompt_embeddings, text_stack

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy

ALIKE_ROWS = 4  # fewest rows of a matrix product that round as any larger number of rows does


class DecodeCache:
    """Keys and values of every layer, [layer, R, G, L, E]; all rows stand at the same position.

    `update` answers the call that transformers' attention makes.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values, self.position = keys, values, 0

    def rows(self, rows: slice) -> DecodeCache:
        """The same memory, seen as a cache of some rows at position 0."""
        return DecodeCache(self.keys[:, rows], self.values[:, rows])

    def spread(self, source_R: Tensor, tokens: int) -> None:
        """Give row r the first `tokens` of row ``source_R[r]``."""
        for memory in (self.keys, self.values):
            memory[:, :, :, :tokens] = memory[:, source_R, :, :tokens]

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Write new tokens' keys and values [R, G, new, E]; return everything up to and with them."""
        end = self.position + keys.shape[2]
        self.keys[layer, :, :, self.position : end] = keys
        self.values[layer, :, :, self.position : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


@dataclass(frozen=True)
class _Layer:
    """Weights of one decoder layer for a step; projections of one input are concatenated, and the first half of the
    sine table is negated."""

    attention_norm_D: Tensor
    query_key_value: Projection
    query_key_norm_HE: Tensor
    out: Projection
    mlp_norm_D: Tensor
    gate_up: Projection
    down: Projection
    cos_LE: Tensor
    sin_LE: Tensor


class Decoder:
    """Runs a batch of rows from prompt to logits, token by token.

    Args:
        policy: its weights are read at every `prefill`.
        rows: number of rows that the cache has room for, R.
        unconstrained: see `vla_rl.policy.adapter.Adapter.decoder`.
    """

    def __init__(self, policy: VlaPolicy, rows: int, *, unconstrained: int | None = None) -> None:
        self.policy, self.rows = policy, rows
        self._columns, self._fed = answer(policy, unconstrained)
        text = policy.model.config.text_config
        self._heads, self._groups, self._width = text.num_attention_heads, text.num_key_value_heads, text.head_dim
        self._eps = text.rms_norm_eps
        length = -(-(policy.prompt.length + (unconstrained or policy.grammar.total)) // VECTOR) * VECTOR
        keys = policy.model.lm_head.weight.detach().new_zeros(
            text.num_hidden_layers, rows, self._groups, length, self._width
        )
        self._cache = DecodeCache(keys, torch.zeros_like(keys))
        self._layers: list[_Layer] = []

    def width(self, rows: int) -> int:
        """Rows to fill a batch of `rows` up to: on a CPU whole `ALIKE_ROWS`, which round alike; else all, R."""
        if torch.device(self.policy.device).type != "cpu" or self.rows % ALIKE_ROWS:
            return self.rows
        return min(-(-rows // ALIKE_ROWS) * ALIKE_ROWS, self.rows)

    def narrowed(self, rows: int) -> Decoder:
        """A decoder for the first `rows` rows of this one's cache."""
        if rows == self.rows:
            return self
        narrow = copy.copy(self)
        narrow.rows, narrow._cache = rows, self._cache.rows(slice(0, rows))
        return narrow

    def prefill(self, frames: Tensor, state_bins_UJ: Tensor, prompt_of_R: Sequence[int] | None = None) -> Tensor:
        """Read U prompts for R rows; logits of the first token, [R, V].

        Args:
            frames: uint8 [U, camera, height, width, 3].
            state_bins_UJ: integer [U, joint].
            prompt_of_R: which prompt each row has; by default row r has prompt r, and U is R.
        """
        policy, prompt, device = self.policy, self.policy.prompt, frames.device
        at_once, start = prefill_rows(self.rows, device.type), self._columns.start
        filled = torch.arange(-(-len(frames) // at_once) * at_once, device=device)
        filled[len(frames) :] = 0  # groups are always full, so that all have one shape
        last = []
        for group in filled.split(at_once):
            rows = slice(len(last) * at_once, (len(last) + 1) * at_once)
            embedded = prompt_embeddings(policy.model, prompt, frames[group], state_bins_UJ[group])
            hidden = text_stack(policy.model, prompt, embedded[:, : self._fed], self._cache.rows(rows))
            last.append(block_logits(policy.model, hidden[:, -1], start, self._columns.stop - start))
        logits = torch.cat(last)
        if prompt_of_R is not None:
            source_R = torch.tensor(prompt_of_R, device=device)
            self._cache.spread(source_R, self._fed)
            logits = logits[source_R]
        self._cache.position = self._fed
        self._read_weights(length=self._cache.keys.shape[3])
        return logits

    def step(self, chosen_R: Tensor) -> Tensor:
        """Feed one bin per row (one id, with the whole vocabulary); logits of the next, [R, V]."""
        hidden, cache = self._embedding[chosen_R], self._cache
        heads, groups, width, end = self._heads, self._groups, self._width, cache.position + 1
        padded, idle = -(-end // VECTOR) * VECTOR, max(0, ALIKE_ROWS - heads // groups)
        seen = hidden.new_zeros(1, 1, 1, padded)
        seen[..., end:] = float("-inf")
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            normed = _normed(hidden, layer.attention_norm_D, self._eps)
            projected = layer.query_key_value(normed).view(self.rows, heads + 2 * groups, width)
            turned = layer.query_key_norm_HE * _normed(projected[:, : heads + groups], None, self._eps)
            # The half that rotation negates has its sign in the table: (-x) s is x (-s), bit for bit.
            turned = turned * layer.cos_LE[end - 1] + turned.roll(width // 2, -1) * layer.sin_LE[end - 1]
            keys[:, :, end - 1] = turned[:, heads:]
            values[:, :, end - 1] = projected[:, heads + groups :]
            # Queries that share a key head become a query sequence, so keys need not be repeated.
            queries = pad(turned[:, :heads].view(self.rows, groups, heads // groups, width), (0, 0, 0, idle))
            read = scaled_dot_product_attention(queries, keys[:, :, :padded], values[:, :, :padded], attn_mask=seen)
            read = read[:, :, : heads // groups].reshape(self.rows, heads * width)
            hidden = hidden + layer.out(read)
            gate, up = layer.gate_up(_normed(hidden, layer.mlp_norm_D, self._eps)).chunk(2, dim=1)
            hidden = hidden + layer.down(silu(gate) * up)
        cache.position = end
        return linear(_normed(hidden, self._final_norm_D, self._eps), self._head).float()

    def _read_weights(self, length: int) -> None:
        model, columns = self.policy.model, self._columns
        text = model.model.language_model
        self._embedding = text.embed_tokens.weight[columns]
        self._head, self._final_norm_D = model.lm_head.weight[columns], text.norm.weight
        positions = torch.arange(length, device=self._head.device)[None]
        rotary = {"scaled": text.rotary_emb, "unscaled": text.rotary_emb_unscaled}
        tables = {kind: rotary[kind](self._head, position_ids=positions) for kind in set(text.rope_types)}
        self._layers = [
            self._fuse(layer, *tables[kind]) for layer, kind in zip(text.layers, text.rope_types, strict=True)
        ]

    def _fuse(self, layer: Any, cos: Tensor, sin: Tensor) -> _Layer:
        attention, mlp, half = layer.self_attn, layer.mlp, self._width // 2
        norms = [attention.q_norm.weight.expand(self._heads, -1), attention.k_norm.weight.expand(self._groups, -1)]
        return _Layer(
            attention_norm_D=layer.input_layernorm.weight,
            query_key_value=Projection.of(attention.q_proj, attention.k_proj, attention.v_proj),
            query_key_norm_HE=torch.cat(norms),
            out=Projection.of(attention.o_proj),
            mlp_norm_D=layer.post_attention_layernorm.weight,
            gate_up=Projection.of(mlp.gate_proj, mlp.up_proj),
            down=Projection.of(mlp.down_proj),
            cos_LE=cos[0],
            sin_LE=torch.cat((-sin[0][:, :half], sin[0][:, half:]), dim=1),
        )


def _normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, by the operations of the network's own: in float32, then back to the
    type of `x`, then times `weight`. torch's function does the same on a CPU in float32, with less overhead."""
    if x.dtype == torch.float32 and x.device.type == "cpu":
        return rms_norm(x, x.shape[-1:], weight, eps)
    wide = x.float()
    scaled = (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
    return scaled if weight is None else weight * scaled


def prefill_rows(rows: int, device: str) -> int:
    """Rows of a batch of `rows` that one prefill takes.

    On a CPU up to 4 with one or two threads, else 1. One row at a time cannot depend on its slot. On one or two threads
    the parts of 2 or 4 prompts come out even (tested bit for bit) and take two thirds of the time. On an accelerator a
    quarter of the batch, at least 8: few launches when all prompts differ, and three quarters saved when many agree.
    """
    if device == "cpu":
        most = 4 if torch.get_num_threads() <= 2 else 1
        return next(group for group in (4, 2, 1) if group <= most and rows % group == 0)
    return next(group for group in range(max(8, rows // 4), 0, -1) if rows % group == 0)


@contextmanager
def step_threads(device: str) -> Iterator[None]:
    """One intra-op thread while steps run on the CPU; see the module's docstring."""
    before = torch.get_num_threads()
    if torch.device(device).type != "cpu" or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
