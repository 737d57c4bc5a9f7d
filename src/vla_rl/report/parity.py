"""The tables of a parity read: both sides, the seeds on which they differ, and the verdict.

In: what `evals.parity.judge` returns. Out: a rich group. Numbers come from there; none are computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from vla_rl.report.headtohead import head_to_head
from vla_rl.report.tables import number


def parity(verdict: Mapping[str, Any]) -> Group:
    """All that a person needs of a parity read."""
    seeds = len(verdict["per_seed"])
    lines = [
        f"identical in every number: {verdict['identical']} of {seeds} seeds",
        *(f"- {reason}" for reason in verdict["reasons"]),
    ]
    differing = [row for row in verdict["per_seed"] if not row["identical"]]
    tables = [_differences(differing)] if differing else []
    word = "PASS" if verdict["passed"] else "FAIL"
    return Group(head_to_head(verdict), *tables, *map(Text, lines), Text(f"verdict: {word}", style="bold"))


def _differences(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Seeds that differ (A, B)", title_justify="left")
    for heading in ("seed", "success", "interacted", "ticks", "tokens", "reward, cm"):
        table.add_column(heading, justify="right")
    for row in rows:
        pairs = (" ".join(map(_cell, row[name])) for name in ("success", "interacted", "ticks", "tokens"))
        table.add_row(str(row["seed"]), *pairs, number(row["reward_change_cm"], "+.2f"))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
