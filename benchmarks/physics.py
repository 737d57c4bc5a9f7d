"""Ways to step several environments of a worker on one thread: a plain loop, `mujoco.batch`, `mujoco.rollout`.

Run with `python benchmarks/physics.py`. Each way plays the same recorded expert episode (a real grasp) in k copies, and
must give what the episode's records need: positions, velocities and touching shapes at the end of every control tick.
The ways take turns, and process CPU time is compared, so the ratios hold on a busy machine. Final states must be equal
bit for bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import mujoco.batch
import mujoco.rollout
import numpy as np

from vla_rl.config.compose import compose
from vla_rl.sim.expert import ScriptedExpert
from vla_rl.sim.frames import to_radians
from vla_rl.sim.gl import mujoco

SEED, CHUNK_TICKS = 300, 30


class Arms:
    """k copies of one arm that play the expert's joint targets from the settled state of an episode."""

    def __init__(self, k: int) -> None:
        self.k, self.env = k, compose("config", []).component("sim")
        expert = ScriptedExpert(self.env).run(SEED, noise=None, record_every=10**6, render=False)
        scene = self.env.scene
        self.model, self.substeps = scene.model, scene.protocol.substeps
        self.ctrl_T6 = np.clip(to_radians(expert.targets_deg), scene.ctrl_low_rad, scene.ctrl_high_rad)
        self.env.begin(SEED)
        self.spec = mujoco.mjtState.mjSTATE_INTEGRATION
        self.start = np.empty(mujoco.mj_stateSize(self.model, self.spec))
        mujoco.mj_getState(self.model, self.env.data, self.start, self.spec)
        self.data = [mujoco.MjData(self.model) for _ in range(k)]
        self.batch = mujoco.batch.Batch(self.model, k, nthread=1, persistent=True)
        self.shared = mujoco.MjData(self.model)

    def loop(self) -> np.ndarray:
        """What the environment does, without the bookkeeping around it."""
        for data in self.data:
            mujoco.mj_setState(self.model, data, self.start, self.spec)
        for ctrl in self.ctrl_T6:
            for data in self.data:
                data.ctrl[:6] = ctrl
                mujoco.mj_step(self.model, data, self.substeps)
                self.sample(data)
        return np.stack([data.qpos for data in self.data])

    def batched(self) -> np.ndarray:
        """`mujoco.batch`, one call a tick; contacts are only in a copy of a simulation's whole data."""
        mujoco.mj_setState(self.model, self.shared, self.start, self.spec)
        for name in ("qpos", "qvel", "ctrl", "qacc_warmstart"):
            self.batch.bind(name)[:] = getattr(self.shared, name)
        ctrl = self.batch.bind("ctrl")
        for target in self.ctrl_T6:
            ctrl[:, :6] = target
            self.batch.step(nstep=self.substeps)
            for i in range(self.k):
                self.sample(self.batch.get_data(i, self.shared))
        return np.array(self.batch.bind("qpos"))

    def rolled_out(self) -> np.ndarray:
        """`mujoco.rollout`, one call a chunk; it returns states but no contacts, so the records stay incomplete."""
        mujoco.mj_setState(self.model, self.shared, self.start, self.spec)
        states = np.empty((self.k, 1, mujoco.mj_stateSize(self.model, mujoco.mjtState.mjSTATE_FULLPHYSICS)))
        mujoco.mj_getState(self.model, self.shared, states[0, 0], mujoco.mjtState.mjSTATE_FULLPHYSICS)
        states[:] = states[0]
        for first in range(0, len(self.ctrl_T6), CHUNK_TICKS):
            control_S6 = np.repeat(self.ctrl_T6[first : first + CHUNK_TICKS], self.substeps, axis=0)
            control = np.broadcast_to(control_S6, (self.k, *control_S6.shape))
            # The solver's starting point of the last copy serves all: they are alike here.
            warmstart = np.tile(self.shared.qacc_warmstart, (self.k, 1))
            states, _ = mujoco.rollout.rollout(
                self.model, self.shared, states[:, -1], control, initial_warmstart=warmstart
            )
        return states[:, -1, 1 : 1 + self.model.nq]

    def sample(self, data: Any) -> None:
        """The reads of `BoatToDisk._sample`."""
        data.qpos.tolist(), float(np.abs(data.qvel).max()), self.env.scene.grip_code(data)


def cpu_s(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def compare(k: int, repeats: int) -> dict[str, Any]:
    """CPU microseconds a tick and environment of each way, and its ratio to the loop (median over paired repeats)."""
    arms = Arms(k)
    ways = {"loop of mj_step": arms.loop, "mujoco.batch": arms.batched, "mujoco.rollout": arms.rolled_out}
    finals = {name: way() for name, way in ways.items()}
    times = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(cpu_s(way))
    ticks = k * len(arms.ctrl_T6)
    return {
        "k": k,
        **{
            name: {
                "us": 1e6 * statistics.median(times[name]) / ticks,
                "of_loop": statistics.median(a / b for a, b in zip(times[name], times["loop of mj_step"], strict=True)),
                "same_bits": bool(np.array_equal(finals[name], finals["loop of mj_step"])),
            }
            for name in ways
        },
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [compare(k, options.repeats) for k in (1, 4, 16)]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'environments':<14}{'way':<18}{'us a tick':>10}{'of the loop':>13}  same bits")
    for row in rows:
        for name, figures in row.items():
            if name != "k":
                same = "yes" if figures["same_bits"] else "no"
                print(f"{row['k']:<14}{name:<18}{figures['us']:>10.0f}{figures['of_loop']:>13.2f}  {same}")


if __name__ == "__main__":
    main()
