"""Our simulator against `lerobot-env-so101` 0.4, the SO-101 environment on PyPI: simulated seconds per wall second.

That package gets an environment of its own, `.venv-so101`, from `make bench-lerobot`; SO101_PYTHON names another.

Equal on both sides: MuJoCo's version and OpenGL backend, one process on one core, 240 physics steps a simulated second,
size and number of pictures (one camera), an arm in free motion beside an object that rests on the table. Not equal:
each side's own scene (theirs: cube on a plane, raw meshes, noslip passes; ours: boat, table and disk, simplified
meshes, elliptic cone), its control (theirs: inverse kinematics once a picture; ours: joint targets 30 times a second),
its records (ours samples contacts and metrics every tick) and its pictures (theirs: shadow maps and 8 samples a pixel
when the driver has them; ours: neither). A second comparison switches their shadows and samples off. The sides take
turns; ratios are medians over pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

STEPS_PER_S = 240
OWN_PYTHON = ".venv-so101/bin/python"
SIDES = ("ours", "theirs", "theirs, no shadows or samples")


class Ours:
    """`BoatToDisk`, tick by tick, with a picture of the top camera every few ticks."""

    def __init__(self, image_px: int, pictures_per_s: int) -> None:
        from vla_rl.config.compose import compose

        self.env = compose("eval", ["sim.terminate_on=never", "sim.max_ticks=1000000"]).component("sim")
        self.px, self.ticks = image_px, 30 // pictures_per_s
        self.home_deg = np.array(self.env.scene.protocol.home_deg)
        self.env.begin(300)

    def one_picture(self, phase: float) -> int:
        """Move until the next picture; returns the physics steps that it took."""
        target_deg = self.home_deg + 8.0 * np.sin(phase + np.arange(6))
        for _ in range(self.ticks):
            self.env.tick(target_deg)
        self.env.get_frame("top", self.px, self.px)
        return self.ticks * self.env.scene.protocol.substeps


class Theirs:
    """`SO101PickCubeGymEnv` with its picture in every observation, one step a picture."""

    def __init__(self, image_px: int, pictures_per_s: int, plain: bool) -> None:
        from lerobot_env_so101 import GymRenderingSpec, SO101PickCubeGymEnv  # pyright: ignore[reportMissingImports]

        self.env = SO101PickCubeGymEnv(
            # A whisker more, because they divide rounding down: 0.1 // (1 / 240) is 23.
            control_dt=1.0 / pictures_per_s + 1e-6,
            physics_dt=1.0 / STEPS_PER_S,
            render_spec=GymRenderingSpec(height=image_px, width=image_px),
            image_obs=True,
            action_scale=0.02,
        )
        if plain:
            self.env.model.light_castshadow[:] = 0
            self.env.model.vis.quality.offsamples = 0
        self.env.reset(seed=0)

    def one_picture(self, phase: float) -> int:
        before = self.env.data.time
        action = np.append(np.sin(phase + np.arange(3)), 0.5).astype(np.float32)
        _, _, terminated, truncated, _ = self.env.step(action)
        steps = round((self.env.data.time - before) * STEPS_PER_S)
        if terminated or truncated:
            self.env.reset(seed=0)
        return steps


def serve(side: str, image_px: int, pictures_per_s: int) -> None:
    """In a child process: play as many simulated seconds as each line of input says, and answer with the times."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    world: Ours | Theirs = (
        Ours(image_px, pictures_per_s) if side == SIDES[0] else Theirs(image_px, pictures_per_s, side == SIDES[2])
    )
    phase = 0.0
    for line in sys.stdin:
        pictures, steps = int(float(line) * pictures_per_s), 0
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(pictures):
            phase += 0.3
            steps += world.one_picture(phase)
        answer = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "steps": steps}
        print(json.dumps(answer), flush=True)


class Child:
    """One side in a process of its own."""

    def __init__(self, python: str, side: str, image_px: int, pictures_per_s: int, backend: str) -> None:
        command = [python, __file__, "--serve", side, "--px", str(image_px), "--pictures", str(pictures_per_s)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MUJOCO_GL": backend, "OMP_NUM_THREADS": "1"},
        )

    def play(self, seconds: float) -> dict[str, float]:
        assert self.process.stdin and self.process.stdout
        print(seconds, file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        assert answer["steps"] == round(seconds * STEPS_PER_S), answer
        return answer

    def close(self) -> None:
        self.process.communicate()


def compare(theirs: str, image_px: int, pictures_per_s: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Rates of all sides and the ratios of ours to theirs."""
    from vla_rl.sim.canary import require_rendering

    backend = require_rendering()
    pythons = (sys.executable, theirs, theirs)
    children = [
        Child(python, side, image_px, pictures_per_s, backend) for python, side in zip(pythons, SIDES, strict=True)
    ]
    for child in children:
        child.play(seconds)  # warm-up
    rounds = [[child.play(seconds) for child in children] for _ in range(repeats)]
    for child in children:
        child.close()
    rates = [statistics.median(seconds / played[i]["wall_s"] for played in rounds) for i in range(len(SIDES))]
    return {
        "px": image_px,
        "pictures_per_s": pictures_per_s,
        "backend": backend,
        "simulated_per_wall": dict(zip(SIDES, rates, strict=True)),
        "ratio": {
            clock: [statistics.median(played[i][clock] / played[0][clock] for played in rounds) for i in (1, 2)]
            for clock in ("wall_s", "cpu_s")
        },
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("SO101_PYTHON", OWN_PYTHON), help="has the package")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="simulated seconds of one turn")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--px", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pictures", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.px, options.pictures)
        return
    if not Path(options.python).exists():
        print(f"skipped: there is no {options.python} (make bench-lerobot installs lerobot-env-so101 there)")
        return
    rows = [
        compare(options.python, px, pictures, options.repeats, options.seconds)
        for px, pictures in ((128, 10), (224, 10), (224, 1))
    ]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'picture':<9}{'a second':>9}   simulated seconds per wall second on one core, and ours over theirs")
    for row in rows:
        print(f"{row['px']:>4} px {row['pictures_per_s']:>9}")
        for i, (side, rate) in enumerate(row["simulated_per_wall"].items()):
            wall, cpu = (row["ratio"][clock][i - 1] for clock in ("wall_s", "cpu_s")) if i else (1.0, 1.0)
            print(f"{'':18}   {side:<30}{rate:>7.1f}   ratio {wall:.2f} (processor time {cpu:.2f})")


if __name__ == "__main__":
    main()
