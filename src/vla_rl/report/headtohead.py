"""The tables of two evaluations side by side.

In: what `evals.headtohead.head_to_head` returns. Out: a rich group. Numbers come from there; none are computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from vla_rl.report.tables import TEST_NAMES, change, number
from vla_rl.seeds import format_seeds

FUNNEL = {
    "touched": "touched",
    "pinched": "pinched by both jaws",
    "lifted": "lifted above 4 cm",
    "success_documented": "documented: one tick",
    "success_strict": "strict: released and at rest",
    "knockaways": "knocked away",
    "tipped": "ended tipped",
}


def head_to_head(comparison: Mapping[str, Any]) -> Group:
    """What each side is, its funnel, and the seeds that only one of them solves."""
    a, b = comparison["a"], comparison["b"]
    test = TEST_NAMES.get(comparison["success_test"], "an unnamed test")
    table = Table(title=f"{comparison['kind']}, seeds {comparison['seeds']}", title_justify="left")
    for heading in ("", "A", "B"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("policy", *(side["name"] for side in (a, b)))
    table.add_row("decoding", *(_decoding(side) for side in (a, b)))
    table.add_row(f"success ({test})", *(f"{side['successes']}/{side['episodes']}" for side in (a, b)))
    for name, label in FUNNEL.items():
        table.add_row(label, *(number(side[name], "d") for side in (a, b)))
    expert = number(a["expert_carry_speed_median_cm_s"], ".2f")
    table.add_row(f"carry speed, cm/s (expert {expert})", *(_speed(side) for side in (a, b)))
    table.add_row("reward v1, cm", *(number(side["reward_mean"], "+.2f") for side in (a, b)))
    table.add_row("nats a token", *(number(side["nll_mean"], ".3f") for side in (a, b)))
    reward = comparison["reward_cm"]
    lines = (
        f"solved by both {comparison['both']}, by neither {comparison['neither']}",
        f"only A ({len(comparison['only_a'])}): {format_seeds(comparison['only_a']) or '–'}",
        f"only B ({len(comparison['only_b'])}): {format_seeds(comparison['only_b']) or '–'}",
        f"exact McNemar, two-sided: p = {comparison['mcnemar_p']:.4f}",
        f"B - A [95 % interval]: success {change(comparison['success'], scale=100, unit=' points')}"
        + (f", reward {change(reward, unit=' cm')}" if reward else ""),
    )
    return Group(table, *map(Text, lines))


def _decoding(side: Mapping[str, Any]) -> str:
    how = "greedy" if side["temperature"] == 0 else f"T {number(side['temperature'], 'g')}"
    if side.get("head") == "flow":
        how = "flow head"
    return how if side["frames"] == "own" else f"{how}, {side['frames']} frames"


def _speed(side: Mapping[str, Any]) -> str:
    return f"{number(side['carry_speed_median_cm_s'], '.2f')} ({number(side['carries'], 'd')} carries)"
