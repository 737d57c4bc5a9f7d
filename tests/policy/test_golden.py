"""Predictions of the shipped base are those that were stored when it came: what a default means.

Tokens and grammar masks must be equal; log-probabilities may differ in the last bits between processors, so they are
compared by their sum. `python tests/policy/test_golden.py` stores new ones.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_rl.config.compose import compose
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import PredictRequest

STORED = Path(__file__).with_name("golden_base.json")


def predictions() -> list[dict[str, Any]]:
    """Four greedy and four sampled predictions with every key of policy and sampler at its default."""
    reader = compose("config", ["policy=tiny", "sampler.batch_rows=4"])
    sampler = reader.component("sampler", policy=reader.component("policy", device="cpu"), run_seed=3)
    rng = np.random.default_rng(11)
    requests = []
    for i in range(4):
        frames = rng.integers(0, 256, (2, 7, 7, 3), dtype=np.uint8).repeat(16, 1).repeat(16, 2)
        observation = Observation(frames, np.array([0, -90, 50, 75, 0, 0.0]) + rng.normal(0, 5, 6))
        requests.append(PredictRequest(observation, seed=300 + i // 2, draw=i % 2, replan=i))
    return [
        {
            "temperature": temperature,
            "rng_key": list(p.rng_key),
            "bins": p.bins.tolist(),
            "masks": hashlib.sha256(p.legal_packed.tobytes()).hexdigest(),
            "logp": round(float(p.logp.sum()), 3),
        }
        for temperature in (0.0, 0.7)
        for p in sampler.sample(requests, temperature)
    ]


def test_defaults_give_the_stored_predictions():
    for now, stored in zip(predictions(), json.loads(STORED.read_text()), strict=True):
        assert now.pop("logp") == pytest.approx(stored.pop("logp"), abs=2e-3)
        assert now == stored


if __name__ == "__main__":
    STORED.write_text(json.dumps(predictions(), indent=None).replace("}, {", "},\n{") + "\n")
