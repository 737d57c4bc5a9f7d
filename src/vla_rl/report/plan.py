"""The tables of a plan.

In: what `vla-rl plan --json` prints. Out: a rich group. Numbers come from there; none are computed here but units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from vla_rl.report.evaluation import percent


def plan(record: Mapping[str, Any]) -> Group:
    """Parameters, bytes, seconds, groups, and what differs from the preset."""
    table = Table(title=f"On this machine ({record['device']})", title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for label, value in (*_sizes(record), *_times(record), *_groups(record)):
        table.add_row(label, value)
    against = record["against"]
    changed = Table(title=f"What differs from {against['preset']}", title_justify="left")
    for heading in ("key", "this plan", "preset"):
        changed.add_column(heading)
    for key, pair in against["differences"].items():
        changed.add_row(key, *(Text(str(value)) for value in pair))
    notes = [] if record["probe"] else ["no episodes were played, so there are no times"]
    if record["groups"]:
        notes.append("seeds differ in difficulty, so fewer groups than forecast will hold both outcomes")
    return Group(
        table, _memory(record), changed if against["differences"] else Text("nothing differs"), *map(Text, notes)
    )


def _memory(record: Mapping[str, Any]) -> Table:
    """Every part that there is, and how it was counted."""
    table = Table(title="Memory", title_justify="left")
    for heading in ("part", "where", "size", "formula"):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for line in record["memory"]:
        if line["bytes"]:
            table.add_row(line["name"].replace("_", " "), line["where"], size(line["bytes"]), Text(line["formula"]))
    return table


def _sizes(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts, disk = record["parameters"], record["disk_bytes"]
    surfaces = ", ".join(f"{name} {_millions(c['moving'])}" for name, c in counts["by_surface"].items())
    resident = [size for size in record["workers"]["bytes"] if size is not None]
    rows = [
        ("parameters: all, trainable", f"{_millions(counts['total'])}, {_millions(counts['trainable'])}"),
        ("that can move by surface", surfaces),
        (f"workers: {record['workers']['count']}, each up to", size(max(resident, default=None))),
        ("disk: rows at worst, checkpoints", f"{size(disk['waves'])}, {size(disk['checkpoints'])}"),
        ("disk: free here", size(disk["free"])),
    ]
    return [row for row in rows if row[1] != "–"]


def _times(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    times, cost = record["times"], record["cost"]
    if times is None:
        return []
    redo = times["redo"]
    prices = "" if cost["run_price"] is None else f", price {cost['step_price']:.2f}, {cost['run_price']:.2f}"
    return [
        ("a step: episodes + update", f"{times['rollout_s']:.1f} s + {times['update_s']:.1f} s"),
        ("an evaluation", f"{times['eval_s']:.1f} s"),
        (f"the run: {times['steps']} steps, {times['evaluations']} evaluations", f"{times['run_s']:.0f} s"),
        ("hours: a step, the run", f"{cost['step_h']:.4f}, {cost['run_h']:.3f}{prices}"),
        ("work lost by a kill: at worst, on average", f"{redo['worst_s']:.1f} s, {redo['mean_s']:.1f} s"),
    ]


def _groups(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    groups = record["groups"]
    if groups is None:
        return []
    low, high = groups["mixed_share_interval"]
    span = "" if low == high else f" [{percent(low)}, {percent(high)}]"
    return [
        ("success rate that the forecast takes", percent(groups["success_rate"])),
        (f"groups of {groups['draws']} with both outcomes, at most", f"{percent(groups['mixed_share'])}{span}"),
        (f"waves of {groups['groups']} groups without one", percent(groups["barren_wave"])),
    ]


def size(count: int | None) -> str:
    """Bytes for people, or a dash."""
    if count is None:
        return "–"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count / 2**10:.0f} KiB"


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M"
