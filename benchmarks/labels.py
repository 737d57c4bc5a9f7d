"""Which labels a learner does better on: targets that go on from the clean ones before, or from where noise has led.

Run with ``python benchmarks/labels.py`` (``--demos 25,100``, ``--learners 2``; minutes a row on one core). The same
disturbed demonstrations are made twice. *clean*: as the expert makes them, noise is added on the way to the servos and
the next label goes on from the clean one before. *displaced*: noise of the same size displaces the command for good,
and the next label starts there, as DART has it for single actions. A small network learns 30-tick chunks from joint
angles and boat pose and drives the arm on 100 development seeds, seeing both with errors of 0.5 degrees, 3 mm and 4
degrees; chunks are executed open loop. No pictures: this is about labels. Recorded: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vla_rl.config.schema import LookConfig
from vla_rl.sim.demonstration import DemoNoise, Disturbance, Recorder
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.expert import ScriptedExpert
from vla_rl.sim.poses import Abandon
from vla_rl.sim.spawn import Spawn

CHUNK, SEEDS, FIRST_DEMO = 30, range(300, 400), 120000
NOISE = DemoNoise(noisy_share=0.5, noise_deg=(0.5, 2.0), start_jitter_deg=3.0, miss_share=0.0)
STEPS, BATCH, WIDTH, RATE = 2000, 256, 192, 2e-3
SEEN_DEG, SEEN_M, SEEN_RAD = 0.5, 0.003, np.deg2rad(4.0)


Learner = Callable[[np.ndarray], np.ndarray]


class DisplacingRecorder(Recorder):
    """Noise moves the command and stays in it: only its change is added, and the expert goes on from the sum."""

    def _next_noise_deg(self) -> np.ndarray:
        before_deg = self._noise_deg.copy()
        return super()._next_noise_deg() - before_deg

    def tick(self, phase: Any, target_deg: np.ndarray, *, taught: bool = True) -> None:
        """As `Recorder.tick`; the command is what the servos hold."""
        super().tick(phase, target_deg, taught=taught)
        self.told_deg = None


class WatchedEnv(BoatToDisk):
    """Keeps what could be seen before every tick."""

    looks: list[np.ndarray]

    def begin(self, seed: int, arm_deg: np.ndarray | None = None) -> Spawn:
        """As `BoatToDisk.begin`."""
        self.looks = []
        return super().begin(seed, arm_deg)

    def tick(self, target_deg: np.ndarray) -> bool:
        """As `BoatToDisk.tick`."""
        self.looks.append(seen(self))
        return super().tick(target_deg)


def environment(terminate_on: str, max_ticks: int) -> WatchedEnv:
    """One environment of the default protocol."""
    return WatchedEnv(
        protocol="sim100b",
        image_px=32,
        chunk_ticks=CHUNK,
        max_ticks=max_ticks,
        terminate_on=terminate_on,
        stop_hopeless=True,
        look=dataclasses.asdict(LookConfig()),
    )


def seen(env: BoatToDisk) -> np.ndarray:
    """Joint angles and boat pose, float64 [12], roughly of unit size."""
    boat = env.scene.boat_qpos
    x_m, y_m, z_m, w, x, y, z = env.data.qpos[boat : boat + 7].tolist()
    place = [(x_m - 0.22) / 0.03, (y_m - 0.05) / 0.03, (z_m - 0.02) / 0.03]
    turn = [1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 1 - 2 * (x * x + y * y)]
    return np.concatenate([env.state_deg / 30.0, place, turn])


def blurred(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An observation with errors."""
    found = observation.copy()
    found[:6] += rng.normal(0.0, SEEN_DEG / 30.0, 6)
    found[6:8] += rng.normal(0.0, SEEN_M / 0.03, 2)
    angle = rng.normal(0.0, SEEN_RAD)
    cos, sin = np.cos(angle), np.sin(angle)
    found[9:11] = cos * found[9] - sin * found[10], sin * found[9] + cos * found[10]
    return found


def demonstrations(kind: type[Recorder], episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations [n, 12] and chunks [n, 30 * 6] of the first `episodes` that are kept."""
    env = environment("never", 900)
    expert, observations, chunks = ScriptedExpert(env), [], []
    home_deg, seed, kept = np.array(env.scene.protocol.home_deg), FIRST_DEMO, 0
    while kept < episodes:
        disturbance = Disturbance.drawn(NOISE, seed, 1)
        env.begin(seed, home_deg + disturbance.start_deg)
        recorder = kind(env, disturbance, record_every=1_000_000, render=False)
        seed += 1
        try:
            expert.go_on(recorder)
        except Abandon:
            continue
        episode = recorder.episode(None)
        if episode.ok:
            kept += 1
            padded_deg = np.concatenate([episode.targets_deg, np.repeat(episode.targets_deg[-1:], CHUNK, axis=0)])
            for tick in np.flatnonzero(episode.trainable_T):
                observations.append(env.looks[tick])
                chunks.append(padded_deg[tick : tick + CHUNK].ravel())
    return np.array(observations), np.array(chunks)


def learned(
    observations: np.ndarray, chunks: np.ndarray, seed: int
) -> tuple[Callable[[np.ndarray], np.ndarray], float]:
    """A network fitted to the chunks: observation to targets [30, 6] in degrees; and its mean error in degrees."""
    torch.manual_seed(seed)
    seen_NI, wanted_NO = torch.tensor(observations).float(), torch.tensor(chunks).float()
    middle_O, spread_O = wanted_NO.mean(0), wanted_NO.std(0) + 1e-3
    sizes = (seen_NI.shape[1], WIDTH, WIDTH, WIDTH, wanted_NO.shape[1])
    layers = [layer for i, o in itertools.pairwise(sizes) for layer in (torch.nn.Linear(i, o), torch.nn.GELU())]
    net = torch.nn.Sequential(*layers[:-1])
    optimiser = torch.optim.AdamW(net.parameters(), RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, STEPS)
    for _ in range(STEPS):
        rows = torch.randint(len(seen_NI), (BATCH,))
        loss = (net(seen_NI[rows]) - (wanted_NO[rows] - middle_O) / spread_O).abs().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        error_deg = float((net(seen_NI) * spread_O + middle_O - wanted_NO).abs().mean())

    def act(observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            out_O = net(torch.tensor(observation).float()) * spread_O + middle_O
        return out_O.double().numpy().reshape(CHUNK, 6)

    return act, error_deg


def driven(act: Learner) -> int:
    """On how many of `SEEDS` the learner passes the strict test."""
    env, rng, placed = environment("success_strict", 450), np.random.default_rng(5), 0
    for seed in SEEDS:
        env.begin(seed)
        over = False
        while not over:
            for target_deg in act(blurred(seen(env), rng)):
                if over := env.tick(target_deg):
                    break
        placed += env.metrics().success_strict
    return placed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demos", default="25,100")
    parser.add_argument("--learners", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| labels | demonstrations | error on them, degrees | strict, of 100, a learner each |\n|---|---|---|---|")
    for episodes in (int(number) for number in options.demos.split(",")):
        for name, kind in (("clean", Recorder), ("displaced", DisplacingRecorder)):
            observations, chunks = demonstrations(kind, episodes)
            fits = [learned(observations, chunks, seed) for seed in range(options.learners)]
            error_deg = np.mean([error for _, error in fits])
            placed = ", ".join(str(driven(act)) for act, _ in fits)
            print(f"| {name} | {episodes} | {error_deg:.2f} | {placed} |", flush=True)


if __name__ == "__main__":
    main()
