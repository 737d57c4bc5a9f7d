"""Registrations on the terminal: deltas, an overview, where one stands.

In: operations, and the plain data of `vla-rl prereg status --json`. Out: rich tables, and Markdown of deltas. Nothing
is computed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from vla_rl.prereg.delta import Op, write_path
from vla_rl.prereg.outcome import Outcome

_STYLES = {"set": "yellow", "add": "green", "remove": "red"}


def show(*parts: RenderableType) -> None:
    """Print to stdout; colours only on a terminal."""
    console = Console()
    for part in parts:
        console.print(part)


def operations(ops: Sequence[Op], title: str) -> Table:
    """One line a change: path, before, after."""
    table = Table(title=title, title_justify="left")
    for heading in ("", "path", "from", "to"):
        table.add_column(heading, overflow="fold")
    for op in ops:
        style = _STYLES[op.op]
        before = "" if op.op == "add" else _value(op.before)
        after = "" if op.op == "remove" else _value(op.after)
        table.add_row(Text(op.op, style), Text(write_path(op.path)), Text(before), Text(after, style))
    if not ops:
        table.add_row("", "no difference", "", "")
    return table


def markdown(ops: Sequence[Op], title: str) -> str:
    """A Markdown table of changes, to be pasted."""
    lines = [f"**{_cell(title)}**", "", "| | path | from | to |", "|---|---|---|---|"]
    for op in ops:
        before = "" if op.op == "add" else f"`{_cell(_value(op.before))}`"
        after = "" if op.op == "remove" else f"`{_cell(_value(op.after))}`"
        lines.append(f"| {op.op} | `{_cell(write_path(op.path))}` | {before} | {after} |")
    return "\n".join(lines if ops else [lines[0], "", "no difference"])


def overview(rows: Sequence[Mapping[str, Any]]) -> Table:
    """All registrations."""
    table = Table(title="Registrations", title_justify="left")
    for heading in ("id", "state", "amendments", "attempts", "verdict", "next"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        verdict = (row["verdict"] or "") + (" (disputed)" if row["disputed"] else "")
        counts = ["" if row[key] is None else str(row[key]) for key in ("amendments", "attempts")]
        table.add_row(row["id"], row["state"], *counts, verdict, row["next"])
    return table


def status(told: Mapping[str, Any]) -> list[RenderableType]:
    """Where one registration stands."""
    head = Table.grid(padding=(0, 2))
    head.add_row("state", f"{told['state']}" + (f", verdict {told['verdict']}" if told["verdict"] else ""))
    head.add_row("claim", told["hypothesis"])
    head.add_row("digest", f"{told['digest'][:12]} with {told['amendments']} amendments")
    for unit, limit in told["budget"]["limit"].items():
        spent, left = told["budget"]["spent"][unit], told["budget"]["left"][unit]
        reserved = told["budget"]["reserved"][unit]
        held = f"{reserved:.4g} reserved for what is running, " if reserved else ""
        head.add_row("budget", f"{spent:.4g} of {limit:.4g} {unit} spent, {held}{left:.4g} left")
    for rung, afford in told["budget"]["another_launch"].items():
        head.add_row("", f"a launch of {rung}: {afford}")
    for name, used in told["allowances"].items():
        head.add_row("allowance", f"{name}: used {used['used']} of {used['of']} times")
    for name, value in told["deferred"].items():
        head.add_row("deferred", f"{name}: {'not set yet' if value is None else value}")
    for number, objection in told["objections"].items():
        head.add_row("objection", f"{number}, {objection['by']}: {objection['text']}")
    parts: list[RenderableType] = [Text(f"{told['id']}: {told['title']}", "bold"), head]
    if told["attempts"]:
        parts.append(_attempts(told["attempts"]))
    if told["gates"]:
        parts.append(_gates(told["gates"]))
    parts.append(_reads(told["reads"]))
    parts += [f"boundary of {rung}: {decision}" for rung, decision in told["rungs"].items()]
    parts.append(Text(f"next: {told['next']}  ({told['because']})" if told["next"] else told["because"]))
    return parts


def _attempts(attempts: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Attempts", title_justify="left")
    for heading in ("", "rung", "arm", "how it ended", "hours", "run"):
        table.add_column(heading, overflow="fold")
    for each in attempts:
        how = each["how"] + (" (exploratory)" if each["exploratory"] else "")
        how += " (other software)" if each["elsewhere"] else ""
        hours = "" if each["hours"] is None else f"{each['hours']:.3g}"
        table.add_row(str(each["attempt"]), each["rung"], each["arm"], how, hours, each["run"])
    return table


def _gates(gates: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Gates", title_justify="left")
    for heading in ("gate", "before", "decision", "evidence"):
        table.add_column(heading, overflow="fold")
    for gate in gates:
        decision = (gate["decision"] or "not judged") + (", overridden" if gate["overridden"] else "")
        table.add_row(gate["gate"], gate["before"], decision, _line(gate["outcome"]))
    return table


def _reads(reads: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Reads", title_justify="left")
    for heading in ("read", "role", "outcome"):
        table.add_column(heading, overflow="fold")
    for read in reads:
        role = read["role"] + (", exploratory" if read["exploratory"] else "")
        role += ", never pooled" if read["never_pool"] else ""
        table.add_row(read["read"], role, _line(read["outcome"]) or "sealed")
    return table


def _line(outcome: Mapping[str, Any] | None) -> str:
    return "" if outcome is None else Outcome.from_record(outcome).line()


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'").replace("\n", " ")
