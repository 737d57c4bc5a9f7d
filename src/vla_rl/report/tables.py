"""Tables for the terminal: the steps of a training run, and the evaluations before and after it; and words for all.

In: summaries and paired reads as plain dicts. Out: rich tables. Numbers come from the run's files; none are computed
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

# What the tests behind `success` are called where people read.
TEST_NAMES = {"success_strict": "strict test", "success_documented": "documented test"}


def before_and_after(before: Mapping[str, Any], after: Mapping[str, Any], read: Mapping[str, Any]) -> Table:
    """Held-out success, reward and funnel before and after training, with the paired 95 % interval of the change."""
    table = Table(title="Held-out evaluation, same seeds before and after", title_justify="left")
    for heading, justify in (
        ("", "left"),
        ("before", "right"),
        ("after", "right"),
        ("change [95 % interval]", "right"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    test = TEST_NAMES.get(read["success_test"])
    table.add_row(
        f"success ({test})" if test else "success",
        count(before),
        count(after),
        change(read["success"], scale=100, unit=" points"),
    )
    if read["reward_cm"]:
        table.add_row("reward, cm", _mean(before), _mean(after), change(read["reward_cm"], unit=" cm"))
    for name, label in (("touched", "touched"), ("pinched", "pinched"), ("lifted", "lifted"), ("tipped", "tipped")):
        table.add_row(label, str(before[name]), str(after[name]), "")
    return table


def firing(wire: Mapping[str, Any]) -> str:
    """A tripwire that fired, as a row holds it, in one phrase."""
    ends = "stops the run" if wire["mode"] == "armed" else "recorded"
    value, line = number(wire["value"], ".4g"), number(wire["threshold"], ".4g")
    return f"tripwire {wire['wire']} ({value}, line {line}, streak {wire['streak']}; {ends})"


def evaluations(rows: Sequence[Mapping[str, Any]], reads: Sequence[Mapping[str, Any]]) -> Table:
    """One line an evaluation of a training run; from the second on with its paired change from the first."""
    table = Table(title="Held-out evaluations, same seeds", title_justify="left")
    headings = ("updates", "success", "change [95 % interval]", "reward, cm", "touched", "pinched", "lifted", "tipped")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row, read in zip(rows, [None, *reads], strict=True):
        table.add_row(
            str(row["step"]),
            count(row),
            change(read["success"], scale=100, unit=" points") if read else "",
            _mean(row),
            *(str(row[name]) for name in ("touched", "pinched", "lifted", "tipped")),
        )
    return table


def steps(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line a GRPO step."""
    table = Table(title="GRPO steps", title_justify="left")
    for heading in ("step", "success", "reward", "groups", "ratio", "clip", "grad", "roll s", "upd s"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row['step']}{undone(row)}",
            "–" if row["successes"] is None else f"{row['successes']}/{row['episodes']}",
            number(row["reward_mean"], "+.2f"),
            f"{row['groups_kept']}/{row['groups_total']}",
            number(row["mean_ratio"], ".4f"),
            number(row["clip_fraction"], ".3f"),
            number(row["grad_norm"], ".2f"),
            number(row["rollout_s"], ".1f"),
            number(row["update_s"], ".1f"),
        )
    return table


def undone(row: Mapping[str, Any]) -> str:
    """``, undone`` for a step whose update was taken back, else nothing."""
    return ", undone" if row["rolled_back"] else ""


def count(summary: Mapping[str, Any]) -> str:
    """Successes of trials, e.g. ``12/20``."""
    return f"{summary['successes']}/{summary['trials']}"


def _mean(summary: Mapping[str, Any]) -> str:
    return number(summary["reward_mean"], "+.2f")


def number(value: float | None, form: str) -> str:
    """`value` in a format, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def change(read: Mapping[str, float], *, scale: float = 1.0, unit: str = "") -> str:
    """A paired difference with its interval, e.g. ``+3.00 points [-2.00, +8.00]``."""
    mean, low, high = (read[name] * scale for name in ("mean", "low", "high"))
    return f"{mean:+.2f}{unit} [{low:+.2f}, {high:+.2f}]"


def one_line(text: str) -> str:
    """Text of a person in one line of Markdown, where it can neither break a table nor become a tag."""
    flat = " ".join(str(text).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")
