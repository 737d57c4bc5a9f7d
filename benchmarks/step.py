"""Where the time of one full GRPO step goes: physics, pictures, inference, update, and the rest.

Run with `python benchmarks/step.py`; anything of `vla-rl train` can be overridden, e.g. `pool.workers=16
sampler.batch_rows=64 optim.microbatch_rows=256`. A real run of the shipped base: 8 seeds x 8 draws, and every episode
plays all of its 30 replans (900 ticks, no early end), so that each step has 1,920 rows whatever the policy does. The
first step, which warms everything up, is left out.

Episodes are played by worker processes while the network samples for others, so physics and pictures are given per
worker and overlap with inference; the wave's wall time is what counts. Ceiling of a wave: the larger of inference and
of a worker's physics and pictures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from trainer import Clock

from vla_rl.cli.main import main as vla_rl
from vla_rl.policy.sampler import GrammarSampler
from vla_rl.rl import waves as stage

OVERRIDES = (
    "experiment=quickstart",
    "geometry=documented",
    "sim.max_ticks=900",
    "sim.terminate_on=never",
    "sim.stop_hopeless=false",
    "eval.seeds=300-301",
    "plugins=[clocked]",
    "sim._target_=clocked.SplitBoat",
)


def measure(steps: int, overrides: list[str]) -> dict[str, Any]:
    """Medians over the steps after the first, in seconds."""
    clock, waves = Clock(), []
    clock.wrap(GrammarSampler, "_batch", "inference")
    play = stage.run_wave

    def run_wave(**asked: Any) -> Any:
        before_s = clock.seconds.get("inference", 0.0)
        wave = play(**asked)
        waves.append(clock.seconds["inference"] - before_s)
        return wave

    stage.run_wave = run_wave
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        if vla_rl(["train", *OVERRIDES, f"run.steps={steps + 1}", f"run.dir={run}", *overrides]) != 0:
            raise SystemExit("the run failed")
        rows = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()][1:]
        played = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    episodes = [e for e in played if e["phase"] == "train" and e["step"] > 1]
    return {
        "steps": len(rows),
        "episodes": statistics.fmean(row["episodes"] for row in rows),
        "rows": statistics.fmean(row["rows"] for row in rows),
        "wave_s": statistics.median(row["rollout_s"] for row in rows),
        "update_s": statistics.median(row["update_s"] for row in rows),
        "save_s": statistics.median(row["save_s"] for row in rows),
        "physics_worker_s": sum(e["physics_s"] for e in episodes) / len(rows),
        "pictures_worker_s": sum(e["pictures_s"] for e in episodes) / len(rows),
        "inference_s": statistics.median(waves[1:]),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    found = {**measure(options.steps, options.overrides), "cuda": torch.cuda.is_available()}
    print(json.dumps(found) if options.json else "\n".join(f"{name:<20}{value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
