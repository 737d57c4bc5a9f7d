"""Charts of a report as data, and their pictures as SVG.

In: numbers in their own units. Out: bytes, the same for the same numbers. A chart is at most as wide as a phone unless
it holds a row of scenes. Left out: the figures of a paper, which `paper` draws from the same data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vla_rl.report import funnel, intervals
from vla_rl.report.svg import (
    CHAR_PX,
    COLOURS,
    FAINT,
    GRID,
    INK,
    Panel,
    Svg,
    colour,
    fitted,
    marker,
    short,
    spanned,
    ticks,
)  # fmt: skip

WIDTH, WIDE, LEFT, RIGHT, HIGH, BELOW, LEGEND_ROW = 420.0, 880.0, 52.0, 14.0, 210.0, 42.0, 17.0
DODGE_PX, DODGED_PX, MARKS = 7.0, 28.0, 9
MOST_COLUMNS, MOST_PAIRS, NARROW_PAIRS = 80, 300, 40
UP, DOWN, SAME = COLOURS[0], COLOURS[1], FAINT


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        points: (x, y) by ascending x.
        band: (x, low, high): an area behind it.
        bars: (x, low, high): an interval at a point.
        ink: which of the colours and markers.
        joined: whether its points are joined.
    """

    label: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    bars: Sequence[tuple[float, float, float]] = ()
    ink: int = 0
    joined: bool = True


@dataclass(frozen=True)
class Lines:
    """Values over a number, or over named places.

    Attributes:
        y_range: None: what the values span.
        x_names: names of x = 0, 1, …; empty: x is a number.
        level: a line across, e.g. where nothing changes.
        y_log: values lie by their logarithm; those that are not above 0 are left out.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    y_range: tuple[float, float] | None = None
    x_names: Sequence[str] = ()
    level: float | None = None
    y_log: bool = False


@dataclass(frozen=True)
class Stack:
    """Parts that add up, over a number: `columns` are (x, one value a part)."""

    title: str
    x_label: str
    y_label: str
    parts: Sequence[str]
    columns: Sequence[tuple[float, Sequence[float]]]


@dataclass(frozen=True)
class Pair:
    """One scene before and after; `solved_*` None where a success is not told."""

    seed: int
    before: float
    after: float
    solved_before: bool | None = None
    solved_after: bool | None = None


@dataclass(frozen=True)
class Pairs:
    """Scenes before and after, in ascending order of their change."""

    title: str
    y_label: str
    pairs: Sequence[Pair]

    def drawn(self) -> Sequence[Pair]:
        """In order of their change; of very many every so many-th."""
        ordered = sorted(self.pairs, key=lambda pair: (pair.after - pair.before, pair.seed))
        return ordered[:: -(-len(ordered) // MOST_PAIRS)]


@dataclass(frozen=True)
class Forest:
    """Reads with their intervals; see `report.intervals`."""

    title: str
    id: str
    rows: Sequence[intervals.Row]
    recorded: int


@dataclass(frozen=True)
class Stages:
    """Funnels of evaluations; see `report.funnel`."""

    title: str
    id: str
    rows: Sequence[funnel.Row]


Plot = Lines | Stack | Pairs | Forest | Stages


def draw(plot: Plot) -> bytes:
    """The picture as SVG."""
    match plot:
        case Lines():
            return _lines(plot)
        case Stack():
            return _stack(plot)
        case Pairs():
            return _pairs(plot)
        case Forest():
            return intervals.figure(plot.rows, plot.id, plot.recorded)
        case Stages():
            return funnel.figure(plot.rows, plot.id)


def thinned(columns: Sequence[tuple[float, Sequence[float]]]) -> list[tuple[float, list[float]]]:
    """Means over so many neighbours that no more than `MOST_COLUMNS` are left."""
    size = -(-len(columns) // MOST_COLUMNS) or 1
    groups = [columns[i : i + size] for i in range(0, len(columns), size)]
    return [
        (group[0][0], [sum(part) / len(group) for part in zip(*(values for _, values in group), strict=True)])
        for group in groups
    ]


# --------------------------------------------------------------------------------------------------------- the pictures
Box = tuple[float, float, float, float]


def _open(plot: Lines | Stack | Pairs, legend: Sequence[tuple[str, int]] = (), width: float = WIDTH) -> tuple[Svg, Box]:
    """A picture with its legend and the name of its y axis on top, and the box of the panel."""
    rows: list[list[tuple[float, str, int]]] = [[]] if legend else []
    x = 8.0
    for label, ink in legend:
        label = fitted(label, width - 60)
        wide = 28 + CHAR_PX * len(label) + 14
        if rows[-1] and x + wide > width - 8:
            rows, x = [*rows, []], 8.0
        rows[-1].append((x, label, ink))
        x += wide
    top = 26 + LEGEND_ROW * len(rows)
    svg = Svg(width, top + HIGH + BELOW, plot.title, _told(plot))
    for i, row in enumerate(rows):
        for x, label, ink in row:
            y = 15 + LEGEND_ROW * i
            svg.line([(x, y - 4), (x + 22, y - 4)], colour(ink), width=2.0)
            svg.mark((x + 11, y - 4), marker(ink), colour(ink))
            svg.text(x + 28, y, label)
    svg.text(8, top - 10, fitted(plot.y_label, width - 16), fill=FAINT)
    return svg, (LEFT, top, width - RIGHT, top + HIGH)


def _lines(plot: Lines) -> bytes:
    drawn = [_logarithms(s) for s in plot.series] if plot.y_log else list(plot.series)
    svg, box = _open(plot, [(s.label, s.ink) for s in plot.series] if len(plot.series) > 1 else [])
    xs = [x for s in plot.series for x, _ in s.points]
    share = 0.08 if any(s.bars for s in plot.series) else 0.03
    x_range = (-0.5, len(plot.x_names) - 0.5) if plot.x_names else spanned(xs, share=share)
    y_range = plot.y_range or spanned(_reach(drawn, plot.level))
    panel = Panel.draw(
        svg, box, x_range, y_range, x_label=plot.x_label, y_ticks=() if plot.y_log else None,
        x_ticks=list(enumerate(plot.x_names)) if plot.x_names else whole_ticks(xs, x_range),
    )  # fmt: skip
    if plot.y_log:
        _powers(svg, panel, box, y_range)
    if plot.level is not None:
        at = panel.y(plot.level)
        svg.line([(box[0], at), (box[2], at)], FAINT, dash="4 3", cls="level")
    middle, apart = (len(drawn) - 1) / 2, min(DODGE_PX, DODGED_PX / max(1, len(drawn) - 1))
    for i, (s, told) in enumerate(zip(drawn, plot.series, strict=True)):
        shift = (i - middle) * apart if s.bars or plot.x_names else 0.0
        places = {x: panel.x(x) + (shift if x or plot.x_names else 0.0) for x, _ in s.points}  # all begin at the base
        _one_line(svg, panel, s, places, dict(told.points), alone=len(drawn) == 1)
    return svg.bytes()


def _one_line(
    svg: Svg, panel: Panel, s: Series, place: Mapping[float, float], told: Mapping[float, float], *, alone: bool
) -> None:
    """Band, intervals, line, marks.

    Args:
        place: pixels across by x: points of several lines at one x lie side by side.
        told: values by x as they are written, which may not be those that are drawn.
    """
    ink = colour(s.ink)
    if s.band:
        upper = [(panel.x(x), panel.y(high)) for x, _, high in s.band]
        lower = [(panel.x(x), panel.y(low)) for x, low, _ in reversed(s.band)]
        svg.area([*upper, *lower], ink, cls="band")
    for x, low, high in s.bars:
        at = place[x]
        tip = f"{s.label}: {short(low)} to {short(high)}"
        svg.line([(at, panel.y(low)), (at, panel.y(high))], ink, width=1.4, cls="interval", tip=tip)
    places = [(place[x], panel.y(y)) for x, y in s.points]
    if s.joined and len(places) > 1:
        svg.line(places, ink, width=2.0, cls="curve", tip=s.label)
        if alone and not s.bars:
            return
    every = max(1, len(places) // MARKS) if s.joined and not s.bars else 1
    for (x, _), at in list(zip(s.points, places, strict=True))[::every]:
        tip = f"{s.label}: {told[x]:.4g} at {x:g}"
        svg.mark(at, marker(s.ink), ink, size=3.2 if every > 1 else 4.4, cls="point", tip=tip)


def _logarithms(s: Series) -> Series:
    return replace(s, points=[(x, math.log10(y)) for x, y in s.points if y > 0], band=(), bars=())


def _powers(svg: Svg, panel: Panel, box: Box, y_range: tuple[float, float]) -> None:
    """Lines across at powers of ten; of a range that holds none, at its ends."""
    whole = [value for value in ticks(*y_range) if value == round(value)]
    for value in whole or y_range:
        at = panel.y(value)
        svg.line([(box[0], at), (box[2], at)], GRID, width=0.7)
        svg.text(box[0] - 6, at + 4, f"{10**value:.3g}", anchor="end", fill=FAINT, cls="y-tick")


def _stack(plot: Stack) -> bytes:
    columns = thinned(plot.columns)
    svg, box = _open(plot, [(part, i) for i, part in enumerate(plot.parts)])
    xs, tallest = [x for x, _ in columns], max(sum(values) for _, values in columns)
    gap = (xs[-1] - xs[0]) / (len(xs) - 1) if len(xs) > 1 else 1.0
    x_range = xs[0] - gap / 2 - 0.02 * gap, xs[-1] + gap / 2 + 0.02 * gap
    panel = Panel.draw(svg, box, x_range, (0.0, 1.05 * tallest or 1.0), x_label=plot.x_label,
                       x_ticks=whole_ticks(xs, x_range))  # fmt: skip
    width = min(40.0, 0.82 * (panel.x(xs[0] + gap) - panel.x(xs[0])))
    for x, values in columns:
        base = 0.0
        for i, (part, value) in enumerate(zip(plot.parts, values, strict=True)):
            top, bottom = panel.y(base + value), panel.y(base)
            if bottom - top > 0.05:
                tip = f"{part}: {value:.4g} at {x:g}"
                svg.rect(panel.x(x) - width / 2, top, width, bottom - top, colour(i), cls="part", tip=tip)
            base += value
    return svg.bytes()


def _pairs(plot: Pairs) -> bytes:
    pairs = plot.drawn()
    svg, box = _open(plot, width=WIDE if len(pairs) > NARROW_PAIRS else WIDTH)
    y_range = spanned([value for pair in pairs for value in (pair.before, pair.after)])
    panel = Panel.draw(svg, box, (-0.7, len(pairs) - 0.3), y_range, x_label="scenes, in order of their change",
                       x_ticks=())  # fmt: skip
    if y_range[0] < 0 < y_range[1]:
        svg.line([(box[0], panel.y(0)), (box[2], panel.y(0))], FAINT, dash="4 3", cls="level")
    size = max(1.6, min(4.0, 0.3 * (box[2] - box[0]) / len(pairs)))
    for i, pair in enumerate(pairs):
        ink = UP if pair.after > pair.before else DOWN if pair.after < pair.before else SAME
        x, tip = panel.x(i), _words(pair)
        svg.line([(x, panel.y(pair.before)), (x, panel.y(pair.after))], ink, width=1.4, cls="pair", tip=tip)
        svg.mark((x, panel.y(pair.before)), "circle", INK, size=0.62 * size, cls="before", tip=tip)
        svg.mark((x, panel.y(pair.after)), "square" if pair.solved_after else "circle", ink, size=size, cls="after",
                 tip=tip)  # fmt: skip
    return svg.bytes()


def _words(pair: Pair) -> str:
    ends = {None: "", True: " (success)", False: " (no success)"}
    return f"seed {pair.seed}: {pair.before:.2f}{ends[pair.solved_before]} to {pair.after:.2f}{ends[pair.solved_after]}"


def whole_ticks(xs: Sequence[float], x_range: tuple[float, float]) -> list[tuple[float, str]] | None:
    """Ticks of numbers that are counted: no half a step. None where they are measured."""
    if any(x != round(x) for x in xs):
        return None
    return [(value, short(value)) for value in ticks(*x_range) if abs(value - round(value)) < 1e-9]


def _reach(series: Sequence[Series], level: float | None) -> list[float]:
    found = [y for s in series for _, y in s.points]
    found += [end for s in series for _, *ends in (*s.band, *s.bars) for end in ends]
    return found if level is None else [*found, level]


def _told(plot: Lines | Stack | Pairs) -> str:
    """For those who do not see it: where every line begins and ends."""
    match plot:
        case Lines():
            parts = [_of_line(plot, s) for s in plot.series if s.points]
        case Stack():
            totals = [sum(values[i] for _, values in plot.columns) for i in range(len(plot.parts))]
            parts = [f"{part}: {total:.4g} in all" for part, total in zip(plot.parts, totals, strict=True)]
        case Pairs():
            better = sum(pair.after > pair.before for pair in plot.pairs)
            worse = sum(pair.after < pair.before for pair in plot.pairs)
            parts = [f"of {len(plot.pairs)} scenes {better} rose and {worse} fell"]
    return f"{plot.y_label}: {'; '.join(parts)}"


def _of_line(plot: Lines, s: Series) -> str:
    if plot.x_names:
        return f"{s.label}: " + ", ".join(f"{y:.4g} at {plot.x_names[int(x)]}" for x, y in s.points)
    (x0, y0), (x1, y1) = s.points[0], s.points[-1]
    last = "" if len(s.points) == 1 else f", {y1:.4g} at {plot.x_label} {x1:g}"
    return f"{s.label}: {y0:.4g} at {plot.x_label} {x0:g}{last}"
