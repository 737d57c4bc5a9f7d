"""Grammar-masked sampling of action streams with a key-value cache.

In: observations with their random keys. Out: bins, their log-probabilities, the masks they were drawn under and the
chunk in degrees. Batches are always `batch_rows` wide (short ones are filled up with copies of the first row), so
that the same kernels run on the same shapes whatever the neighbours are; noise comes from one named stream per row. A
row's result therefore depends on its own request alone. Beam search, top-k and the flow head are left out.

Shapes: R rows of the fixed batch, T tokens, V bins of the action block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.decode import step_threads
from vla_rl.policy.grammar import legal_next
from vla_rl.policy.logprob import masked_log_softmax
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.prompt import Observation
from vla_rl.seeds import stream

_NOISE_TOKENS = 32  # Gumbel rows drawn at a time; the stream is the same for any block size


@dataclass(frozen=True)
class PredictRequest:
    """One replan to answer.

    Attributes:
        observation: what the policy sees.
        seed, draw, replan: environment seed, draw of the episode and index of the replan: the row's random key.
    """

    observation: Observation
    seed: int
    draw: int
    replan: int


@dataclass(frozen=True)
class Prediction:
    """One sampled action chunk.

    Attributes:
        bins: int16 [T].
        logp: float32 [T], under the masked softmax at the sampling temperature (at 1 when greedy).
        legal_packed: uint8 [T, ceil(V / 8)], `numpy.packbits` of the masks the bins were drawn under.
        chunk_deg: float64 [horizon, joint], joint targets in degrees.
        rng_key: (run seed, draw, environment seed, replan).
    """

    bins: np.ndarray
    logp: np.ndarray
    legal_packed: np.ndarray
    chunk_deg: np.ndarray
    rng_key: tuple[int, int, int, int]


class _GumbelNoise:
    """Standard Gumbel noise [R, V] token by token, one generator per row, computed on the CPU."""

    def __init__(self, keys: Sequence[tuple[int, int, int, int]], width: int, device: str) -> None:
        self._streams = [stream("token", *key) for key in keys]
        self._width, self._device, self._drawn = width, device, 0
        self._block: Tensor | None = None

    def next(self) -> Tensor:
        at = self._drawn % _NOISE_TOKENS
        if at == 0:
            shape = (_NOISE_TOKENS, self._width)
            waiting = np.stack([s.standard_exponential(shape, dtype=np.float32) for s in self._streams])
            # The log is taken in double precision: its single-precision form differs between processors.
            floored = np.maximum(waiting, np.finfo(np.float32).tiny).astype(np.float64)
            self._block = torch.from_numpy(-np.log(floored).astype(np.float32)).to(self._device)
        self._drawn += 1
        assert self._block is not None
        return self._block[:, at]


class GrammarSampler:
    """Samples complete action streams from a policy.

    Args:
        batch_rows: the fixed number of rows of a batch; requests beyond it go into further batches.
        policy: the policy; its weights may change between calls.
        run_seed: first part of every random key.
    """

    def __init__(self, *, batch_rows: int, policy: VlaPolicy, run_seed: int) -> None:
        if batch_rows < 1:
            raise ConfigError(f"{batch_rows} rows are no batch", where="sampler.batch_rows", remedy="use 1 or more")
        self.batch_rows, self.policy, self.run_seed = batch_rows, policy, run_seed
        self._decoder = policy.decoder(batch_rows)

    @torch.no_grad()
    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        """Answer every request, in order.

        Args:
            requests: any number.
            temperature: 0 chooses the most likely legal bin; above 0 samples from the masked softmax of logits / T.

        Raises:
            ConfigError: the temperature is negative or not a number.
        """
        if not temperature >= 0:
            raise ConfigError(f"{temperature} is no temperature", where="temperature", remedy="use 0 (greedy) or more")
        results: list[Prediction] = []
        for i in range(0, len(requests), self.batch_rows):
            results += self._batch(requests[i : i + self.batch_rows], temperature)
        return results

    def _batch(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        filled = [*requests, *[requests[0]] * (self.batch_rows - len(requests))]
        keys = [(self.run_seed, r.draw, r.seed, r.replan) for r in filled]
        bins_RT, logp_RT = self._decode([r.observation for r in filled], keys, temperature)
        grammar, predictions = self.policy.grammar, []
        for row, logp, key in zip(bins_RT[: len(requests)], logp_RT, keys, strict=False):
            used = int(np.searchsorted(np.cumsum(grammar.lengths_V[row]), grammar.total)) + 1
            bins = row[:used].astype(np.int16)
            masks = grammar.packed_masks(bins)
            predictions.append(Prediction(bins, logp[:used].copy(), masks, self.policy.decode_chunk(bins), key))
        return predictions

    def _decode(
        self, observations: Sequence[Observation], keys: Sequence[tuple[int, int, int, int]], temperature: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bins int64 [R, T] and log-probabilities float32 [R, T]; arbitrary past the end of a row."""
        policy = self.policy
        noise = _GumbelNoise(keys, policy.vocabulary, policy.device) if temperature > 0 else None
        left = torch.full((self.batch_rows,), policy.grammar.total, device=policy.device)
        logits = self._decoder.prefill(policy.frames_tensor(observations), policy.state_tensor(observations))
        bins, logps = [], []
        with step_threads(policy.device):
            while True:
                legal = (
                    legal_next(policy.lengths_V, left) | (left == 0)[:, None]
                )  # a finished row draws what nobody reads
                logp = masked_log_softmax(logits, legal, temperature or 1.0)
                chosen = (logp if noise is None else logp + noise.next()).argmax(-1)
                bins.append(chosen)
                logps.append(logp.gather(1, chosen[:, None]).squeeze(1))
                left = (left - policy.lengths_V[chosen]).clamp(min=0)
                if not bool(left.any()):
                    return torch.stack(bins, 1).cpu().numpy(), torch.stack(logps, 1).cpu().numpy()
                logits = self._decoder.step(chosen)
