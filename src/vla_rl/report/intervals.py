"""A forest plot of the reads of a registration that have an estimate and an interval.

In: recorded outcomes, and opened evidence (for whether a metric is a yes or no). Out: rows as plain data, and the
figure. Reads in one unit share an axis; each row shows the line that its interval was held against. A read that was not
recorded has no outcome, so nothing that is sealed can be drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vla_rl.prereg.folder import Loaded
from vla_rl.prereg.outcome import Outcome
from vla_rl.report.opened import Opened
from vla_rl.report.svg import COLOURS, FAINT, INK, Panel, Svg, caption, caption_height, fitted, short, spanned

WIDTH, LEFT, RIGHT, ROW = 860.0, 250.0, 540.0, 34.0
HEAD, FOOT = 46.0, 50.0  # above and below the rows of one panel
ROLES = {"primary": 0, "guardrail": 1, "secondary": 4, "record": 6}  # colours; the role is written, too


@dataclass(frozen=True)
class Row:
    """One read.

    Attributes:
        unit: of estimate, interval and line.
        line: what the interval was held against; None if nothing.
        note: exploratory, never pooled, handed in; empty if none.
    """

    read: str
    role: str
    status: str
    unit: str
    estimate: float
    low: float
    high: float
    level: float
    n: int | None
    line: float | None
    note: str = ""


def rows(loaded: Loaded, seen: Sequence[Opened]) -> list[Row]:
    """Recorded reads with an interval, in registered order."""
    told = []
    for read in loaded.registration.reads:
        recorded = loaded.state.reads.get(read.id)
        outcome = Outcome.from_record(recorded["outcome"]) if recorded else None
        if recorded is None or outcome is None or None in (outcome.estimate, outcome.interval, outcome.level):
            continue
        assert outcome.estimate is not None and outcome.interval is not None and outcome.level is not None
        notes = {
            "exploratory": read.id in loaded.effective.exploratory,
            "never pooled": read.never_pool,
            "handed in": any(name in loaded.state.handed_in for name in recorded["evidence"]),
        }
        line = outcome.details.get("line")
        told.append(
            Row(
                read=read.id, role=read.role, status=outcome.status, unit=unit_of(read.rule, outcome.details, seen),
                estimate=outcome.estimate, low=outcome.interval[0], high=outcome.interval[1], level=outcome.level,
                n=outcome.n, line=float(line) if isinstance(line, int | float) else None,
                note=", ".join(name for name, holds in notes.items() if holds),
            )
        )  # fmt: skip
    return told


def unit_of(rule: Any, details: Mapping[str, Any], seen: Sequence[Opened]) -> str:
    """What an estimate of a rule counts, in words.

    Args:
        details: of its outcome; `won` says that it was computed from pairs won and lost.
    """
    metric, statistic = str(getattr(rule, "metric", "")), getattr(rule, "statistic", None)
    yes_or_no = _yes_or_no(metric, rule.measurements(), seen)
    if rule.KIND == "sign_test" and not yes_or_no:
        return "share of scenes, won minus lost"
    paired = hasattr(rule, "before") and hasattr(rule, "after")
    after = ", after minus before" if paired else ""
    if rule.KIND == "tolerance":
        after = f", {rule.left} minus {rule.right}"
    if statistic == "count":
        return f"episodes{after}"
    if yes_or_no or "won" in details or statistic == "share" or rule.KIND in ("interval", "binomial_tail"):
        return f"share of {'scenes' if paired else 'episodes'}{after}"
    return f"{'cm' if metric.endswith('_cm') else metric or 'as the read states it'}{after}"


def figure(rows: Sequence[Row], id: str, recorded: int) -> bytes:
    """The picture; at least one row.

    Args:
        recorded: how many reads are on record, with an interval or without.
    """
    units = list(dict.fromkeys(row.unit for row in rows))
    panels = [[row for row in rows if row.unit == unit] for unit in units]
    note = (
        f"Every read on record that has an interval ({len(rows)} of {recorded}). Mark: estimate; bar: its interval at "
        f"{_levels(rows)}; dashed: the line that it was held against. n: what the estimate rests on."
    )
    height = 30 + sum(HEAD + ROW * len(panel) + FOOT for panel in panels) + caption_height(note, WIDTH) + 12
    svg = Svg(WIDTH, height, f"Reads of {id} with their intervals", "; ".join(map(_told, rows)))
    svg.text(16, 24, f"{id}: reads with their intervals", px=15, bold=True)
    top = 30.0
    for panel, unit in zip(panels, units, strict=True):
        _panel(svg, top, panel, unit)
        top += HEAD + ROW * len(panel) + FOOT
    caption(svg, top + 10, note)
    return svg.bytes()


def _panel(svg: Svg, top: float, rows: Sequence[Row], unit: str) -> None:
    reach = [value for row in rows for value in (row.low, row.high, row.estimate, row.line) if value is not None]
    first = top + HEAD
    box = LEFT, first - 12, RIGHT, first + ROW * len(rows) - 12
    frame = Panel.draw(svg, box, spanned(reach), (0.0, 1.0), x_label=unit, y_ticks=())
    for heading, x in (("read", 16.0), ("line", RIGHT + 20), ("estimate [interval]", RIGHT + 72), ("n", WIDTH - 60)):
        svg.text(x, top + 22, heading, fill=FAINT)
    for i, row in enumerate(rows):
        y, ink = first + ROW * i + 4, COLOURS[ROLES[row.role]]
        if row.line is not None:
            at = frame.x(row.line)
            svg.line([(at, y - 13), (at, y + 13)], INK, dash="3 3", cls="line", tip=f"{row.read}: line {row.line!r}")
        ends = [(frame.x(row.low), y), (frame.x(row.high), y)]
        svg.line(ends, ink, width=2.4, cls="interval", tip=f"{row.read}: {row.low!r} to {row.high!r}")
        svg.mark((frame.x(row.estimate), y), "square" if row.role == "primary" else "circle", ink, cls="estimate")
        svg.text(16, y - 2, fitted(row.read, LEFT - 24, px=13), px=13, bold=row.role == "primary")
        below = ", ".join(filter(None, (row.role, row.note, row.status)))
        svg.text(16, y + 11, fitted(below, LEFT - 24), fill=FAINT)
        svg.text(RIGHT + 20, y + 4, "" if row.line is None else short(row.line))
        svg.text(RIGHT + 72, y + 4, f"{row.estimate:.4g} [{row.low:.4g}, {row.high:.4g}]")
        svg.text(WIDTH - 60, y + 4, "–" if row.n is None else str(row.n))


def _levels(rows: Sequence[Row]) -> str:
    levels = sorted({row.level for row in rows})
    return " and ".join(f"{100 * level:.4g}\u00a0%" for level in levels)


def _told(row: Row) -> str:
    return f"{row.role} read {row.read}: {row.status}, {row.estimate:.4g} [{row.low:.4g}, {row.high:.4g}] {row.unit}"


def _yes_or_no(metric: str, measurements: Sequence[str], seen: Sequence[Opened]) -> bool:
    """Whether a metric is one of a yes or no in the evidence."""
    values = [
        episode.get(metric)
        for each in seen
        if each.evidence.measurement in measurements
        for episode in each.evidence.episodes
    ]
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, bool) for value in known)
