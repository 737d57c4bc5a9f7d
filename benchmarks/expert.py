"""The scripted expert over bands of seeds: successes, lengths, pauses, processor time, and why episodes fail.

Run with ``python benchmarks/expert.py --seeds 300-399,400-499 --noise none`` (a row for each band, ``--protocol``,
``--json``); about 0.2 s of processor time an episode, nothing is rendered. ``--noise mix`` disturbs as demonstrations
of the default configuration do, ``noisy`` adds noise to every episode, ``miss`` begins each with a deliberate miss.
With ``--moments 5`` a fresh expert also takes over at five random ticks of each episode, in another environment: how
often the boat is placed, and by how much the next 30 targets differ at most. Recorded: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from collections import Counter
from typing import Any

import numpy as np

from vla_rl.config.schema import DemosConfig, LookConfig
from vla_rl.seeds import parse_seeds
from vla_rl.sim.demonstration import DemoNoise, Disturbance, ExpertEpisode, Recorder
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.expert import ScriptedExpert
from vla_rl.sim.poses import Abandon
from vla_rl.sim.snapshot import EnvSnapshot

PAUSE_DEG = 0.1


class StoringEnv(BoatToDisk):
    """Takes a snapshot before every tick once asked to."""

    moments: list[EnvSnapshot] | None = None

    def tick(self, target_deg: np.ndarray) -> bool:
        """As `BoatToDisk.tick`."""
        if self.moments is not None:
            self.moments.append(self.snapshot())
        return super().tick(target_deg)


def noises() -> dict[str, DemoNoise | None]:
    """How episodes may be disturbed."""
    config = DemosConfig()
    (low_deg, high_deg), jitter_deg = config.noise_deg, config.start_jitter_deg
    shares = {"mix": (config.noise_share, config.miss_share), "noisy": (1.0, 0.0), "miss": (0.0, 1.0)}
    return {"none": None} | {name: DemoNoise(n, (low_deg, high_deg), jitter_deg, m) for name, (n, m) in shares.items()}


def longest_pause(episode: ExpertEpisode) -> int:
    """Most ticks in a row in which no target changes by `PAUSE_DEG`."""
    moved_deg = np.abs(np.diff(episode.targets_deg, axis=0)).max(axis=1, initial=0.0)
    return max((len(list(run)) for paused, run in itertools.groupby(moved_deg < PAUSE_DEG) if paused), default=0)


def taken_over(env: BoatToDisk, moment: EnvSnapshot, targets_deg: np.ndarray) -> tuple[bool, float]:
    """Whether a fresh expert places the boat from a moment, and how far its targets are from `targets_deg` [30, 6]."""
    env.restore(moment)
    recorder = Recorder(env, Disturbance.drawn(None, 0, 1), record_every=1_000_000, render=False)
    fail = None
    try:
        ScriptedExpert(env).go_on(recorder)
    except Abandon as reason:
        fail = str(reason)
    episode = recorder.episode(fail)
    length = min(len(targets_deg), len(episode.targets_deg))
    differences_deg = np.abs(episode.targets_deg[:length] - targets_deg[:length])
    return episode.ok, float(differences_deg.max(initial=0.0))


def measure(protocol: str, noise: DemoNoise | None, seeds: tuple[int, ...], moments: int) -> dict[str, Any]:
    """The results of one band."""
    settings: dict[str, Any] = {
        "protocol": protocol,
        "image_px": 112,
        "chunk_ticks": 30,
        "max_ticks": 900,
        "terminate_on": "never",
        "stop_hopeless": False,
        "look": dataclasses.asdict(LookConfig()),
    }
    env, other, rng = StoringEnv(**settings), BoatToDisk(**settings), np.random.default_rng(0)
    expert, episodes, again, cpu_s = ScriptedExpert(env), [], [], 0.0
    for seed in seeds:
        env.moments, started = [] if moments else None, time.process_time()
        episodes.append(episode := expert.run(seed, noise=noise, record_every=1_000_000, render=False))
        cpu_s += time.process_time() - started
        if moments and episode.ok:
            assert env.moments is not None
            for tick in rng.integers(0, len(env.moments), moments):
                again.append(taken_over(other, env.moments[tick], episode.targets_deg[tick : tick + 30]))
    good = [episode for episode in episodes if episode.ok]
    return {
        "seeds": f"{seeds[0]}-{seeds[-1]}",
        "episodes": len(seeds),
        "strict": sum(episode.metrics.success_strict for episode in episodes),
        "kept": len(good),
        "ticks": float(np.mean([len(episode.targets_deg) for episode in good])),
        "longest": max(len(episode.targets_deg) for episode in good),
        "longest_pause": max(longest_pause(episode) for episode in good),
        "cpu_s": cpu_s / len(seeds),
        "failures": {str(seed): episode.fail for seed, episode in zip(seeds, episodes, strict=True) if not episode.ok},
        "moments": len(again),
        "moments_placed": sum(ok for ok, _ in again),
        "difference_deg": [float(q) for q in np.quantile([d for _, d in again] or [0.0], (0.5, 0.95, 1.0))],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="300-399")
    parser.add_argument("--protocol", default="sim100b")
    parser.add_argument("--noise", default="none", choices=("none", "mix", "noisy", "miss"))
    parser.add_argument("--moments", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for band in options.seeds.split(","):
        row = measure(options.protocol, noises()[options.noise], parse_seeds(band), options.moments)
        if options.json:
            print(json.dumps({"protocol": options.protocol, "noise": options.noise} | row), flush=True)
            continue
        why = Counter(row["failures"].values())
        print(
            f"| {options.protocol} | {options.noise} | {row['seeds']} | {row['strict']}/{row['episodes']} "
            f"| {row['kept']} | {row['ticks']:.0f} ({row['longest']}) | {row['longest_pause']} | {row['cpu_s']:.2f} "
            f"| {', '.join(f'{count} {reason}' for reason, count in why.items()) or '–'} |",
            flush=True,
        )
        if row["moments"]:
            median, high, worst = row["difference_deg"]
            print(
                f"    taken over {row['moments_placed']}/{row['moments']}; targets differ by {median:.2g} (median), "
                f"{high:.2g} (95 %), {worst:.2g} (worst) degrees",
                flush=True,
            )


if __name__ == "__main__":
    main()
