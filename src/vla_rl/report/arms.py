"""One table of the arms of a registration: how their runs ended, and the outcomes that were opened, with intervals.

In: a registration as it stands and its evidence. Out: rows as plain dicts; a table, CSV, Markdown. A measurement that
was not opened is sealed, and the table says so. Intervals are Clopper-Pearson's; the change is paired by seed with the
baseline arm, by a bootstrap.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from vla_rl.files import write_atomic
from vla_rl.prereg.evidence import BASELINE, Evidence
from vla_rl.prereg.folder import Loaded
from vla_rl.prereg.registered import evidence_arm
from vla_rl.stats.bootstrap import bootstrap_counts
from vla_rl.stats.intervals import clopper_pearson

METRIC = "success"
CSV, MARKDOWN = "arms.csv", "arms.md"


def rows(loaded: Loaded, rung: str, evidence: Mapping[tuple[str, str | None], Evidence]) -> list[dict[str, Any]]:
    """One row an arm.

    Returns:
        JSON-able: `arm`, `id`, `set`, `attempts`, `end`, `hours`, and under `measured`, for each evaluation that is
        made of every arm, successes with their interval and the change against the baseline arm; None: sealed.
    """
    registration, found = loaded.registration, []
    trained = [
        m
        for m in registration.measurements
        if m.kind == "evaluation" and m.policy == "trained" and m.rung == rung
    ]  # fmt: skip
    for arm in registration.arms:
        attempts = loaded.state.of(rung, arm.id)
        last = attempts[-1].end if attempts else None
        measured = {m.id: _measured(evidence, m.id, evidence_arm(arm)) for m in trained if m.arm == "*"}
        found.append(
            {
                "arm": arm.label, "id": arm.id, "set": dict(arm.set), "attempts": len(attempts),
                "end": last["how"] if last else "running" if attempts else "not run",
                "hours": sum(a.hours or 0.0 for a in attempts), "measured": measured,
            }
        )  # fmt: skip
    return found


def _measured(
    evidence: Mapping[tuple[str, str | None], Evidence], measurement: str, arm: str | None
) -> dict[str, Any] | None:
    own, baseline = evidence.get((measurement, arm)), evidence.get((measurement, None))
    if own is None or own.kind != "episodes":
        return None
    k, n = own.count(METRIC)
    low, high = clopper_pearson(k, n)
    told: dict[str, Any] = {"successes": k, "trials": n, "low": low, "high": high, "change": None}
    if arm is not None and baseline is not None and baseline.seeds == own.seeds:
        before, after = baseline.values(METRIC), own.values(METRIC)
        signs = [after[seed] - before[seed] for seed in own.seeds]
        read = bootstrap_counts(sum(s > 0 for s in signs), sum(s < 0 for s in signs), len(signs))
        told["change"] = {"mean": read.sum / n, "low": read.low / n, "high": read.high / n}
    return told


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """For the terminal."""
    shown = Table(title=title, title_justify="left")
    headings, *lines = _cells(rows)
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    for line in lines:
        shown.add_row(*line)
    return shown


def note(rows: Sequence[Mapping[str, Any]], id: str) -> str:
    """What to bear in mind."""
    if any(measured is None for row in rows for measured in row["measured"].values()):
        return f"sealed outcomes are opened by: vla-rl prereg read {id} READ"
    return (
        f"intervals: 95 %; changes: against {BASELINE}, paired by seed. They are not corrected for looking at several "
        "arms; what decides are the registered reads."
    )


def write_files(directory: Path, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Write `arms.csv` and `arms.md`."""
    headings, *lines = [[cell.replace("|", "\\|") for cell in line] for line in _cells(rows)]
    body = "".join(f"| {' | '.join(line)} |\n" for line in [headings, ["---"] * len(headings), *lines])
    write_atomic(directory / MARKDOWN, f"{title}\n\n{body}".encode())
    flat = [_flat(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_atomic(directory / CSV, text.getvalue().encode())


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    names = list(rows[0]["measured"])
    head = ["arm", "attempts", "end", "hours"]
    head += [text for name in names for text in (f"{name} [95 %]", "change [95 %]")]
    return [
        head,
        *([*_own(row), *(text for name in names for text in _told(row["measured"].get(name)))] for row in rows),
    ]


def _own(row: Mapping[str, Any]) -> list[str]:
    return [row["arm"], str(row["attempts"]), row["end"], f"{row['hours']:.3g}"]


def _told(measured: Mapping[str, Any] | None) -> tuple[str, str]:
    if measured is None:
        return "sealed", ""
    told = f"{measured['successes']}/{measured['trials']} [{100 * measured['low']:.0f}, {100 * measured['high']:.0f}] %"
    change = measured["change"]
    if change is None:
        return told, ""
    return told, f"{100 * change['mean']:+.1f} points [{100 * change['low']:+.1f}, {100 * change['high']:+.1f}]"


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat = {key: row[key] for key in ("arm", "id", "attempts", "end", "hours")}
    for name, measured in row["measured"].items():
        own = measured or {}
        flat |= {f"{name}_{key}": own.get(key) for key in ("successes", "trials", "low", "high")}
        flat |= {f"{name}_change_{key}": (own.get("change") or {}).get(key) for key in ("mean", "low", "high")}
    return flat
