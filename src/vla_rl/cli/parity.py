"""`vla-rl parity`: do two ways of serving a policy do the same on the same seeds; reads two records or plays both."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vla_rl.cli import evaluate
from vla_rl.cli.compare import read_record
from vla_rl.cli.options import Options, parse, print_json
from vla_rl.cli.startup import check_unused, new_run_dir
from vla_rl.config.compose import compose
from vla_rl.config.schema import ParityConfig
from vla_rl.errors import EXIT_OK, EXIT_STOPPED, UsageError
from vla_rl.evals.parity import Bounds, judge
from vla_rl.files import write_atomic
from vla_rl.report.progress import ProgressView
from vla_rl.rollout.jsonl import dump_json

EXAMPLES = (
    "vla-rl parity outputs/eval/source outputs/eval/export",
    "vla-rl parity outputs/eval/cpu outputs/eval/gpu parity.max_success_difference=0 --json",
    'vla-rl parity eval.seeds=300-319 --a policy.dtype=float32 --b policy.dtype=bfloat16   # plays both',
    'vla-rl parity eval.seeds=300-319 --a "pool=serial" --b "pool=processes sampler.batch_rows=4"',
)  # fmt: skip
FLAGS = {
    "a": ("OVERRIDES", "play side A with these settings of `vla-rl eval` besides the common ones"),
    "b": ("OVERRIDES", "the same for side B"),
}
RECORD = "parity.json"
# Both sides are played in one launch, in directories of this command.
REFUSED = ("run.max_wall_s", "run.resume", "run.dir")


def run(argv: Sequence[str]) -> int:
    """Print tables or, with --json, the verdict; exit code 3 if a bound is broken."""
    options = parse("parity", argv, "Do two ways of serving a policy do the same on the same seeds?", EXAMPLES, FLAGS)
    own = [text for text in options.overrides if text.startswith("parity.")]
    others = [text for text in options.overrides if text not in own]
    reader = compose("parity", own)
    settings = reader.section("parity", ParityConfig)
    bounds, place = Bounds.of(settings), settings.dir
    reader.check_consumed()
    with ProgressView() as view:
        if any(options.flags[side] is not None for side in ("a", "b")):
            directory = Path(place or new_run_dir("parity"))
            check_unused(directory)
            a, b = (_play(directory / side, [*others, *shlex.split(options.flags[side] or "")], view) for side in "ab")
        else:
            directory, (a, b) = None, _records(others, place)
        verdict = judge(a, b, bounds)
        if directory is not None:
            write_atomic(directory / RECORD, dump_json(verdict, indent=1).encode())
        if options.json:
            print_json(verdict)
        else:
            from vla_rl.report.parity import parity

            view.show(parity(verdict))
            if directory is not None:
                view.say(f"files in {directory}: a/, b/, {RECORD}")
    return EXIT_OK if verdict["passed"] else EXIT_STOPPED


def _records(words: Sequence[str], place: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if len(words) != 2 or any("=" in word and not Path(word).exists() for word in words):
        raise UsageError(
            "parity needs two records, or settings of two sides to play",
            where="command line",
            remedy="name two directories of `vla-rl eval`, or say in what the sides differ with --a and --b",
        )
    if place is not None:
        raise UsageError(
            "two records are read and nothing is written",
            where="parity.dir",
            remedy="leave it away; --json prints the verdict",
        )
    return read_record(Path(words[0])), read_record(Path(words[1]))


def _play(directory: Path, overrides: Sequence[str], view: ProgressView) -> dict[str, Any]:
    """Evaluate one side into a directory of its own; its record."""
    for override in overrides:
        if override.partition("=")[0] in REFUSED:
            raise UsageError(
                f"{override} does not go with playing both sides",
                where="command line",
                remedy="name a place with parity.dir; a long evaluation is done with `vla-rl eval`, which can be "
                "stopped, and its record named here",
            )
    view.say(f"side {directory.name.upper()}: {' '.join(overrides)}")
    chosen = Options((*overrides, f"run.dir={directory}"), json=False, flags={"video": "none"})
    evaluate.perform(chosen, view)
    return read_record(directory)
