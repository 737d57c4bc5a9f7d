"""Serving of the flow head: the same questions and answers as the token sampler's, without tokens.

In: observations with their random keys. Out: chunks in degrees, clamped and brought back through the action table in
the same way as decoded tokens. A chunk starts from noise that is keyed by its row alone (`vla_rl.policy.noise`), so it
depends on its own request and on nothing else. Rows that see the same prompt share its prefill.

On the CPU everything runs on one thread, and prompts are read in the token sampler's groups (`vla_rl.policy.decode`).
Every product then has the ticks of a chunk or more as rows, which round alike whatever their number and place, so an
answer is bit for bit the same whatever else is asked. On a GPU a batch is filled up to `batch_rows` with copies of its
first row, as the token sampler does.

Left out: a temperature (the noise has size 1, as in training) and other integrators.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.decode import prefill_rows, step_threads
from vla_rl.policy.expert import ActionExpert, Context
from vla_rl.policy.flow import integrate, own_expert, prompt_keys_values
from vla_rl.policy.heads import FLOW, check_flow_temperature
from vla_rl.policy.noise import RngKey, check_kind, flow_noise
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import GRAMMAR_MASKED, DecodeCounts, Prediction, PredictRequest, distinct


class FlowSampler:
    """Samples chunks from a policy's action expert.

    Args:
        batch_rows: the largest number of rows of a batch; requests beyond it go into further batches.
        policy: the policy, its expert loaded; weights may change between calls.
        run_seed: first part of every random key.
        mode: ``grammar_masked``, the token sampler's default, which says nothing here; its other modes decode tokens.
        keys: kind of random streams, see `vla_rl.policy.noise`.
        dtype: None; the token sampler's number format, of which there is none here.

    Raises:
        ConfigError: no rows, no expert, a mode of tokens, another kind of keys, or a number format.
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
        if mode != GRAMMAR_MASKED:
            raise ConfigError(
                f"the flow head decodes no tokens, so there is no mode {mode!r} of it",
                where="sampler.mode",
                remedy=f"use sampler.mode={GRAMMAR_MASKED}, or policy.serve_head=ar",
            )
        if dtype is not None:
            raise ConfigError(
                "the flow head is sampled in the policy's own number format",
                where="sampler.dtype",
                remedy="use sampler.dtype=null and policy.dtype",
            )
        check_kind(keys)
        own_expert(policy)
        self.batch_rows, self.policy, self.run_seed, self.keys = batch_rows, policy, run_seed, keys

    @contextmanager
    def lanes(self, count: int) -> Iterator[list[FlowSampler]]:
        """Samplers that answer as this one does and may be asked at the same time, each from a thread of its own; see
        `GrammarSampler.lanes`. Nothing is kept between questions, so all of them are this one."""
        at_most = torch.get_num_threads() if self._on_cpu else 1
        with step_threads(self.policy.device):
            yield [self] * min(count, at_most)

    @torch.no_grad()
    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        """Answer every request, in order; without bins.

        Raises:
            ConfigError: the temperature is not 0.
        """
        check_flow_temperature(FLOW, temperature)
        results: list[Prediction] = []
        with step_threads(self.policy.device):
            for i in range(0, len(requests), self.batch_rows):
                results += self._batch(requests[i : i + self.batch_rows])
        return results

    @property
    def _on_cpu(self) -> bool:
        return torch.device(self.policy.device).type == "cpu"

    def _batch(self, requests: Sequence[PredictRequest]) -> list[Prediction]:
        started, policy = time.perf_counter(), self.policy
        rows = len(requests) if self._on_cpu else self.batch_rows
        chunks_RTJ = self._chunks([*requests, *[requests[0]] * (rows - len(requests))])
        degrees = policy.stats.action.denormalise(chunks_RTJ.double().cpu().numpy())
        wall_s = time.perf_counter() - started
        nothing = np.zeros((0, len(np.packbits(np.zeros(policy.vocabulary, dtype=bool)))), dtype=np.uint8)
        return [
            Prediction(
                bins=np.zeros(0, dtype=np.int16),
                logp=np.zeros(0, dtype=np.float32),
                legal_packed=nothing,
                chunk_deg=chunk_deg,
                rng_key=self._key(request),
                counts=DecodeCounts(predict_s=wall_s),
            )
            for request, chunk_deg in zip(requests, degrees, strict=False)
        ]

    def _chunks(self, requests: Sequence[PredictRequest]) -> Tensor:
        """Normalised chunks [R, T, J]."""
        policy, expert = self.policy, own_expert(self.policy)
        different, which = distinct([request.observation for request in requests])
        of_R = torch.tensor(which, device=policy.device)
        context = [(keys[of_R], values[of_R]) for keys, values in self._contexts(expert, different)]
        noise = flow_noise(
            self.keys,
            [self._key(request) for request in requests],
            ticks=policy.horizon,
            width=expert.config.max_dim,
            device=policy.device,
        )
        return integrate(expert, context, noise, policy.dim)

    def _contexts(self, expert: ActionExpert, observations: Sequence[Observation]) -> Context:
        """What the expert attends to in some prompts, which are read in groups that are always full."""
        policy = self.policy
        at_once = prefill_rows(self.batch_rows, torch.device(policy.device).type, policy.prompt.length)
        filled, groups = [*observations, *[observations[0]] * (-len(observations) % at_once)], []
        for start in range(0, len(filled), at_once):
            group = filled[start : start + at_once]
            seen = prompt_keys_values(policy, policy.frames_tensor(group), policy.state_tensor(group))
            groups.append(expert.context(seen))
        joined = ([torch.cat(part) for part in zip(*layer, strict=True)] for layer in zip(*groups, strict=True))
        return [(keys, values) for keys, values in joined]

    def _key(self, request: PredictRequest) -> RngKey:
        return (self.run_seed, request.draw, request.seed, request.replan)
