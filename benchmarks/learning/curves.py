"""Draws the learning curves of the runs whose logs lie beside this file, and prints their figures.

Run with `python benchmarks/learning/curves.py`. In: `NAME.train.jsonl` and `NAME.eval.jsonl` of every run, as
`vla-rl train` wrote them. Out: `curves.svg`: greedy held-out success with its Clopper-Pearson interval, and the
successes of the training waves as a mean over five, drawn as those of a registration's report are.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from vla_rl.report.curves import MEAN_OVER, Curve, HeldOut, figure, smoothed

HERE = Path(__file__).parent
RUNS = ("seed0", "seed1", "seed2", "shuffled")


def rows(name: str) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def main() -> None:
    """Print and draw."""
    curves, lines, lifts = [], {}, []
    for name in RUNS:
        evals, steps = rows(f"{name}.eval.jsonl"), rows(f"{name}.train.jsonl")
        lines[name] = tuple((row["step"], row["successes"], row["trials"]) for row in evals)
        means = smoothed([(row["step"], row["successes"], row["episodes"]) for row in steps])
        sizes = [row["episodes"] for row in steps]
        points = tuple((step, mean, mean, mean) for step, mean in means.items())
        curves.append(Curve(name, 1, points, (min(sizes), max(sizes))))
        sampled = [100 * row["successes"] / row["episodes"] for row in steps]
        rate = [100 * k / n for _, k, n in lines[name]]
        print(
            f"{name:<10}greedy {' '.join(f'{value:.0f}' for value in rate)}   "
            f"sampled, first and last {MEAN_OVER} waves "
            f"{fmean(sampled[:MEAN_OVER]):.0f} {fmean(sampled[-MEAN_OVER:]):.0f}   "
            f"{steps[-1]['gpu_h_total'] * 60:.1f} GPU-minutes"
        )
        if name != "shuffled":
            lifts.append(rate[-1] - rate[0])
    print(f"mean lift over {len(lifts)} seeds: {fmean(lifts):+.1f} points")
    held_out = HeldOut("greedy, seeds 300-399, n = 100", lines)
    (HERE / "curves.svg").write_bytes(figure(curves, [held_out], "forty steps of 8 x 8"))


if __name__ == "__main__":
    main()
