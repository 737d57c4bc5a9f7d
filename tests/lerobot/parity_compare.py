"""Both sides' answers, line by line: what was compared, how far apart it is, and whether that is near enough.

    python tests/lerobot/parity_compare.py DIR           # a table; exit code 1 if a line fails
    python tests/lerobot/parity_compare.py DIR --record  # and, if none fails, the result that is kept with the code

What `world_check.py` found is told and kept with it. `result.json` holds the lines with date and versions, and digests
of the scripts that made them and of what runs under LeRobot alone;
`lerobot_answers.*` a part of LeRobot's answers, which a test holds ours against where LeRobot is not installed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from parity_exchange import CHECKPOINTS, Answers

HERE = Path(__file__).parent
RESULT, KEPT = HERE / "result", HERE / "lerobot_answers"
ROOT = HERE.parents[1]
PARITY = (*(f"parity_{part}.py" for part in ("exchange", "release", "ours", "theirs", "compare")), "constraints.txt")
SCRIPTS = (*PARITY, "world_check.py")
# What the ordinary tests cannot run, because it needs LeRobot.
UNDER_LEROBOT = ("plugins/lerobot_env_vla_rl/lerobot_env_vla_rl/__init__.py", "src/vla_rl/policy/lerobot.py")
PART = 200  # numbers of an array that are kept


@dataclass(frozen=True)
class Line:
    """One kind of answer.

    Attributes:
        what: in words.
        ours, theirs: a part of the arrays' names.
        limit: largest difference that is near enough; 0 where nothing is rounded.
    """

    what: str
    ours: str
    limit: float
    theirs: str = ""

    def pairs(self, ours: Answers, theirs: Answers) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        for name, array in ours.arrays.items():
            if f"/{self.ours}/" in f"/{name}/":
                yield array, theirs.arrays.get(name.replace(self.ours, self.theirs or self.ours))


@dataclass(frozen=True)
class Outcome:
    """How a line came out.

    Attributes:
        numbers: compared.
        size: the largest of them, so that a small difference says something.
        difference: the largest; None where something is missing or of another shape.
    """

    what: str
    numbers: int
    size: float
    difference: float | None
    limit: float
    ok: bool


ARRAYS = (
    Line("token ids of prompts: tasks, ordinary and extreme states", "task_ids", 0),
    Line("token ids of prompts with pictures of four sizes", "prompt_ids", 0),
    Line("tokens that attend to each other both ways", "both_ways", 0),
    Line("pixels", "pixels", 0),
    Line("pixels of the same pictures as LeRobot's floats", "pixels", 0, "pixels_of_floats"),
    Line("patches that an image token pools", "pooling", 0),
    Line("logits of every prompt token over the whole vocabulary", "prompt_logits", 1e-5),
    Line("teacher-forced logits over the action block", "forced_logits", 1e-5),
    Line("greedy tokens decoded, normalised", "token_chunk", 1e-5),
    Line("greedy tokens decoded, degrees of the rig", "token_degrees", 1e-4),
    Line("flow from the same noise, normalised, before it is clamped", "flow_chunk", 1e-5),
    Line("flow as it is served, degrees of the rig", "flow_degrees", 1e-3),
    Line("what streams mean, good and bad ones", "stream", 1e-5),
    Line("normalised states in both joint frames", "state", 1e-5),
    Line("actions in degrees in both joint frames", "action", 1e-4),
)
BINS = "bins of states, ties apart"
LABELS = "streams of chunks"
BINLESS = "streams that LeRobot refuses, which are empty here"
LOADS = tuple(f"tensors of the {name} in LeRobot's strict loading" for name in CHECKPOINTS)


def compared(ours: Answers, theirs: Answers) -> list[Outcome]:
    """Every line; one that finds nothing to compare fails."""
    lines = [_arrays(line, ours, theirs) for line in ARRAYS]
    lines.append(_bins(ours, theirs))
    labels, bad = ours.facts["labels"], ours.facts["streams_without_bins"]
    for what, mine, other in (
        (LABELS, labels, theirs.facts["labels"]),
        (BINLESS, bad, theirs.facts["streams_without_bins"]),
    ):
        wrong = sum(a != b for a, b in zip(mine, other, strict=True))
        lines.append(Outcome(what, len(mine), float(max(map(np.max, mine))), wrong, 0, not wrong and len(mine) > 0))
    for what, name in zip(LOADS, CHECKPOINTS, strict=True):
        mine, held = (side.facts[f"{name}/weights"] for side in (ours, theirs))
        wrong = len(held["missing"]) + len(held["unexpected"]) + abs(mine["tensors"] - held["equal"])
        same = held["float32"] and mine["sha256"] == held["sha256"]
        lines.append(Outcome(what, held["tensors"], float(held["tensors"]), wrong, 0, same and not wrong))
    return lines


def _arrays(line: Line, ours: Answers, theirs: Answers) -> Outcome:
    numbers, size, difference = 0, 0.0, 0.0
    for mine, other in line.pairs(ours, theirs):
        if other is None or other.shape != mine.shape:
            return Outcome(line.what, numbers, size, None, line.limit, False)
        same = (mine == other) | (np.isnan(mine) & np.isnan(other))
        apart = np.where(same, 0.0, np.abs(mine.astype(np.float64) - other))
        difference = max(difference, float(np.nan_to_num(apart, nan=np.inf).max()))
        numbers, size = numbers + mine.size, max(size, float(np.nanmax(np.abs(mine.astype(np.float64)))))
    return Outcome(line.what, numbers, size, difference, line.limit, numbers > 0 and difference <= line.limit)


def _bins(ours: Answers, theirs: Answers) -> Outcome:
    """LeRobot normalises in float32, this package in float64: a state half-way between two bins may go either way."""
    numbers = wrong = 0
    for name, mine in ours.arrays.items():
        if name.endswith("/state_bins"):
            state, other = ours.arrays[name.removesuffix("_bins")], theirs.arrays[name]
            place = (np.nan_to_num(state) + 1) / 2 * 255
            tie = np.abs(place - np.floor(place) - 0.5) < 1e-4
            wrong += int(((mine != other) & ~(tie & (np.abs(mine - other) == 1))).sum())
            numbers += mine.size
    return Outcome(BINS, numbers, 255.0, wrong, 0, numbers > 0 and not wrong)


def thinned(answers: Answers) -> Answers:
    """A few numbers of every array, drawn by its size alone; facts as they are."""

    def some(array: np.ndarray) -> np.ndarray:
        # Drawn, because every n-th number of a table of joints may be always the same joint.
        kept = np.random.default_rng(0).permutation(array.size)[:PART]
        return array.reshape(-1)[np.sort(kept)]

    return Answers({name: some(array) for name, array in answers.arrays.items()}, answers.facts)


def digests() -> dict[str, str]:
    """SHA-256 of the scripts that make a result, of what runs under LeRobot alone, and of the answers that are kept."""
    kept = [f"{KEPT.name}.safetensors", f"{KEPT.name}.json"]
    paths = {name: HERE / name for name in (*SCRIPTS, *kept)} | {name: ROOT / name for name in UNDER_LEROBOT}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}


def table(lines: list[Outcome]) -> str:
    width = max(len(line.what) for line in lines)
    rows = [f"{'':{width}}  {'numbers':>9}  {'up to':>8}  {'apart':>8}  {'limit':>7}"]
    for line in lines:
        apart = "missing" if line.difference is None else f"{line.difference:.2g}"
        rows.append(
            f"{line.what:{width}}  {line.numbers:9,}  {line.size:8.3g}  {apart:>8}  {line.limit:7.2g}  "
            f"{'ok' if line.ok else 'FAILS'}"
        )
    return "\n".join(rows)


def told(world: dict[str, Any]) -> str:
    """What `world_check.py` found, a row a line."""
    width = max(len(line["what"]) for line in world["lines"])
    return "\n".join(
        f"{row['what']:{width}}  {'ok' if row['ok'] else 'FAILS':5}  {row['told']}" for row in world["lines"]
    )


def record(lines: list[Outcome], ours: Answers, theirs: Answers, world: dict[str, Any]) -> None:
    """Keep the result and a part of LeRobot's answers with the code."""
    small = thinned(theirs)
    for name, array in small.arrays.items():
        if array.dtype == np.int64:
            small.arrays[name] = array.astype(np.int32)
    small.save(KEPT)
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "lines": [asdict(line) for line in lines],
        "versions": {
            "vla_rl": ours.facts["versions"],
            "lerobot": theirs.facts["versions"],
            "world": world["versions"],
            "machine": f"{platform.system()} {platform.machine()}",
        },
        "world": world["lines"],
        "sha256": digests(),
    }
    Answers(facts=facts).write_facts(RESULT)


def main(root: Path, keep: bool) -> int:
    ours, theirs = Answers.load(root / "ours"), Answers.load(root / "theirs")
    lines, world = compared(ours, theirs), json.loads((root / "world" / "world.json").read_text())
    print(f"{table(lines)}\n\n{told(world)}")
    total = len(lines) + len(world["lines"])
    if failed := [line.what for line in lines if not line.ok] + [
        row["what"] for row in world["lines"] if not row["ok"]
    ]:
        print(f"{len(failed)} of {total} lines fail")
        return 1
    if keep:
        record(lines, ours, theirs, world)
    print(f"all {total} lines hold; LeRobot {theirs.facts['versions']['lerobot']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--record" in sys.argv[2:]))
