"""Environments for the sim tests: real physics, real pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from vla_rl.config.schema import LookConfig
from vla_rl.sim.env import BoatToDisk

PLAIN_LOOK = dataclasses.asdict(LookConfig())
SETTINGS: dict[str, Any] = {
    "protocol": "sim100b",
    "image_px": 112,
    "chunk_ticks": 30,
    "max_ticks": 900,
    "terminate_on": "success_strict",
    "stop_hopeless": False,
    "look": PLAIN_LOOK,
}


@pytest.fixture(scope="session")
def make_env() -> Callable[..., BoatToDisk]:
    """A factory: the usual settings, some of them overridden; of a class of the test's own if it needs one."""
    return lambda kind=BoatToDisk, **overrides: kind(**(SETTINGS | overrides))
