"""A point that follows joint targets: an environment of microseconds, with faults on demand.

Same interface as the real task. `fault` names what goes wrong, in which episode (`fault_seed`), and `marker` is a file
that makes it happen once: the first worker that meets the fault creates the file, later ones find it and behave.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium
import numpy as np

from vla_rl.errors import MachineError
from vla_rl.sim.metrics import TickSample

PX = 16
SHAPE = (2, 3, 4, 3)
HOME_DEG = np.zeros(6)


@dataclass(frozen=True)
class ToyMetrics:
    progress_final_cm: float
    final_upright: float
    success: bool
    reset_strikes: int
    ticks: int
    knockaway: bool
    setback: bool
    tipped: bool
    grasped_progress_cm: float
    ungrasped_displacement_cm: float

    def as_dict(self):
        return asdict(self)


class ToyWorld(gymnasium.Env):
    """Move joint 0 towards a target angle that depends on the seed; the pictures show both as bright columns."""

    def __init__(self, *, execute_ticks: int, max_chunks: int, fault: str, fault_seed: int, marker: str) -> None:
        self.execute_ticks, self.max_chunks = execute_ticks, max_chunks
        self.fault, self.fault_seed, self.marker = fault, fault_seed, marker
        self.action_space = gymnasium.spaces.Box(-180, 180, (execute_ticks, 6))
        if fault == "no_gl":
            raise MachineError("no GL library", where="toy", remedy="install one")
        if fault == "cannot_build":
            raise RuntimeError("the model file is broken")

    def reset(self, *, seed: int):
        self.seed, self.chunks = seed, 0
        rng = np.random.default_rng(seed)
        self.target_deg, self.state = float(rng.uniform(5, 20)), HOME_DEG.copy()
        self._maybe("in_reset")
        return self._look(), {}

    def step(self, targets_deg):
        assert targets_deg.shape == (self.execute_ticks, 6)
        self._maybe("in_step")
        for target in targets_deg:
            self.state = self.state + np.clip(target - self.state, -2, 2)
        self.chunks += 1
        hit = abs(self.state[0] - self.target_deg) < 1.0
        return self._look(), 0.0, bool(hit), self.chunks >= self.max_chunks, {}

    def metrics(self):
        off = abs(self.state[0] - self.target_deg)
        progress = 0.1 * (self.target_deg - off)
        return ToyMetrics(
            progress,
            1.0,
            bool(off < 1.0),
            0,
            self.chunks * self.execute_ticks,
            progress <= -1,
            False,
            False,
            progress,
            0.0,
        )

    def close(self):
        pass

    def _look(self):
        top = np.zeros((PX, PX, 3), np.uint8)
        top[:, int(self.target_deg) % PX] = 255
        wrist = np.zeros((PX, PX, 3), np.uint8)
        wrist[:, int(abs(self.state[0])) % PX] = 200
        return {"top": top, "wrist": wrist, "state": self.state.copy()}

    def _maybe(self, place: str) -> None:
        kind, _, when = self.fault.partition("@")
        if when != place or self.seed != self.fault_seed:
            return
        if self.marker:
            if Path(self.marker).exists():
                return
            Path(self.marker).touch()
        fail(kind)
        if kind == "black":
            self._look = lambda: {
                "top": np.zeros((PX, PX, 3), np.uint8),
                "wrist": np.zeros((PX, PX, 3), np.uint8),
                "state": self.state,
            }


class TellingWorld(ToyWorld):
    """The same, and it says what it is."""

    def describe(self):
        return {
            "protocol": "toy",
            "scene_hash": "0" * 8,
            "max_replans": self.max_chunks,
            "image_px": PX,
            "look": "bare",
        }


@dataclass(frozen=True)
class TracedMetrics(ToyMetrics):
    success_test: str
    success_tick: int | None
    strict_tick: int | None


class TracedWorld(TellingWorld):
    """The same, and it keeps a trace: the distance to the target in mm for a degree."""

    def reset(self, *, seed: int):
        look = super().reset(seed=seed)
        self.trace = [self._sample()]
        return look

    @property
    def ticks(self):
        return len(self.trace) - 1

    def step(self, targets_deg):
        for target in targets_deg:
            self.state = self.state + np.clip(target - self.state, -2, 2)
            self.trace.append(self._sample())
        answer = super().step(np.repeat(self.state[None], len(targets_deg), 0))  # goes nowhere any more
        return answer

    def metrics(self):
        told = super().metrics()
        tick = self.ticks - 1 if told.success else None
        return TracedMetrics(**told.as_dict(), success_test="success_documented", success_tick=tick, strict_tick=None)

    def _sample(self):
        off_m = abs(self.state[0] - self.target_deg) / 1000
        return TickSample(off_m, 0.0, 1.0, boat_speed_m_s=0.0, boat_spin_rad_s=0.0, max_speed=0.0, grip=None)


class AttributeWorld(ToyWorld):
    """The same, with attributes to read instead."""

    protocol = "toy-by-attributes"

    @property
    def max_ticks(self):
        return self.max_chunks * self.execute_ticks - 1


def fail(kind: str) -> None:
    """Do what a broken worker does."""
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "hang":
        time.sleep(600)
    if kind == "slow":
        time.sleep(0.05)
    if kind == "raise":
        raise RuntimeError("the physics exploded")


def paint(block, slots: list[int]) -> None:
    """Fill each slot's frames of `SHAPE` with its number plus one; runs in a process of its own."""
    for slot in slots:
        block.view(slot, SHAPE)[...] = (slot + 1) % 256


def spec(
    fault: str = "none",
    fault_seed: int = -1,
    marker: str = "",
    *,
    execute_ticks: int = 3,
    max_chunks: int = 4,
    world: str = "TellingWorld",
) -> dict:
    return {
        "_target_": f"toy_world.{world}",
        "execute_ticks": execute_ticks,
        "max_chunks": max_chunks,
        "fault": fault,
        "fault_seed": fault_seed,
        "marker": marker,
    }
