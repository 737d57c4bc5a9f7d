"""Paired read of two evaluations of the same seeds.

In: two `EvalResult`s. Out: what changed, with an interval over seeds. No verdict words: judging belongs to a
registration.
"""

from __future__ import annotations

from typing import Any

from vla_rl.errors import UsageError
from vla_rl.evals.heldout import EvalResult
from vla_rl.stats.bootstrap import PairedDifference, paired_bootstrap


def compare(before: EvalResult, after: EvalResult) -> dict[str, Any]:
    """Paired differences after - before in success and reward, each with a 95 % percentile bootstrap interval.

    Raises:
        UsageError: different seeds or temperatures.
    """
    if before.summary["temperature"] != after.summary["temperature"]:
        raise UsageError("the two evaluations used different temperatures", where="paired read")
    success = paired_bootstrap(_successes(before), _successes(after))
    scored = {s for s, value in before.rewards.items() if value is not None and after.rewards.get(s) is not None}
    rewards = [{s: float(r.rewards[s] or 0.0) for s in scored} for r in (before, after)]
    return {
        "success": _as_dict(success),
        "reward_cm": _as_dict(paired_bootstrap(*rewards)) if scored else None,
        "won": sum(a > b for b, a in _pairs(before, after)),
        "lost": sum(a < b for b, a in _pairs(before, after)),
    }


def _successes(result: EvalResult) -> dict[int, float]:
    return {e.spec.seed: float(bool(e.metrics["success"])) for e in result.episodes}


def _pairs(before: EvalResult, after: EvalResult) -> list[tuple[float, float]]:
    later = _successes(after)
    return [(value, later[seed]) for seed, value in _successes(before).items()]


def _as_dict(read: PairedDifference) -> dict[str, Any]:
    return {"mean": read.mean, "low": read.low, "high": read.high, "pairs": read.pairs, "level": read.level}
