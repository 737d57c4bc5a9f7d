"""Random plain documents for property tests."""

from __future__ import annotations

import copy
import random
from typing import Any

KEYS = ("a", "b", "optim.lr", "x y", "id", "0", 'q"', "ä")


def scalar(rng: random.Random) -> Any:
    return rng.choice(
        [None, True, False, 0, 1, -1, 0.0, 1.0, 1e-7, "", "1", "true", "a", "off", "lines\nof text", "]["]
    )


def document(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.random()
    if depth <= 0 or kind < 0.35:
        return scalar(rng)
    if kind < 0.65:
        return {key: document(rng, depth - 1) for key in rng.sample(KEYS, rng.randint(0, 4))}
    if kind < 0.85:
        return records(rng, depth)
    return [document(rng, depth - 1) for _ in range(rng.randint(0, 3))]


def records(rng: random.Random, depth: int) -> list[Any]:
    ids = rng.sample(["r1", "r2", "r 3", "r.4", "r[5]"], rng.randint(0, 4))
    return [{"id": i, **mapping(rng, depth - 1)} for i in ids]


def mapping(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    return {key: document(rng, depth - 1) for key in rng.sample([k for k in KEYS if k != "id"], rng.randint(0, 4))}


def variant(rng: random.Random, value: Any, depth: int = 3) -> Any:
    """Something near `value`: most differences of real documents are small."""
    value = copy.deepcopy(value)
    if rng.random() < 0.15:
        return document(rng, depth)
    if isinstance(value, dict):
        for key in list(value):
            if key != "id":
                value[key] = variant(rng, value[key], max(0, depth - 1)) if rng.random() < 0.6 else value[key]
                if rng.random() < 0.1:
                    del value[key]
        if rng.random() < 0.2:
            value[rng.choice([k for k in KEYS if k != "id"])] = document(rng, max(0, depth - 1))
        return value
    if isinstance(value, list):
        value = [variant(rng, item, max(0, depth - 1)) for item in value]
        if rng.random() < 0.2:
            rng.shuffle(value)
        if value and rng.random() < 0.2:
            value.pop(rng.randrange(len(value)))
        if rng.random() < 0.2:
            value += records(rng, 1)
        return value
    return value if rng.random() < 0.7 else scalar(rng)
