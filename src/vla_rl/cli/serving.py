"""The serving-parity gate of a training run: its evaluation before the first update against a record of another path.

In: the record that `vla-rl eval` left, what the run evaluates, bounds. Out: the read that the gate makes. Whether the
record fits is found out before anything is played.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.compare import read_record
from vla_rl.errors import UsageError
from vla_rl.evals.parity import Bounds, judge

if TYPE_CHECKING:
    from vla_rl.rl.summary import Evaluation


def serving_parity(
    record: str, bounds: Bounds, policy: Mapping[str, Any], *, seeds: Sequence[int], temperature: float
) -> Callable[[Evaluation], dict[str, Any]]:
    """The gate's read.

    Args:
        record: a directory of `vla-rl eval`, or its `eval.json`.
        policy: `name`, `digest` and `frames` of what is evaluated here.
        seeds, temperature: of the evaluation here.

    Raises:
        UsageError: there is no such record, or it is of other seeds or another temperature. The read raises it too, if
            other conditions differ.
    """
    reference = read_record(Path(record))
    theirs = sorted(row["seed"] for row in reference["episodes"])
    if theirs != sorted(seeds) or reference["summary"]["temperature"] != temperature:
        raise UsageError(
            "the record is of other seeds or another temperature than this run's evaluations",
            where="gates.parity_record",
            remedy="evaluate with `vla-rl eval` on the seeds and at the temperature of the run's eval section",
        )
    known = set().union(*(row.keys() for row in reference["episodes"]))

    def read(evaluation: Evaluation) -> dict[str, Any]:
        rows = [{name: value for name, value in row.items() if name in known} for row in evaluation.episodes]
        return judge(reference, {"policy": policy, "summary": evaluation.row, "episodes": rows}, bounds)

    return read
