"""Paired read of two evaluations of the same seeds.

In: two lists of episode rows (`seed`, `success`, `reward`), as `episodes.jsonl` and `eval.json` hold them, and the two
summaries. Out: what changed, with an interval over seeds. Evaluations of different scenes, tests or temperatures are
never compared. No verdict words: judging belongs to a registration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vla_rl.errors import UsageError
from vla_rl.stats.bootstrap import PairedDifference, paired_bootstrap

# What two evaluations must have in common, by its name in a summary.
CONDITIONS = {
    "protocol": "protocol",
    "scene_hash": "scene hash",
    "success_test": "success test",
    "temperature": "temperature",
}


def compare(
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
    *,
    before_summary: Mapping[str, Any],
    after_summary: Mapping[str, Any],
) -> dict[str, Any]:
    """Paired differences after - before in success and reward, each with a 95 % percentile bootstrap interval.

    Args:
        before, after: one row per seed.
        before_summary, after_summary: the summaries of the two evaluations.

    Returns:
        `success_test` (what `success` was read by), `success` and `reward_cm` (None if no pair has both rewards), and
        how many seeds were `won` and `lost`.

    Raises:
        UsageError: protocol, scene, success test or temperature differ, or the two sides hold different seeds, or none.
    """
    check_comparable(before_summary, after_summary)
    won_before, won_after = _column(before, "success"), _column(after, "success")
    success = paired_bootstrap(won_before, won_after)
    paid_before, paid_after = _column(before, "reward"), _column(after, "reward")
    scored = paid_before.keys() & paid_after.keys()
    reward = (
        paired_bootstrap({s: paid_before[s] for s in scored}, {s: paid_after[s] for s in scored}) if scored else None
    )
    return {
        "success_test": before_summary.get("success_test"),
        "success": _as_dict(success),
        "reward_cm": _as_dict(reward) if reward else None,
        "won": sum(won_after[s] > won_before[s] for s in won_before),
        "lost": sum(won_after[s] < won_before[s] for s in won_before),
    }


def check_comparable(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse two evaluations that were not made under the same conditions.

    Raises:
        UsageError: naming the first condition that differs, and both its values.
    """
    for key, name in CONDITIONS.items():
        if before.get(key) != after.get(key):
            raise UsageError(
                f"the two evaluations differ in their {name}: {before.get(key)} and {after.get(key)}",
                where="paired read",
                remedy=f"evaluate both with the same {name}; results never mix",
            )


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> dict[int, float]:
    return {row["seed"]: float(row[name]) for row in rows if row[name] is not None}


def _as_dict(read: PairedDifference) -> dict[str, Any]:
    return {"mean": read.mean, "low": read.low, "high": read.high, "pairs": read.pairs, "level": read.level}
