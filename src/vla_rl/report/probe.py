"""The tables of a signal probe: one column an arm, and the decision.

In: the record of a probe (`probe.json`). Out: a rich group. Numbers come from the record; none are computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from vla_rl.report.evaluation import percent
from vla_rl.report.tables import TEST_NAMES, number


def probe(record: Mapping[str, Any]) -> Group:
    """All that a person needs of a probe: 80 columns for the documented two temperatures."""
    rule, decision = record["rule"], record["decision"]
    arms = [record["greedy"], *record["temperatures"]]
    test = TEST_NAMES.get(record["greedy"]["success_test"], "an unnamed test")
    title = f"{record['policy']['name']}, {record['protocol']}: seeds {record['seeds']} x {record['draws']} draws"
    table = Table(title=title, title_justify="left")
    for heading in ("", "greedy", *(f"T {arm['temperature']:g}" for arm in record["temperatures"])):
        table.add_column(heading, justify="right" if heading else "left")
    for label, cell in (
        (f"success ({test})", lambda a: f"{a['successes']}/{a['episodes']} ({percent(a['success_rate'])})"),
        ("nats a token", lambda a: number(a["nll_mean"], ".3f")),
        ("knocked away, tipped", lambda a: f"{number(a['knockaways'], 'd')}, {number(a['tipped'], 'd')}"),
        ("struck by the reset", lambda a: number(a["struck"], "d")),
        ("mean score, cm", lambda a: number(a["score_mean_cm"], "+.2f")),
    ):
        table.add_row(label, *map(cell, arms))
    for label, cell in (
        (f"group spread, cm (bar {rule['spread_bar_cm']:g})", lambda a: number(a["median_group_std_cm"], ".3f")),
        (
            f"groups above {rule['min_group_std_cm']:g} cm",
            lambda a: f"{number(a['groups_nondegenerate'], 'd')}/{a['groups']}",
        ),
        ("groups with both outcomes", lambda a: percent(a["mixed_groups_frac"])),
        (f"cost, cm (floor {rule['cost_floor_cm']:g})", lambda a: _interval(a["cost_cm"])),
        ("cost in success, points", lambda a: _interval(a["success_cost"], scale=100)),
    ):
        table.add_row(label, "", *map(cell, record["temperatures"]))
    reasons = [Text(f"- {reason}") for reason in decision["reasons"]]
    at = f" temperature {decision['temperature']:g}" if decision["temperature"] is not None else ""
    return Group(table, *reasons, Text(f"verdict: {decision['verdict']}{at}", style="bold"))


def _interval(read: Mapping[str, float] | None, scale: float = 1.0) -> str:
    """Mean over interval: two lines, since columns are narrow."""
    if read is None:
        return "–"
    mean, low, high = (scale * read[name] for name in ("mean", "low", "high"))
    return f"{mean:+.2f}\n[{low:+.2f}, {high:+.2f}]"
