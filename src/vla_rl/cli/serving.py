"""The serving-parity gate of a training run: its evaluation before the first update against a record of another path.

In: the record that `vla-rl eval` left, the evaluation that the trainer will call, bounds. Out: the read that the gate
makes, and an evaluation that does not play step 0 a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_rl.cli.compare import read_record
from vla_rl.evals.parity import Bounds, parity_gate

if TYPE_CHECKING:
    from vla_rl.rl.summary import Evaluation

Evaluate = Callable[[int], "Evaluation"]


def serving_parity(
    record: str, evaluate: Evaluate, bounds: Bounds, policy: Mapping[str, Any]
) -> tuple[Callable[[], dict[str, Any]], Evaluate]:
    """The gate's read and the evaluation to hand to the trainer.

    Args:
        record: a directory of `vla-rl eval`, or its `eval.json`.
        policy: `name`, `digest` and `frames` of what is evaluated here.

    Raises:
        UsageError: there is no such record. The read raises it too if seeds or conditions differ.
    """
    reference = read_record(Path(record))
    known = set().union(*(row.keys() for row in reference["episodes"]))
    played: list[Evaluation] = []

    def play() -> dict[str, Any]:
        played.append(evaluate(0))
        rows = [{name: value for name, value in row.items() if name in known} for row in played[0].episodes]
        return {"policy": policy, "summary": played[0].row, "episodes": rows}

    def evaluate_once(step: int) -> Evaluation:
        return played.pop() if step == 0 and played else evaluate(step)

    return parity_gate(reference, play, bounds), evaluate_once
