"""Tables of one evaluation: every seed, the funnel with intervals, the reach envelope.

In: the summary and the episodes of an `eval.json`. Out: rich tables that fit 80 columns. Numbers come from the file;
none are computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vla_rl.report.tables import TEST_NAMES, number

STAGES = ("lifted", "pinched", "touched")
HEADINGS = (("seed", "right"), ("result", "left"), ("tick", "right"), ("cm", "right"))
RESULT = 1
GAP = 2  # of the terminal's columns, between two seeds
LEGEND = (
    "result: strict or one tick, the test that was passed, else the furthest stage; cm: closer at the end; "
    "k: knocked away, t: tipped"
)


def evaluation(summary: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]], title: str, width: int) -> Group:
    """All tables of one evaluation, for a terminal of `width` columns."""
    parts: list[RenderableType] = [per_seed(episodes, title, width), Text(LEGEND, style="dim"), funnel(summary)]
    if any(row["episodes"] for row in summary["reach"]):
        parts.append(reach(summary))
    return Group(*parts, others(summary))


def per_seed(episodes: Sequence[Mapping[str, Any]], title: str, width: int) -> Table:
    """One cell a seed, as many a line as `width` holds, down the columns in the order of the seeds."""
    cells = [_cell(episode) for episode in episodes]
    names = [heading for heading, _ in HEADINGS]
    cell_width = sum(1 + max(map(len, column)) for column in zip(names, *cells, strict=True)) + GAP
    groups = max(1, min((width + GAP + 1) // cell_width, len(cells)))
    lines = -(-len(cells) // groups)
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for group in range(groups):
        if group:
            table.add_column("", min_width=GAP - 1)
        for heading, justify in HEADINGS:
            table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for line in range(lines):
        row: list[Text] = []
        for i in range(line, len(cells), lines):
            row += [Text()] * bool(row)
            row += [Text(text, _style(episodes[i]) if c == RESULT else "") for c, text in enumerate(cells[i])]
        table.add_row(*row)
    return table


def outcome(episode: Mapping[str, Any]) -> str:
    """In one word: the stricter test that was passed, else the furthest stage that was reached."""
    if episode.get("success_strict"):
        return "strict"
    if episode.get("success_documented"):
        return "one tick"
    return next((stage for stage in STAGES if episode.get(stage)), "-")


def flags(episode: Mapping[str, Any]) -> str:
    """``k`` knocked away, ``t`` tipped at the end."""
    return "".join(letter for letter, name in (("k", "knockaway"), ("t", "tipped")) if episode.get(name))


def _cell(episode: Mapping[str, Any]) -> tuple[str, ...]:
    result = " ".join(filter(None, (outcome(episode), flags(episode))))
    progress_cm = number(episode.get("progress_final_cm"), ".1f")
    return str(episode["seed"]), result, number(episode.get("ticks"), "d"), progress_cm


def _style(episode: Mapping[str, Any]) -> str:
    return "green" if episode["success"] else "red" if flags(episode) else ""


def funnel(summary: Mapping[str, Any]) -> Table:
    """Touch, pinch, lift and success by both tests, with conversion ratios and 95 % intervals."""
    test = TEST_NAMES.get(summary["success_test"], "an unnamed test")
    table = _table(f"{summary['successes']}/{summary['episodes']} by the {test}, which is read as success")
    for heading in ("funnel", "episodes", "conversion", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "funnel" else "right")
    table.add_row("touched", number(summary["touched"], "d"))
    table.add_row(
        "pinched by both jaws", number(summary["pinched"], "d"), f"{percent(summary['pinch_per_touch'])} of touched"
    )
    table.add_row("lifted above 4 cm", number(summary["lifted"], "d"))
    for name, label in (
        ("success_documented", "documented: one tick"),
        ("success_strict", "strict: released and at rest"),
    ):
        conversion = f"{percent(summary['success_per_pinch'])} of pinched" if name == summary["success_test"] else ""
        table.add_row(label, number(summary[name], "d"), conversion, _interval(summary, name))
    return table


def reach(summary: Mapping[str, Any]) -> Table:
    """Touch and success by the distance between boat and disk at the start."""
    table = _table("reach envelope")
    for heading in ("start, cm", "episodes", "touched", "success"):
        table.add_column(heading, justify="right")
    for row in summary["reach"]:
        if row["episodes"]:
            shares = (percent(row["touched_share"]), percent(row["success_share"]))
            table.add_row(row["bin_cm"], str(row["episodes"]), *shares)
    return table


def others(summary: Mapping[str, Any]) -> Table:
    """Events outside the funnel, means, and what was evaluated."""
    table = _table("events and means", show_header=False)
    fails = [f"{count} {kind}" for kind, count in (summary["pinch_fails"] or {}).items()]
    for label, value in (
        ("failed pinches", ", ".join(fails) or "–"),
        ("knocked away, set back", f"{_counts(summary, 'knockaways', 'setbacks')} (by 1 cm or more)"),
        ("ended tipped, hopeless", _counts(summary, "tipped", "hopeless")),
        ("engaged, moved, interacted", f"{_counts(summary, 'engaged', 'moved', 'interacted')} (1 cm, 0.5 cm, at all)"),
        ("struck by the reset", f"{number(summary['struck'], 'd')} (must be 0)"),
        ("frozen pictures", f"{number(summary.get('frozen'), 'd')} of {summary.get('filmed', 0)} filmed"),
        ("progress", f"{_means(summary, 'progress', 'progress_final')} cm (best point, end)"),
        ("earned, shoved", f"{_means(summary, 'grasped_progress', 'ungrasped_displacement')} cm"),
        ("carry speed", f"{carry_speed(summary)} (median of {summary['carries']})"),
        ("reward v1", f"{number(summary['reward_mean'], '+.2f')} cm ({summary['unscorable']} unscorable)"),
        ("ticks", number(summary["ticks_mean"], ".0f")),
        ("surprise", f"{number(summary['nll_mean'], '.3f')} nats a token ({summary['tokens']} tokens)"),
        ("protocol, scene", f"{summary['protocol'] or '–'}, {(summary['scene_hash'] or '–')[:12]}"),
        ("trained in this scene", summary["training_scene_match"] or "–"),
    ):
        table.add_row(label, value)
    return table


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(
        title=f"\n{title}",
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        show_header=show_header,
    )


def carry_speed(summary: Mapping[str, Any]) -> str:
    """A policy's median carry speed against the expert's, e.g. ``6.10 cm/s, the expert's 8.90``."""
    expert = summary.get("expert_carry_speed_median_cm_s")
    against = "" if expert is None else f", the expert's {expert:.2f}"
    return f"{number(summary['carry_speed_median_cm_s'], '.2f')} cm/s{against}"


def percent(share: float | None) -> str:
    """A share as a whole percentage, or a dash."""
    return "–" if share is None else f"{100 * share:.0f} %"


def _interval(summary: Mapping[str, Any], test: str) -> str:
    low, high = summary[f"{test}_low"], summary[f"{test}_high"]
    return "–" if low is None else f"{low:.3f} to {high:.3f}"


def _counts(summary: Mapping[str, Any], *names: str) -> str:
    return ", ".join(number(summary[name], "d") for name in names)


def _means(summary: Mapping[str, Any], *names: str) -> str:
    return ", ".join(number(summary[f"{name}_mean_cm"], "+.2f") for name in names)
