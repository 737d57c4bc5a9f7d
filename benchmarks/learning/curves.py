"""Draws the learning curves of the runs whose logs lie beside this file, and prints their figures.

Run with `python benchmarks/learning/curves.py` (needs matplotlib: `pip install matplotlib`). In: `NAME.train.jsonl` and
`NAME.eval.jsonl` of every run, as `vla-rl train` wrote them. Out: `curves.svg`: greedy held-out success with its
Clopper-Pearson interval, and the successes of the training waves as a mean over five.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
RUNS = {"seed0": "#1b6ca8", "seed1": "#2a9d5c", "seed2": "#c77d0a", "shuffled": "#8a8a8a"}
MEAN_OVER = 5


def rows(name: str) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def main() -> None:
    """Print and draw."""
    plt.rcParams["svg.hashsalt"] = "vla_rl"
    figure, (held_out, waves) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    lifts = []
    for name, colour in RUNS.items():
        evals, steps = rows(f"{name}.eval.jsonl"), rows(f"{name}.train.jsonl")
        at = [row["step"] for row in evals]
        rate = [100 * row["success_rate"] for row in evals]
        held_out.plot(at, rate, marker="o", color=colour, label=name, linestyle="--" if name == "shuffled" else "-")
        held_out.fill_between(
            at,
            [100 * row["success_low"] for row in evals],
            [100 * row["success_high"] for row in evals],
            color=colour,
            alpha=0.10,
        )
        sampled = [100 * row["successes"] / row["episodes"] for row in steps]
        means = [fmean(sampled[max(0, i - MEAN_OVER + 1) : i + 1]) for i in range(len(sampled))]
        waves.plot([row["step"] for row in steps], means, color=colour, linestyle="--" if name == "shuffled" else "-")
        print(
            f"{name:<10}greedy {' '.join(f'{value:.0f}' for value in rate)}   "
            f"sampled, first and last {MEAN_OVER} waves "
            f"{fmean(sampled[:MEAN_OVER]):.0f} {fmean(sampled[-MEAN_OVER:]):.0f}   "
            f"{steps[-1]['gpu_h_total'] * 60:.1f} GPU-minutes"
        )
        if name != "shuffled":
            lifts.append(rate[-1] - rate[0])
    print(f"mean lift over {len(lifts)} seeds: {fmean(lifts):+.1f} points")
    held_out.set(title="held out: greedy, seeds 300-399", xlabel="GRPO step", ylabel="strict success, %", ylim=(0, 100))
    waves.set(title=f"training waves: T 0.6, mean over {MEAN_OVER} steps", xlabel="GRPO step")
    held_out.legend(loc="lower left", frameon=False)
    figure.tight_layout()
    figure.savefig(HERE / "curves.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
