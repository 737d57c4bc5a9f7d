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
from vla_rl.evals.parity import Bounds, check_reference, judge
from vla_rl.sim.metrics import success_test

if TYPE_CHECKING:
    from vla_rl.rl.summary import Evaluation

WHERE = "gates.parity_record"


def serving_parity(
    record: str,
    bounds: Bounds,
    policy: Mapping[str, Any],
    *,
    seeds: Sequence[int],
    temperature: float,
    scene: Mapping[str, Any],
    sim: Mapping[str, Any],
) -> Callable[[Evaluation], dict[str, Any]]:
    """The gate's read.

    Args:
        record: a directory of `vla-rl eval`, or its `eval.json`.
        policy: `name`, `digest` and `frames` of what is evaluated here.
        seeds, temperature: of the evaluation here.
        scene: what the simulator here says of itself.
        sim: how it is configured; `terminate_on` says which success test it reads.

    Raises:
        UsageError: there is no such record, or it is of other seeds, another temperature, scene, success test or length
            of an episode, or does not say what is needed of it. The read raises it too, for what only an evaluation
            tells: the success test of a simulator that is not ours.
    """
    reference = read_record(Path(record))
    if sorted(row["seed"] for row in reference["episodes"]) != sorted(seeds):
        raise UsageError(
            "the record is of other seeds than this run's evaluations",
            where=WHERE,
            remedy="evaluate with `vla-rl eval` on the seeds of the run's eval section",
        )
    ahead = {key: scene.get(key) for key in ("protocol", "scene_hash", "max_replans")} | {"temperature": temperature}
    if "terminate_on" in sim:
        ahead["success_test"] = success_test(sim["terminate_on"])
    check_reference(reference, ahead, WHERE)
    known = set().union(*(row.keys() for row in reference["episodes"]))

    def read(evaluation: Evaluation) -> dict[str, Any]:
        rows = [{name: value for name, value in row.items() if name in known} for row in evaluation.episodes]
        return judge(reference, {"policy": policy, "summary": evaluation.row, "episodes": rows}, bounds)

    return read
