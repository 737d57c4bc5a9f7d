"""How fast the scripted expert carries the boat: what a policy's carry speed is shown against.

In: a protocol's id. Out: the expert's median on the development seeds, from `expert_pace.json`, which
``python -m vla_rl.evals.expert_pace`` writes anew: every protocol but for its horizon (the expert goes by ticks, not by
chunks), no pictures, about 0.2 s of processor time an episode. It depends on physics and on the expert alone, so it is
measured again whenever one of them changes; the file also holds the speeds of its first seeds, by which a test notices.
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
from vla_rl.files import write_atomic
from vla_rl.rollout.jsonl import dump_json
from vla_rl.seeds import parse_seeds
from vla_rl.sim.protocol import HORIZONS, PROTOCOLS

FILE = Path(__file__).with_suffix(".json")
SEEDS, WORKERS = "300-399", 2
FIRST = 3  # seeds whose own speeds are written too


@functools.cache
def _measured() -> dict[str, Any]:
    return json.loads(FILE.read_bytes())


def expert_carry_speed(protocol: str | None) -> float | None:
    """The expert's median carry speed under a protocol, cm/s; None for a world that it was not measured in."""
    found = _measured()["protocols"].get(without_horizon(protocol)) if protocol else None
    return found["carry_speed_median_cm_s"] if found else None


def without_horizon(protocol: str) -> str:
    """The id of the protocol that executes 30 ticks of a chunk and is the same otherwise."""
    rest, _, last = protocol.rpartition("-")
    return rest if last in HORIZONS else protocol


def measure(protocol: str, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Run the expert over seeds of one protocol.

    Returns:
        `episodes`, `success_strict`, `carries`, `carry_speed_median_cm_s`, and `first_carry_speeds_cm_s`: those of the
        first seeds, None for one without a carry.
    """
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
        "first_carry_speeds_cm_s": [m.carry_speed_cm_s for m in metrics[:FIRST]],
    }


def main() -> None:
    """Measure the protocols and write the file."""
    seeds, names = parse_seeds(SEEDS), [name for name in PROTOCOLS if without_horizon(name) == name]
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(names, pool.map(measure, names, [seeds] * len(names)), strict=True))
    write_atomic(FILE, dump_json({"seeds": SEEDS, "protocols": found}, indent=1).encode() + b"\n")
    print(f"{len(found)} protocols in {FILE}", file=sys.stderr)


if __name__ == "__main__":
    main()
