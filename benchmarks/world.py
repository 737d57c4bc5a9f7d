"""Whether servo, home pose or control timing decides what the scripted expert reaches: swapped one by one.

Run with ``python benchmarks/world.py`` (``--seeds 300-319`` for a shorter look, ``--json``); about 0.4 s an episode,
nothing is rendered. Every row is a world of its own with its own scene hash: for each of the three the documented value
or that of ``sim100b``, all eight combinations. The expert is the same in all of them and reads home pose and disk from
its world. Then, for both servos: how far gravity pulls the hand down over the boat, and how long a step takes. The
recorded tables are in docs/world.md. These seeds are burned by this: see `vla_rl.seeds.BURNED`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections import Counter
from typing import Any

import numpy as np

from vla_rl.config.schema import LookConfig
from vla_rl.seeds import parse_seeds
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.expert import ScriptedExpert
from vla_rl.sim.ik import ArmKinematics
from vla_rl.sim.protocol import DOCUMENTED_HOME, PROTOCOLS, Protocol
from vla_rl.stats.intervals import clopper_pearson

DOCUMENTED, OURS = PROTOCOLS["sim100"], PROTOCOLS["sim100b"]
FACTORS = {"servo": ("servo",), "home": tuple(DOCUMENTED_HOME), "timing": ("substeps", "timestep_s")}


def worlds() -> list[tuple[dict[str, str], Protocol]]:
    """Every combination, the documented one first: where each factor comes from, and the protocol."""
    found = []
    for choice in itertools.product((DOCUMENTED, OURS), repeat=len(FACTORS)):
        origin = dict(zip(FACTORS, choice, strict=True))
        fields = {field: getattr(origin[factor], field) for factor, names in FACTORS.items() for field in names}
        world = dataclasses.replace(OURS, name="unnamed", **fields)
        registered = (p for p in PROTOCOLS.values() if dataclasses.replace(p, name="unnamed") == world)
        labels = {factor: "documented" if base is DOCUMENTED else "sim100b" for factor, base in origin.items()}
        found.append((labels, next(registered, world)))
    return found


def environment(protocol: Protocol) -> BoatToDisk:
    """An environment of `protocol` in the plain look."""
    return BoatToDisk(
        protocol=protocol,
        image_px=112,
        chunk_ticks=30,
        max_ticks=900,
        terminate_on="never",
        stop_hopeless=False,
        look=dataclasses.asdict(LookConfig()),
    )


def measure(protocol: Protocol, seeds: tuple[int, ...]) -> dict[str, Any]:
    """The undisturbed expert's results on `seeds`."""
    env = environment(protocol)
    expert = ScriptedExpert(env)
    episodes = [expert.run(seed, noise=None, record_every=30, render=False) for seed in seeds]
    strict = sum(episode.metrics.success_strict for episode in episodes)
    return {
        "protocol": protocol.name,
        "scene_hash": env.scene_hash,
        "episodes": len(episodes),
        "strict": strict,
        "interval": list(clopper_pearson(strict, len(episodes))),
        "documented": sum(episode.metrics.success_documented for episode in episodes),
        "pinched": sum(episode.metrics.pinched for episode in episodes),
        "lifted": sum(episode.metrics.lifted for episode in episodes),
        "tipped": sum(episode.metrics.tipped for episode in episodes),
        "reset_strikes": sum(episode.metrics.reset_strikes for episode in episodes),
        "failures": dict(Counter(episode.fail for episode in episodes if episode.fail).most_common()),
    }


def servo_response(protocol: Protocol) -> dict[str, float]:
    """Sag of the jaw tips when the hand is held over the middle of the spawn patch, and how late the pan joint follows.

    The pan joint is moved by 2 degrees a tick (60 degrees per second) for 30 ticks, then left alone.
    """
    env = environment(protocol)
    env.begin(300)
    arm, hand = ArmKinematics(env.scene), np.array([0.0145, 0.0, -0.0975])
    over_m = np.array([np.mean(protocol.spawn_x_m), np.mean(protocol.spawn_y_m), 0.07])
    pose = arm.solve(over_m, hand, arm.guess(over_m[:2], 0.0), jaw_heading_rad=0.0)
    target_deg = np.append(np.rad2deg(pose.joints_rad), 24.0)
    for _ in range(150):
        env.tick(target_deg)
    held_m = arm.tool(np.deg2rad(env.state_deg[:5]), hand)[0]
    sag_m = arm.tool(pose.joints_rad, hand)[0][2] - held_m[2]
    behind_deg = []
    for tick in range(90):
        target_deg[0] += 2.0 if tick < 30 else 0.0
        env.tick(target_deg)
        behind_deg.append(abs(target_deg[0] - env.state_deg[0]))
    rest = next(tick for tick in range(30, 90) if max(behind_deg[tick:]) < 1.0) - 29
    late_s = behind_deg[29] / (2.0 / protocol.tick_s)
    return {"sag_mm": 1e3 * float(sag_m), "late_s": float(late_s), "rest_s": rest * protocol.tick_s}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="300-399")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    if not options.json:
        print("| servo | home | timing | protocol | strict [95 %] | documented | pinched | lifted | why not |")
        print("|---|---|---|---|---|---|---|---|---|")
    for labels, protocol in worlds():
        row = labels | measure(protocol, parse_seeds(options.seeds))
        rows.append(row)
        if not options.json:
            low, high = row["interval"]
            why = ", ".join(f"{count} {reason}" for reason, count in row["failures"].items()) or "–"
            print(
                f"| {row['servo']} | {row['home']} | {row['timing']} | {row['protocol']} "
                f"| {row['strict']}/{row['episodes']} [{low:.2f}, {high:.2f}] | {row['documented']} | {row['pinched']} "
                f"| {row['lifted']} | {why} |",
                flush=True,
            )
    servos = {"documented": servo_response(PROTOCOLS["sim100-30hz"]), "sim100b": servo_response(OURS)}
    if options.json:
        print(json.dumps({"seeds": options.seeds, "rows": rows, "servos": servos}, indent=1))
        return
    print("\n| servo | sag of the jaw tips | late at 60 degrees/s | within 1 degree after the end |\n|---|---|---|---|")
    for name, row in servos.items():
        print(f"| {name} | {row['sag_mm']:.1f} mm | {row['late_s']:.3f} s | {row['rest_s']:.2f} s |")


if __name__ == "__main__":
    main()
