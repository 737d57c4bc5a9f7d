"""The real task, with a fault on demand: like `toy_world`, the first worker that meets it creates `marker`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from toy_world import fail

from vla_rl.config.schema import SimConfig
from vla_rl.sim.env import BoatToDisk

MAX_TICKS = 60


class FlakyBoat(BoatToDisk):
    """At its second picture of episode `fault_seed` it does what `fault` says."""

    def __init__(self, *, fault: str, fault_seed: int, marker: str, **settings) -> None:
        super().__init__(**settings)
        self.fault, self.fault_seed, self.marker = fault, fault_seed, Path(marker)

    def observe(self):
        seen = super().observe()
        if self.ticks == 0 or self.seed != self.fault_seed or self.fault == "none" or self.marker.exists():
            return seen
        self.marker.touch()
        fail(self.fault)
        return {**seen, "top": seen["top"] * 0}  # garbage


def spec(fault: str = "none", fault_seed: int = -1, marker: str = "", **settings) -> dict:
    sim = dataclasses.asdict(SimConfig(max_ticks=MAX_TICKS, image_px=48, **settings))
    return {
        **sim,
        "_target_": "flaky_world.FlakyBoat",
        "fault": fault,
        "fault_seed": fault_seed,
        "marker": marker,
    }
