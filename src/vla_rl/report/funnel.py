"""The funnel of every evaluation that was opened: touched, pinched, lifted, success.

In: what was opened. Out: rows as plain data, a Markdown table,
the figure. A stage that evidence does not tell is a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vla_rl.prereg.evidence import BASELINE, Evidence
from vla_rl.prereg.outcome import Unjudged
from vla_rl.report.opened import Opened
from vla_rl.report.svg import COLOURS, FAINT, INK, Svg, caption, caption_height, fitted
from vla_rl.report.tables import TEST_NAMES, one_line

STAGES = ("touched", "pinched", "lifted", "success")
WIDTH, LEFT, ROW, BAR = 860.0, 270.0, 30.0, 16.0
COLUMN, GAP = 128.0, 18.0


@dataclass(frozen=True)
class Row:
    """One evaluation.

    Attributes:
        policy: base or the arm whose training made it.
        counts: of `STAGES`, (k, n) each; None where it is not told.
        n: episodes that count.
        excluded: episodes that a registered exclusion took out.
        test: what success means, in words.
    """

    evaluation: str
    policy: str
    counts: tuple[tuple[int, int] | None, ...]
    n: int
    excluded: int = 0
    test: str = ""


def rows(seen: Sequence[Opened]) -> list[Row]:
    """One row for each opened evaluation."""
    told = []
    for each in seen:
        counts = tuple(_count(each.evidence, stage) for stage in STAGES)
        if any(counts):
            tests = {str(e.get("success_test")) for e in each.evidence.episodes}
            test = TEST_NAMES.get(tests.pop(), "") if len(tests) == 1 else ""
            n = max(pair[1] for pair in counts if pair is not None)
            told.append(Row(each.evidence.measurement, each.policy, counts, n, len(each.evidence.excluded), test))
    return told


def markdown(rows: Sequence[Row]) -> list[str]:
    """Lines of a table."""
    lines = ["| evaluation | policy | n | touched | pinched | lifted | success |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = ["–" if pair is None else f"{pair[0]} ({100 * pair[0] / pair[1]:.0f} %)" for pair in row.counts]
        n = f"{row.n}" + (f" ({row.excluded} excluded)" if row.excluded else "")
        success = f"{cells[-1]}{f', {row.test}' if row.test else ''}"
        lines.append(f"| {row.evaluation} | {one_line(row.policy)} | {n} | {' | '.join(cells[:-1])} | {success} |")
    return lines


def figure(rows: Sequence[Row], id: str) -> bytes:
    """The picture; at least one row."""
    tests = sorted({row.test for row in rows if row.test})
    note = (
        "Episodes that came to each stage at any time, of n; a bar as long as its frame is all of them. Success: "
        f"{' or '.join(tests) or 'as the evidence has it'}. The stages are counted one by one: a boat that is pushed "
        "onto the disk succeeds without a lift."
    )
    if any(row.policy == BASELINE for row in rows):
        note += f" {BASELINE}: the registered configuration as it stands, trained."
    top = 62.0
    height = top + ROW * len(rows) + 16 + caption_height(note, WIDTH) + 8
    told = "; ".join(f"{row.evaluation} of {row.policy}: {_told(row)}" for row in rows)
    svg = Svg(WIDTH, height, f"Funnel of the evaluations of {id}", told)
    svg.text(16, 24, f"{id}: touch, pinch, lift, success", px=15, bold=True)
    for column, stage in enumerate(STAGES):
        svg.text(LEFT + column * (COLUMN + GAP), top - 10, stage, px=13, bold=True)
    for i, row in enumerate(rows):
        y = top + ROW * i
        svg.text(16, y + BAR - 3, fitted(f"{row.evaluation}: {row.policy}", LEFT - 90, px=13), px=13)
        svg.text(LEFT - 14, y + BAR - 3, f"n = {row.n}", anchor="end", fill=FAINT)
        for column, (stage, pair) in enumerate(zip(STAGES, row.counts, strict=True)):
            x = LEFT + column * (COLUMN + GAP)
            svg.rect(x, y, COLUMN, BAR, "#eeeeee")
            if pair is None:
                svg.text(x + 5, y + BAR - 4, "–", fill=FAINT)
                continue
            share = pair[0] / pair[1]
            ink = COLOURS[1] if row.policy == "base" else COLOURS[0]
            svg.rect(x, y, COLUMN * share, BAR, ink, cls="bar", tip=f"{stage} {pair[0]}/{pair[1]}")
            inside = share > 0.45
            at, fill = (x + 5, "#ffffff") if inside else (x + COLUMN * share + 4, INK)
            svg.text(at, y + BAR - 4, f"{pair[0]}/{pair[1]}", fill=fill, bold=inside)
    caption(svg, top + ROW * len(rows) + 14, note)
    return svg.bytes()


def _told(row: Row) -> str:
    pairs = zip(STAGES, row.counts, strict=True)
    return ", ".join(f"{stage} {pair[0]} of {pair[1]}" for stage, pair in pairs if pair is not None)


def _count(evidence: Evidence, stage: str) -> tuple[int, int] | None:
    """(k, n) of a stage; None where it is not told of every episode, or of none."""
    try:
        k, n = evidence.count(stage) if evidence.kind in ("episodes", "counts") else (0, 0)
    except Unjudged:
        return None
    return (k, n) if n else None
