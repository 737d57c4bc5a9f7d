"""Sampling of action streams with a key-value cache.

In: observations with their random keys. Out: bins, their log-probabilities, the masks they were drawn under, the chunk
in degrees and what happened on the way. Short batches are filled up with copies of the first row: on a GPU always to
`batch_rows`, so that the same kernels run on the same shapes whatever the neighbours are; on a CPU to a width at which
rows round alike (`vla_rl.policy.decode`). Noise comes from one keyed stream per row; rows that see the same prompt
share its prefill. A row's result therefore depends on its own request alone.

Two modes. ``grammar_masked``: every token is drawn among the legal bins (`vla_rl.policy.grammar`), greedily or at a
temperature, so every stream decodes. ``reference``: what the released code does (`vla_rl.policy.reference`), for
comparisons. Beam search, top-k and top-p are left out: truncating the softmax here but not in the trainer would make
every ratio wrong. The flow head is served by `vla_rl.policy.flow_sampler`.

Shapes: R rows of a filled batch, T tokens, V bins of the action block.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.adapter import StepDecoder
from vla_rl.policy.decode import step_threads
from vla_rl.policy.grammar import legal_next
from vla_rl.policy.logprob import check_temperature, masked_log_softmax
from vla_rl.policy.noise import Noise, RngKey, check_kind, gumbel_noise
from vla_rl.policy.parts import DTYPES, check_format
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.reference import longest_answer, unconstrained_answers
from vla_rl.policy.shortcopy import ShortCopy

HELD_BYTES = 2**30  # of a cache that is kept between two waves
GRAMMAR_MASKED, REFERENCE = "grammar_masked", "reference"


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
class DecodeCounts:
    """What happened while a predict, an episode or a wave was decoded; adds up.

    Attributes:
        masked_violations: tokens at which the most likely bin of the action block was not a legal one.
        wider_bins: chosen bins that the codec's encoder never emits (`policy.grammar=documented` allows them).
        zero_fallbacks: predicts whose stream was no chunk, so that the all-zero chunk was executed (`reference` only).
        predict_s: wall seconds from a request to its answer: those of the batch that it was in.
    """

    masked_violations: int = 0
    wider_bins: int = 0
    zero_fallbacks: int = 0
    predict_s: float = field(default=0.0, compare=False)

    def __add__(self, other: DecodeCounts) -> DecodeCounts:
        return DecodeCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Prediction:
    """One sampled action chunk.

    Attributes:
        bins: int16 [T].
        logp: float32 [T], under the masked softmax at the sampling temperature (at 1 when greedy).
        legal_packed: uint8 [T, ceil(V / 8)], `numpy.packbits` of the masks the bins were drawn under.
        chunk_deg: float64 [horizon, joint], joint targets in degrees.
        rng_key: (run seed, draw, environment seed, replan).
        counts: what happened on the way.
        fault: why the stream was no chunk; always None under the grammar.
    """

    bins: np.ndarray
    logp: np.ndarray
    legal_packed: np.ndarray
    chunk_deg: np.ndarray
    rng_key: RngKey
    counts: DecodeCounts = DecodeCounts()
    fault: str | None = None


@dataclass(frozen=True)
class _Prompts:
    """The different prompts of a batch, and which of them each row has."""

    frames: Tensor
    state_bins_UJ: Tensor
    of_R: list[int]

    @classmethod
    def of(cls, policy: VlaPolicy, observations: Sequence[Observation]) -> _Prompts:
        different, of_R = distinct(observations)
        return cls(policy.frames_tensor(different), policy.state_tensor(different), of_R)


@dataclass(frozen=True)
class _Streams:
    """A decoded batch: bins int64, log-probabilities float32 and masks bool, arbitrary past the end of a row; int64
    counts of tokens whose most likely bin was illegal."""

    bins_RT: np.ndarray
    logp_RT: np.ndarray
    legal_RTV: np.ndarray
    violated_R: np.ndarray


class GrammarSampler:
    """Samples complete action streams from a policy.

    Args:
        batch_rows: the largest number of rows of a batch; requests beyond it go into further batches.
        policy: the policy; its weights may change between calls.
        run_seed: first part of every random key.
        mode: ``grammar_masked`` or ``reference``.
        keys: kind of random streams, see `vla_rl.policy.noise`.
        dtype: number format to sample in, ``float32`` or ``bfloat16``; None for the policy's own. Another one takes a
            copy of the network, see `vla_rl.policy.shortcopy`.

    Raises:
        ConfigError: no rows, another mode, another kind of keys, or no such format.
    """

    def __init__(
        self,
        *,
        batch_rows: int,
        policy: VlaPolicy,
        run_seed: int,
        mode: str = GRAMMAR_MASKED,
        keys: str = "named",
        dtype: str | None = None,
    ) -> None:
        if batch_rows < 1:
            raise ConfigError(f"{batch_rows} rows are no batch", where="sampler.batch_rows", remedy="use 1 or more")
        if mode not in (GRAMMAR_MASKED, REFERENCE):
            raise ConfigError(f"there is no mode {mode!r}", where="sampler.mode", remedy="grammar_masked or reference")
        check_kind(keys)
        check_format(dtype, where="sampler.dtype")
        self.batch_rows, self.policy, self.run_seed, self.mode, self.keys = batch_rows, policy, run_seed, mode, keys
        other = dtype is not None and DTYPES[dtype] != policy.model.dtype
        self._short = ShortCopy(policy, DTYPES[dtype]) if dtype and other else None
        self._decoder: StepDecoder | None = None
        self._lanes: list[GrammarSampler] = [self]

    @contextmanager
    def lanes(self, count: int) -> Iterator[list[GrammarSampler]]:
        """Samplers that answer as this one does and may be asked at the same time, each from a thread of its own.

        On the CPU the torch threads of this process are shared out, one to each, since two batches side by side keep
        two cores busier than one batch with two threads does. A GPU gains nothing: there it is this sampler alone.

        Args:
            count: how many are wanted; there are no more than torch threads.
        """
        at_most = torch.get_num_threads() if torch.device(self.policy.device).type == "cpu" else 1
        while len(self._lanes) < min(count, at_most):
            lane = copy.copy(self)
            lane._decoder = None
            self._lanes.append(lane)
        with step_threads(self.policy.device):  # threads that start inside begin with the same number
            yield self._lanes[: min(count, at_most)]

    @torch.no_grad()
    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        """Answer every request, in order.

        Args:
            requests: any number.
            temperature: 0 chooses the most likely legal bin; above 0 samples from the masked softmax of logits / T.

        Raises:
            ConfigError: the temperature is neither 0 nor one to sample at, or above 0 in mode ``reference``.
        """
        if temperature != 0:
            check_temperature(temperature, remedy="use 0 (greedy), or 1e-6 or more")
        if temperature > 0 and self.mode == REFERENCE:
            raise ConfigError(
                f"reference decoding is greedy and knows no temperature {temperature:g}",
                where="sampler.mode",
                remedy="use sampler.mode=grammar_masked, or temperature 0 in an evaluation",
            )
        results: list[Prediction] = []
        with step_threads(self.policy.device):  # so that lanes, which have one thread each, answer alike
            for i in range(0, len(requests), self.batch_rows):
                results += self._batch(requests[i : i + self.batch_rows], temperature)
        return results

    def _batch(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        started = time.perf_counter()
        whole = self._current_decoder()
        rows = whole.width(len(requests))
        filled = [*requests, *[requests[0]] * (rows - len(requests))]
        keys = [(self.run_seed, r.draw, r.seed, r.replan) for r in filled]
        decoder, prompts = whole.narrowed(rows), _Prompts.of(self.policy, [r.observation for r in filled])
        if self.mode == REFERENCE:
            answers = self._unconstrained(decoder, prompts, keys)
        else:
            answers = self._masked(decoder, prompts, keys, temperature)
        wall_s = time.perf_counter() - started
        return [replace(a, counts=replace(a.counts, predict_s=wall_s)) for a in answers[: len(requests)]]

    def _masked(
        self, decoder: StepDecoder, prompts: _Prompts, keys: Sequence[RngKey], temperature: float
    ) -> list[Prediction]:
        """Draw every token among the legal bins."""
        policy, grammar = self.policy, self.policy.grammar
        streams, predictions = self._decode(decoder, prompts, keys, temperature), []
        for row, key in enumerate(keys):
            used = int(np.searchsorted(np.cumsum(grammar.lengths_V[streams.bins_RT[row]]), grammar.total)) + 1
            bins = streams.bins_RT[row, :used].astype(np.int16)
            predictions.append(
                Prediction(
                    bins=bins,
                    logp=streams.logp_RT[row, :used].copy(),
                    legal_packed=np.packbits(streams.legal_RTV[row, :used], axis=1),
                    chunk_deg=policy.decode_chunk(bins),
                    rng_key=key,
                    counts=DecodeCounts(int(streams.violated_R[row]), int(grammar.wider_V[bins].sum())),
                )
            )
        return predictions

    def _decode(self, decoder: StepDecoder, prompts: _Prompts, keys: Sequence[RngKey], temperature: float) -> _Streams:
        policy = self.policy
        noise = self._noise(keys, policy.device) if temperature > 0 else None
        left = torch.full((len(keys),), policy.grammar.total, device=policy.device)
        violated = torch.zeros_like(left)
        logits = decoder.prefill(prompts.frames, prompts.state_bins_UJ, prompts.of_R)
        bins, logps, masks = [], [], []
        while True:
            # A finished row draws what nobody reads.
            legal = legal_next(policy.lengths_V, left) | (left == 0)[:, None]
            logp = masked_log_softmax(logits, legal, temperature or 1.0)
            chosen = (logp if noise is None else logp + noise()).argmax(-1)
            violated += ~legal.gather(1, logits.argmax(-1, keepdim=True)).squeeze(1)
            bins.append(chosen)
            logps.append(logp.gather(1, chosen[:, None]).squeeze(1))
            masks.append(legal)
            left = (left - policy.lengths_V[chosen]).clamp(min=0)
            if not bool(left.any()):
                break
            logits = decoder.step(chosen)
        stacked = [torch.stack(part, 1) for part in (bins, logps, masks)]
        return _Streams(*(part.cpu().numpy() for part in (*stacked, violated)))

    def _unconstrained(self, decoder: StepDecoder, prompts: _Prompts, keys: Sequence[RngKey]) -> list[Prediction]:
        """What the release does; a stream that is no chunk becomes the all-zero one."""
        policy, predictions = self.policy, []
        answers = unconstrained_answers(policy, decoder, prompts.frames, prompts.state_bins_UJ, prompts.of_R)
        for answer, key in zip(answers, keys, strict=True):
            learned = answer.bins[policy.codec.lengths_V[answer.bins] > 0]
            everything = np.ones((len(answer.bins), policy.vocabulary), dtype=bool)
            predictions.append(
                Prediction(
                    bins=answer.bins,
                    logp=answer.logp,
                    legal_packed=np.packbits(everything, axis=1),
                    chunk_deg=policy.zero_chunk() if answer.fault else policy.decode_chunk(learned),
                    rng_key=key,
                    counts=DecodeCounts(zero_fallbacks=int(answer.fault is not None)),
                    fault=answer.fault,
                )
            )
        return predictions

    def held_bytes(self) -> dict[str, int | None]:
        """What it holds while it samples: the `cache` of its decoder (of one lane; None if nobody knows), what of it
        stays after `release` (`cache_kept`), and `short_copy`. Nothing is made for it."""
        dtype = self.policy.model.dtype if self._short is None else self._short.dtype
        count = getattr(self.policy.adapter, "cached_numbers", None)
        numbers = None if count is None else count(self.policy, self.batch_rows, self._room())
        copied = 0 if self._short is None else sum(p.numel() for p in self.policy.model.parameters())
        cache = None if numbers is None else numbers * dtype.itemsize
        kept = 0 if cache is None or self._short is not None or cache > HELD_BYTES else cache
        return {"cache": cache, "cache_kept": kept, "short_copy": copied * dtype.itemsize}

    def release(self) -> None:
        """Give back what it holds between two waves, if that is much: an update may need the room."""
        for lane in self._lanes:
            decoder = lane._decoder
            if decoder is not None and (self._short is not None or getattr(decoder, "nbytes", 0) > HELD_BYTES):
                lane._decoder = None
        if self._short is not None:
            self._short.release()

    def _current_decoder(self) -> StepDecoder:
        """The decoder of the network that samples, as it is now; made when it is needed."""
        acting = self._short.policy() if self._short is not None else self.policy
        if self._decoder is None or self._decoder.policy is not acting:
            self._decoder = acting.decoder(self.batch_rows, unconstrained=self._room())
        return self._decoder

    def _room(self) -> int | None:
        """Tokens that an unconstrained decoder has room for; None for one of the action block."""
        return longest_answer(self.policy) if self.mode == REFERENCE else None

    def _noise(self, keys: Sequence[RngKey], device: str) -> Noise:
        policy = self.policy
        return gumbel_noise(
            self.keys,
            keys,
            width=policy.vocabulary,
            block_start=policy.prompt.ids.action_block,
            vocabulary=policy.outputs,
            device=device,
        )


def release(sampler: Any) -> None:
    """Have a sampler give back what it holds, if it is one that does: before an update, which may need the room, and
    before it samples with weights that moved without a sign (`vla_rl.policy.shortcopy`)."""
    if (give_back := getattr(sampler, "release", None)) is not None:
        give_back()


def distinct(observations: Sequence[Observation]) -> tuple[list[Observation], list[int]]:
    """The different observations in order of appearance, and which of them each one is."""
    numbers: dict[tuple[bytes, bytes], int] = {}
    different, which = [], []
    for observation in observations:
        seen = (observation.frames.tobytes(), observation.state_deg.tobytes())
        if seen not in numbers:
            numbers[seen] = len(different)
            different.append(observation)
        which.append(numbers[seen])
    return different, which
