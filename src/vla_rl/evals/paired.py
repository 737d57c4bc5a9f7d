"""Paired read of two evaluations of the same seeds.

In: two lists of episode rows (`seed`, `success`, `reward`), as `episodes.jsonl` and `eval.json` hold them, and the two
summaries. Out: what changed, with an interval over seeds. Evaluations of different scenes, tests or temperatures are
never compared. No verdict words: judging belongs to a registration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vla_rl.errors import UsageError
from vla_rl.stats.bootstrap import paired_bootstrap

# What two evaluations must have in common, by its name in a summary.
SAME_TASK = {"protocol": "protocol", "scene_hash": "scene hash", "success_test": "success test"}
CONDITIONS = {**SAME_TASK, "temperature": "temperature"}
LONGEST = {"max_replans": "longest episode in predicts"}  # of one run it cannot differ, of two records it can


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
    return {
        "success_test": before_summary.get("success_test"),
        **paired_read(before, after),
        "won": sum(won_after[s] > won_before[s] for s in won_before),
        "lost": sum(won_after[s] < won_before[s] for s in won_before),
    }


def paired_read(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The differences of two comparable sides: `success`, and `reward_cm` (None if no pair has both rewards).

    Raises:
        UsageError: they hold different seeds, or none.
    """
    success = paired_bootstrap(_column(before, "success"), _column(after, "success"))
    paid_before, paid_after = _column(before, "reward"), _column(after, "reward")
    scored = paid_before.keys() & paid_after.keys()
    reward = (
        paired_bootstrap({s: paid_before[s] for s in scored}, {s: paid_after[s] for s in scored}) if scored else None
    )
    return {"success": asdict(success), "reward_cm": asdict(reward) if reward else None}


def check_comparable(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    conditions: Mapping[str, str] = CONDITIONS,
    where: str = "paired read",
) -> None:
    """Refuse two evaluations that were not made under the same conditions.

    Args:
        before, after: their summaries.
        conditions: what must be the same: key of a summary -> its name.
        where: for the message.

    Raises:
        UsageError: naming every condition that differs, with both its values.
    """
    differing = {name: key for key, name in conditions.items() if before.get(key) != after.get(key)}
    if differing:
        told = ", ".join(f"{name} ({before.get(key)} and {after.get(key)})" for name, key in differing.items())
        raise UsageError(
            f"the two evaluations differ in their {told}",
            where=where,
            remedy=f"evaluate both with the same {', '.join(differing)}; results never mix",
        )


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> dict[int, float]:
    return {row["seed"]: float(row[name]) for row in rows if row[name] is not None}
