"""How fast the scripted expert carries the boat: what a policy's carry speed is shown against.

In: a protocol's id. Out: the expert's median on the development seeds, from `expert_pace.json`, which
``python -m vla_rl.evals.expert_pace`` writes anew: all protocols, no pictures, about 0.2 s of processor time an
episode.
It depends on physics and on the expert alone, so it is measured again whenever one of them changes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from vla_rl.config.schema import LookConfig, SimConfig
from vla_rl.rollout.files import dump_json, write_atomic
from vla_rl.seeds import parse_seeds
from vla_rl.sim.protocol import PROTOCOLS

FILE = Path(__file__).with_suffix(".json")
SEEDS, WORKERS = "300-399", 2


@functools.cache
def _measured() -> dict[str, Any]:
    return json.loads(FILE.read_bytes())


def expert_carry_speed(protocol: str | None) -> float | None:
    """The expert's median carry speed under a protocol, cm/s; None for a world that it was not measured in."""
    found = _measured()["protocols"].get(protocol)
    return found["carry_speed_median_cm_s"] if found else None


def measure(protocol: str, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Run the expert over seeds of one protocol: `episodes`, `success_strict`, `carries`, `carry_speed_median_cm_s`."""
    from vla_rl.sim.env import BoatToDisk
    from vla_rl.sim.expert import ScriptedExpert

    settings: dict[str, Any] = dataclasses.asdict(SimConfig(protocol=protocol, look=LookConfig()))
    del settings["_target_"]
    expert = ScriptedExpert(BoatToDisk(**settings))
    metrics = [expert.run(seed, noise=None, record_every=1_000_000, render=False).metrics for seed in seeds]
    speeds = [m.carry_speed_cm_s for m in metrics if m.carry_speed_cm_s is not None]
    return {
        "episodes": len(metrics),
        "success_strict": sum(m.success_strict for m in metrics),
        "carries": len(speeds),
        "carry_speed_median_cm_s": median(speeds) if speeds else None,
    }


def main() -> None:
    """Measure every protocol and write the file."""
    seeds = parse_seeds(SEEDS)
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(PROTOCOLS, pool.map(measure, PROTOCOLS, [seeds] * len(PROTOCOLS)), strict=True))
    write_atomic(FILE, dump_json({"seeds": SEEDS, "protocols": found}, indent=1).encode() + b"\n")
    print(f"{len(found)} protocols in {FILE}", file=sys.stderr)


if __name__ == "__main__":
    main()
