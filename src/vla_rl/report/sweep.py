"""One table of many runs: on the terminal, as CSV and as Markdown.

In: what the files of jobs and the closing summaries of their runs say. Out: rows as plain dicts, and the table. Every
interval is its run's own; nothing is corrected for looking at several runs, and the note under the table says so.
"""

from __future__ import annotations

import csv
import io
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from vla_rl.errors import EXIT_OK, EXIT_STOPPED
from vla_rl.files import write_atomic
from vla_rl.report.tables import change, count

CSV, MARKDOWN = "summary.csv", "summary.md"
SIDES = ("successes", "trials", "success_low", "success_high", "reward_mean")


def row(job: Mapping[str, Any], summary: Mapping[str, Any] | None, swept: Sequence[str], *, log: str) -> dict[str, Any]:
    """What is known of a job.

    Args:
        job: what its file says; of its facts ``overrides`` and ``values`` are told.
        summary: the closing summary of its run, if there is a run.
        swept: keys whose values are wanted.

    Returns:
        JSON-able: `job`, `overrides`, `values` by swept key, `state`, `exit_code`, `seconds`, `finished` and `steps`
        of the run, `before` and `after` (None: not played), `change` and `reward_change_cm` with intervals, `log`.
    """
    facts, known = job["facts"], summary or {}
    read = known.get("read") or {}
    return {
        "job": job["name"],
        "overrides": list(facts.get("overrides", ())),
        "values": {key: str(facts.get("values", {}).get(key, "")) for key in swept},
        "state": job["state"],
        "exit_code": job["exit_code"],
        "seconds": job["seconds"],
        "finished": known.get("finished"),
        "steps": len(known.get("steps", ())),
        "before": _side(known.get("before")),
        "after": _side(known.get("after")),
        "change": _interval(read.get("success")),
        "reward_change_cm": _interval(read.get("reward_cm")),
        "log": log,
    }


def ending(row: Mapping[str, Any]) -> str:
    """How a job ended, in two words or three."""
    code = row["exit_code"]
    if row["state"] != "ended":
        return "not run" if row["state"] == "planned" else str(row["state"])
    if code == EXIT_OK:
        ended = "unfinished" if row["finished"] is False else "done"
    elif code == EXIT_STOPPED:
        ended = "stopped itself (3)"
    else:
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"failed ({code})"
    return f"{ended}, but {row['fault']}" if row.get("fault") else ended


def table(rows: Sequence[Mapping[str, Any]], swept: Sequence[str], title: str) -> Table:
    """One line a job."""
    shown = Table(title=title, title_justify="left")
    headings, *lines = _cells(rows, swept)
    for number, heading in enumerate(headings):
        shown.add_column(heading, justify="left" if number == 0 or heading == "end" else "right", overflow="fold")
    for line in lines:
        shown.add_row(*line)
    return shown


def note(rows: Sequence[Mapping[str, Any]]) -> str:
    """What to bear in mind when several runs are compared."""
    if sum(row["change"] is not None for row in rows) < 2:
        return "intervals: 95 %"
    return (
        "intervals: 95 %, each of its own run, over its held-out seeds; not corrected for looking at several runs: the "
        "largest of several changes is larger by chance alone. Play the chosen one on other seeds."
    )


def write_files(
    directory: Path, rows: Sequence[Mapping[str, Any]], swept: Sequence[str], title: str
) -> tuple[str, str]:
    """Write the table as CSV (a column each number) and as Markdown; returns the names."""
    write_atomic(directory / CSV, as_csv(rows, swept).encode())
    write_atomic(directory / MARKDOWN, as_markdown(rows, swept, title).encode())
    return CSV, MARKDOWN


def as_csv(rows: Sequence[Mapping[str, Any]], swept: Sequence[str]) -> str:
    """Every number in a column of its own; what is not known is empty. Successes are shares, the change too."""
    flat = [_flat(row, swept) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]) if flat else ["job"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def as_markdown(rows: Sequence[Mapping[str, Any]], swept: Sequence[str], title: str) -> str:
    """The table of the terminal, ready to paste."""
    headings, *lines = [[cell.replace("|", "\\|") for cell in line] for line in _cells(rows, swept)]
    body = [headings, ["---"] * len(headings), *lines]
    return f"{title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in body) + f"\n{note(rows)}\n"


def _cells(rows: Sequence[Mapping[str, Any]], swept: Sequence[str]) -> list[list[str]]:
    head = ["job", *swept, "steps", "before -> after [95 %]", "change [95 %]", "reward change [95 %]", "end"]
    return [head, *(_line(row, swept) for row in rows)]


def _line(row: Mapping[str, Any], swept: Sequence[str]) -> list[str]:
    before, after = row["before"], row["after"]
    told = "–" if before is None else count(before)
    if after is not None:
        told += f" -> {count(after)} [{100 * after['success_low']:.0f}, {100 * after['success_high']:.0f}] %"
    gain = change(row["change"], scale=100, unit=" points") if row["change"] else "–"
    reward = change(row["reward_change_cm"], unit=" cm") if row["reward_change_cm"] else "–"
    return [row["job"], *(row["values"][key] for key in swept), str(row["steps"]), told, gain, reward, ending(row)]


def _flat(row: Mapping[str, Any], swept: Sequence[str]) -> dict[str, Any]:
    flat = {"job": row["job"], **{key: row["values"][key] for key in swept}}
    flat |= {key: row[key] for key in ("state", "exit_code", "seconds", "finished", "steps")}
    for side in ("before", "after"):
        flat |= {f"{side}_{key}": (row[side] or {}).get(key) for key in SIDES}
    for name in ("change", "reward_change_cm"):
        flat |= {f"{name}_{key}": (row[name] or {}).get(key) for key in ("mean", "low", "high")}
    return flat | {key: row.get(key) for key in ("fault", "run_dir", "log")}


def _side(evaluation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The numbers of an evaluation that the table wants; None where an evaluator of one's own has others."""
    return {key: evaluation[key] for key in SIDES} if evaluation and set(SIDES) <= evaluation.keys() else None


def _interval(read: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {key: read[key] for key in ("mean", "low", "high")} if read else None
