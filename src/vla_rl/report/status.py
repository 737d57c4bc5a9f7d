"""The table of `vla-rl status`: one line a watched run, and what is said when there is none.

In: the health of runs, and how the last one ended. Out: a rich table, lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from vla_rl.prereg.health import Gate, Health
from vla_rl.report.tables import number


def table(runs: Sequence[Health]) -> Table:
    """One line a run; a limit that is crossed is marked."""
    shown = Table(title="Runs under way", title_justify="left")
    for heading in ("run", "for", "state", "step", "phase", "heartbeat", "limits"):
        shown.add_column(heading, overflow="fold")
    for run in runs:
        entry = run.entry
        named = [name for name in (entry.registration, entry.rung, entry.arm) if name]
        step = f"{run.step}/{'?' if run.steps is None else run.steps}"
        limits = "\n".join(map(limit, run.gates)) or "none"
        shown.add_row(
            entry.run, " ".join(named), run.state, step, run.phase or "–", f"{ago(run.beat_age_s)} ago", limits
        )
    return shown


def limit(gate: Gate) -> str:
    """A limit and what is known of it, e.g. ``CROSSED wall_h_max 2.13 > 2``."""
    sign = "<" if gate.gate == "probe" else ">"
    value = number(gate.value, ".4g")
    told = (
        f"CROSSED {gate.gate} {value} {sign} {gate.limit:g}"
        if gate.crossed
        else f"{gate.gate} {value} of {gate.limit:g}"
    )
    return f"{told} ({gate.note})" if gate.note else told


def ago(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def why_empty(last: Mapping[str, Any] | None) -> str:
    """Why no run is under way."""
    if last is None:
        return "no run is under way here: none has been started in this directory"
    code = "" if last["exit_code"] is None else f" (exit code {last['exit_code']})"
    return (
        f"no run is under way here: the last one, {last['run']}, ended at {last['ended_utc']}: {last['how']}{code}\n"
        f"  {last['run_dir']}"
    )
