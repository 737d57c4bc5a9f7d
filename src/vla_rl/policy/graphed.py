"""One-token steps as a CUDA graph, which the host starts as one.

In: the weights and the cache of a decoder (`vla_rl.policy.decode`). Out: the same logits, token by token. A graph knows
addresses, so it has copies of weights that are made anew for every prompt, reads the network's own where they are, and
has its own places for what goes in and out; the position is counted on the device. Attention reads the whole cache with
what lies ahead masked, so that every step is the same work. Before it is used, a graph is held against its own
operations run one by one; one that cannot be captured or differs is given up with a warning, which costs time and
nothing else. Left out: prefill.

Shapes: R rows, L cached tokens, V bins of the action block.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vla_rl.policy.decode import DecodeCache
    from vla_rl.policy.stepweights import StepWeights

WARM_UPS = 3
COMPARED = 4  # steps of a new graph, each with another token
APART = {torch.float32: 1e-4, torch.float64: 1e-10}  # of the largest logit; two kernels of one product may round apart
APART_SHORT = 2e-2  # where numbers have 8 or 11 bits


class StepGraph:
    """Steps over one cache, captured once and replayed.

    Args:
        weights: copied now, and by `take`, but for those that are the network's own.
        cache: read and written in place.
        capture: False runs the same steps one operation at a time, on any device.
    """

    def __init__(self, weights: StepWeights, cache: DecodeCache, *, capture: bool = True) -> None:
        mine = zip(weights.tensors(), weights.own(), strict=True)
        copies = {id(tensor): tensor.detach() if own else tensor.detach().clone() for tensor, own in mine}
        self._weights, self._cache = deepcopy(weights, copies), cache
        device = cache.keys.device
        self._chosen_R = torch.zeros(cache.keys.shape[1], dtype=torch.int64, device=device)
        self._at = torch.tensor([cache.position], device=device)
        self._slots_L = torch.arange(cache.keys.shape[3], device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        if capture:
            self._capture()

    @classmethod
    def for_step(cls, graph: StepGraph | None, weights: StepWeights, cache: DecodeCache) -> StepGraph | None:
        """A graph for these weights, from the position of the cache on.

        Args:
            graph: the one of the prompt before; it is taken again if it has this cache, and weights of the same form.

        Returns:
            None where what was captured does not give what its operations give.
        """
        if graph is None or graph._cache is not cache or not graph.take(weights):
            try:
                graph = cls(weights, cache)
            except RuntimeError as error:
                return _given_up(f"could not be captured ({error})")
            if (apart := graph.apart()) > APART.get(weights.head.dtype, APART_SHORT):
                return _given_up(f"gives logits that are {apart:.1g} of the largest off")
        graph.begin()
        return graph

    def take(self, weights: StepWeights) -> bool:
        """Copy weights in; False, and nothing done, if they have another form, or the network's own another place."""
        if weights.form() != self._weights.form():
            return False
        pairs = list(zip(self._weights.tensors(), weights.tensors(), weights.own(), strict=True))
        if any(mine.data_ptr() != theirs.data_ptr() for mine, theirs, own in pairs if own):
            return False
        with torch.no_grad():
            for mine, theirs, own in pairs:
                if not own:
                    mine.copy_(theirs)
        return True

    def apart(self) -> float:
        """The largest difference between what steps give and what their operations give one by one, as a share of the
        largest logit. It writes ahead of the cache's position, where the steps to come write anew."""
        steps = min(COMPARED, len(self._slots_L) - self._cache.position)
        rows = torch.arange(len(self._chosen_R), device=self._chosen_R.device)
        tokens = [(rows + t) % len(self._weights.embedding) for t in range(steps)]
        self.begin()
        replayed = [self.step(token).clone() for token in tokens]
        self.begin()
        apart = 0.0
        for token, found in zip(tokens, replayed, strict=True):
            self._chosen_R.copy_(token)
            expected = self._run()
            share = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
            apart = max(apart, float(share.nan_to_num(nan=float("inf"))))
        return apart

    def begin(self) -> None:
        """Go to the position of the cache."""
        self._at.fill_(self._cache.position)

    def step(self, chosen_R: Tensor) -> Tensor:
        """Feed one bin a row; logits of the next, float32 [R, V], overwritten by the next step."""
        self._chosen_R.copy_(chosen_R)
        if self._graph is None:
            return self._run()
        self._graph.replay()
        return self._logits

    @torch.no_grad()
    def _run(self) -> Tensor:
        weights, cache = self._weights, self._cache
        hidden = weights.embedding[self._chosen_R]
        seen = torch.where(self._slots_L > self._at, float("-inf"), 0.0).to(hidden.dtype)[None, None, None]
        for layer, keys, values in zip(weights.layers, cache.keys, cache.values, strict=True):
            attend = partial(self._attend, keys, values, seen)
            cos_E, sin_E = (table.index_select(0, self._at) for table in (layer.cos_LE, layer.sin_LE))
            hidden = weights.layer(layer, hidden, cos_E, sin_E, attend)
        self._at += 1
        return weights.logits(hidden)

    def _attend(
        self, keys: Tensor, values: Tensor, seen: Tensor, queries: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Write a token's key and value [R, G, E] where the step stands, and read up to there."""
        keys.index_copy_(2, self._at, key[:, :, None])
        values.index_copy_(2, self._at, value[:, :, None])
        return self._weights.read(queries, keys, values, seen)

    def _capture(self) -> None:
        """Record the steps once; what the warm-ups write lies ahead of the prompt and is written anew."""
        with torch.cuda.device(self._at.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    self.begin()
                    self._run()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile; by default their calls would end the capture.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._logits = self._run()
            self._graph = graph


def _given_up(why: str) -> None:
    warnings.warn(
        f"the CUDA graph of a token step {why}; steps run one operation at a time, which is slower and no less right",
        RuntimeWarning,
        stacklevel=4,
    )
