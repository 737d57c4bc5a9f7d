"""`vla-rl compare`: two evaluations of the same seeds, head to head. Reads two records; nothing is played."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vla_rl.cli.options import command_parser, print_json
from vla_rl.errors import EXIT_OK, IntegrityError, UsageError

EXAMPLES = (
    "vla-rl compare outputs/eval/base outputs/eval/trained",
    "vla-rl compare outputs/eval/greedy outputs/eval/sampled   # of one policy: the greedy-sampled gap",
    "vla-rl compare outputs/eval/policy outputs/eval/expert --json",
)
RECORD = "eval.json"


def run(argv: Sequence[str]) -> int:
    """Print a table or, with --json, the comparison."""
    parser = command_parser(
        "compare",
        "Two evaluations of the same seeds: who solves what, and whether it could be chance. B - A.",
        EXAMPLES,
    )
    for name in ("A", "B"):
        parser.add_argument(name, type=Path, help="directory of an evaluation, or its eval.json")
    options = parser.parse_args(list(argv))
    from vla_rl.evals.headtohead import head_to_head

    comparison = head_to_head(read_record(options.A), read_record(options.B))
    if options.json:
        print_json(comparison)
        return EXIT_OK
    from vla_rl.report.headtohead import head_to_head as table
    from vla_rl.report.progress import ProgressView

    ProgressView().show(table(comparison))
    return EXIT_OK


def read_record(path: Path) -> dict[str, Any]:
    """The record of an evaluation.

    Raises:
        UsageError: there is none.
        IntegrityError: it cannot be read.
    """
    file = path / RECORD if path.is_dir() else path
    try:
        record = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise UsageError(
            "there is no finished evaluation here", where=str(path), remedy="name a directory of `vla-rl eval`"
        ) from None
    except ValueError as error:
        raise IntegrityError(f"the record of an evaluation cannot be read: {error}", where=str(file)) from error
    if not isinstance(record, dict) or not {"summary", "episodes"} <= record.keys():
        raise UsageError("this is no record of an evaluation", where=str(file), remedy="name an eval.json")
    return record
