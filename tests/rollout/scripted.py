"""A policy of a few lines: joint targets that wander from where the arm is, drawn from all that the request holds.

Its chunk depends on every pixel and every joint angle, so an episode that saw anything else goes another way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import zlib

import numpy as np

from vla_rl.policy.sampler import Prediction
from vla_rl.rollout.records import Row


class Scripted:
    """A sampler without a network; `lanes` ways to ask it at the same time."""

    def __init__(self, *, horizon: int = 30, step_deg: float = 2.0, lanes: int = 2) -> None:
        self.horizon, self.step_deg, self._lanes, self.asked = horizon, step_deg, lanes, []
        if lanes:
            self.lanes = self._side_by_side

    def sample(self, requests, temperature):
        self.asked.append(tuple((r.seed, r.draw, r.replan) for r in requests))
        return [self._answer(request) for request in requests]

    @contextlib.contextmanager
    def _side_by_side(self, count):
        yield [self] * min(count, self._lanes)

    def _answer(self, request):
        seen = request.observation
        picture, state = zlib.crc32(seen.frames.tobytes()), zlib.crc32(seen.state_deg.tobytes())
        rng = np.random.default_rng([picture, state, request.seed, request.draw, request.replan])
        bins = rng.integers(0, 40, 5).astype(np.int16)
        return Prediction(
            bins=bins,
            logp=-rng.random(5, dtype=np.float32),
            legal_packed=np.packbits(np.ones((5, 40), bool), axis=1),
            chunk_deg=seen.state_deg + rng.normal(0.0, self.step_deg, (self.horizon, 6)).cumsum(0),
            rng_key=(0, request.draw, request.seed, request.replan),
        )


def fingerprint(wave):
    """Everything of a wave but wall times and rounds, comparable with ==."""
    rows = [
        [v.tobytes() if isinstance(v, np.ndarray) else v for v in (getattr(r, f.name) for f in dataclasses.fields(Row))]
        for r in wave.rows
    ]
    return [dataclasses.replace(e, wall_s=0.0) for e in wave.episodes], rows


def digest(wave) -> str:
    """A short name for a fingerprint, stable across processes."""
    return hashlib.sha256(repr(fingerprint(wave)).encode()).hexdigest()[:16]
