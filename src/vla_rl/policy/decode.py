"""Prefill and one-token steps with a key-value cache of fixed size.

In: frames and state bins, then one action bin per row and step. Out: logits over the action block, or over everything
that the network can predict. The prefill runs transformers' modules (`vla_rl.policy.trunk`), once for rows with the
same prompt: the draws of one seed see the same first picture. A step does the same arithmetic on fused weights: in a
network this small, the modules' some 60 small operations a layer cost several times what the arithmetic does. Tests
hold both together. Above `FUSED_BYTES` weights are not fused, because fused ones are a copy.

On the CPU a step gives bit for bit what a teacher-forced pass over the whole stream gives, so that stored and
recomputed log-probabilities are equal; in float32 they would otherwise drift apart by 2e-5 in a trained twin. Four
things make it so: weights are concatenated but never multiplied into each other, a product is rounded before it is
added to the residual, every product has at least `ALIKE_ROWS` rows (MKL takes other kernels for 1 and 2), and
attention reads keys in whole vectors of `VECTOR` with the rest masked.

Nor may a row's numbers depend on its slot there. A matrix product that several threads share treats the rows of
its last, partial tile differently (MKL: steps of 5, 6, 7 and 10 rows on 2 threads; prefills of 2 or more rows on 3). So
steps run on one thread, where they are as fast at these sizes, and prefill goes in the groups of `prefill_rows`, all
of one size.

On CUDA steps are one graph each (`vla_rl.policy.graphed`): there the host takes longer to start hundreds of kernels
than the GPU to run them.

Shapes: R rows, U different prompts, H query heads, G key-value heads, L cached tokens, D text width, E head width, V
bins.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vla_rl.policy.cached_forward import answer
from vla_rl.policy.graphed import StepGraph
from vla_rl.policy.stepweights import StepWeights
from vla_rl.policy.trunk import VECTOR, block_logits, prompt_embeddings, text_stack

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy

BUSY_TOKENS = 4096  # of a prefill: fewer leave an accelerator waiting for the host
FUSED_BYTES = 256 * 2**20  # of the text layers
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
        keys = policy.model.lm_head.weight.detach().new_zeros(cache_shape(policy, rows, unconstrained))
        self._cache = DecodeCache(keys, torch.zeros_like(keys))
        layers = policy.model.model.language_model.layers
        self._fused = sum(p.nbytes for p in layers.parameters()) <= FUSED_BYTES
        self._weights: StepWeights | None = None
        self._graph: StepGraph | None = None
        self._graphed = self._cache.keys.is_cuda

    @property
    def nbytes(self) -> int:
        """Of the cache."""
        return 2 * self._cache.keys.nbytes

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
        at_once, start = prefill_rows(self.rows, device.type, self._fed), self._columns.start
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
        self._weights = StepWeights.of(policy, self._columns, length=self._cache.keys.shape[3], fused=self._fused)
        if self._graphed:
            self._graph = StepGraph.for_step(self._graph, self._weights, self._cache)
            self._graphed = self._graph is not None  # it would fail at every prompt
        return logits

    def step(self, chosen_R: Tensor) -> Tensor:
        """Feed one bin per row (one id, with the whole vocabulary); logits of the next, [R, V].

        On CUDA they are overwritten by the next step.
        """
        if self._graph is not None:
            return self._graph.step(chosen_R)
        weights, cache = self._weights, self._cache
        assert weights is not None, "the prompt comes first"
        hidden, end = weights.embedding[chosen_R], cache.position + 1
        padded, idle = -(-end // VECTOR) * VECTOR, max(0, ALIKE_ROWS - weights.heads // weights.groups)
        seen = hidden.new_zeros(1, 1, 1, padded)
        seen[..., end:] = float("-inf")
        for layer, keys, values in zip(weights.layers, cache.keys, cache.values, strict=True):
            attend = partial(self._attend, keys, values, seen, idle)
            hidden = weights.layer(layer, hidden, layer.cos_LE[end - 1], layer.sin_LE[end - 1], attend)
        cache.position = end
        return weights.logits(hidden)

    def _attend(
        self, keys: Tensor, values: Tensor, seen: Tensor, idle: int, queries: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Write a token's key and value [R, G, E] where the cache stands, and read up to there, in whole vectors."""
        at, padded = self._cache.position, seen.shape[-1]
        keys[:, :, at] = key
        values[:, :, at] = value
        assert self._weights is not None
        return self._weights.read(queries, keys[:, :, :padded], values[:, :, :padded], seen, idle)


def cache_shape(policy: VlaPolicy, rows: int, unconstrained: int | None) -> tuple[int, int, int, int, int]:
    """Layers, rows, key-value heads, tokens and head width of the cached keys; the values are as many again.

    Args:
        rows, unconstrained: as for `Decoder`.
    """
    text = policy.model.config.text_config
    length = -(-(policy.prompt.length + (unconstrained or policy.grammar.total)) // VECTOR) * VECTOR
    return text.num_hidden_layers, rows, text.num_key_value_heads, length, text.head_dim


def prefill_rows(rows: int, device: str, tokens: int) -> int:
    """Rows of a batch of `rows` that one prefill takes; a row has `tokens` prompt tokens.

    On a CPU up to 4 with one or two threads, else 1. One row at a time cannot depend on its slot. On one or two threads
    the parts of 2 or 4 prompts come out even (tested bit for bit) and take two thirds of the time. On an accelerator a
    quarter of the batch, at least 8: few launches when all prompts differ, and three quarters saved when many agree;
    but no less than `BUSY_TOKENS`, since a smaller pass takes as long.
    """
    if device == "cpu":
        most = 4 if torch.get_num_threads() <= 2 else 1
        return next(group for group in (4, 2, 1) if group <= most and rows % group == 0)
    least = min(rows, max(8, rows // 4, -(-BUSY_TOKENS // tokens)))
    return next(group for group in range(least, 0, -1) if rows % group == 0)


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
