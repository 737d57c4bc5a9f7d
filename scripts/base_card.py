"""Measures a base policy and writes the figures of its card.

Run with `python scripts/base_card.py src/vla_rl/bases/NAME --temperature 0.7 --work DIR` (minutes for each condition on
two cores). Every condition is one `vla-rl eval`, which can be stopped and goes on when this is run again with the same
`--work`. Written: `evaluation.json` in the base's directory, a summary by condition, and the table of its `README.md`
between the two marks, so that no figure of the card is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SEEDS, FEWER = "300-399", "300-349"  # the second where pictures are taken away: most episodes run to their end
BEGIN, END = "<!-- figures: scripts/base_card.py -->", "<!-- end of figures -->"
CONDITIONS = {
    "greedy": ("eval.temperature=0", SEEDS, "greedy"),
    "foreign": ("eval.frames=foreign", FEWER, "greedy, pictures of another episode"),
    "black": ("eval.frames=black", FEWER, "greedy, black pictures"),
    "still": ("eval.frames=still", FEWER, "greedy, one still pair of pictures: state only"),
    "top_black": ("eval.frames=top_black", FEWER, "greedy, top camera black"),
    "wrist_black": ("eval.frames=wrist_black", FEWER, "greedy, wrist camera black"),
}


def conditions(temperatures: list[float]) -> dict[str, tuple[str, str, str]]:
    """Override, seeds and label of every condition: greedy, each temperature (the first is `sampled`), the blind."""
    sampled = {
        "sampled" if i == 0 else f"sampled_{t:g}": (f"eval.temperature={t:g}", SEEDS, f"temperature {t:g}")
        for i, t in enumerate(temperatures)
    }
    return {"greedy": CONDITIONS["greedy"], **sampled, **CONDITIONS}


def measure(
    base: Path, work: Path, chosen: dict[str, tuple[str, str, str]], extra: list[str]
) -> dict[str, dict[str, Any]]:
    """Summaries by condition; what `work` already holds is not played again."""
    summaries = {}
    for name, (condition, seeds, _) in chosen.items():
        directory = work / name
        record = directory / "eval.json"
        if not record.is_file():
            if name in ("foreign", "still"):  # these cannot go on: an episode is shown what others saw
                shutil.rmtree(directory, ignore_errors=True)
            if (directory / "config.yaml").is_file():
                started = [f"run.resume={directory}"]
            else:
                started = [
                    f"policy.checkpoint={base}",
                    f"eval.seeds={seeds}",
                    f"run.dir={directory}",
                    condition,
                    *extra,
                ]
            command = [sys.executable, "-m", "vla_rl.cli.main", "eval", *started, "--video", "none"]
            subprocess.run(command, check=True)
        found = json.loads(record.read_text())
        summaries[name] = {"policy_digest": found["policy"]["digest"], **found["summary"], "seeds": seeds}
    return summaries


def table(summaries: dict[str, dict[str, Any]], chosen: dict[str, tuple[str, str, str]]) -> str:
    """The card's table: strict success with its interval, documented success, nats a token."""
    lines = ["| decoding | strict success | documented success | nats a token |", "|---|---|---|---|"]
    for name, summary in summaries.items():
        label = chosen[name][2]
        low, high = summary["success_strict_low"], summary["success_strict_high"]
        trials = summary["trials"]
        lines.append(
            f"| {label} | {summary['success_strict']}/{trials} [{low:.2f}, {high:.2f}] "
            f"| {summary['success_documented']}/{trials} | {summary['nll_mean']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, write `evaluation.json`, and put the table into the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("--temperature", type=float, nargs="+", required=True, help="of the sampled evaluations")
    parser.add_argument("--work", type=Path, required=True, help="where the evaluations are kept")
    parser.add_argument("overrides", nargs="*", help="more overrides for every evaluation, e.g. run.device=cpu")
    options = parser.parse_intermixed_args()
    chosen = conditions(options.temperature)
    summaries = measure(options.base, options.work, chosen, options.overrides)
    (options.base / "evaluation.json").write_text(json.dumps(summaries, indent=1) + "\n")
    card = options.base / "README.md"
    text = card.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    card.write_text(f"{before}{BEGIN}\n{table(summaries, chosen)}\n{END}{after}")
    print(table(summaries, chosen))


if __name__ == "__main__":
    main()
