"""The charts of a page as figures for a paper: PDF with text that stays text, or PNG at 300 dots an inch.

In: charts. Out: bytes by file name. Drawn by matplotlib (extra `figures`) from the numbers that the page shows, in the
same colours and with the same marks; half a text column wide unless there are many scenes. Titles are left to the
caption of the paper.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Sequence
from typing import Any

from vla_rl.errors import MachineError
from vla_rl.report import funnel
from vla_rl.report.intervals import ROLES
from vla_rl.report.page.model import Chart
from vla_rl.report.page.plots import (
    DOWN,
    NARROW_PAIRS,
    SAME,
    UP,
    Forest,
    Lines,
    Pairs,
    Plot,
    Stack,
    Stages,
    thinned,
)  # fmt: skip
from vla_rl.report.svg import COLOURS, colour, marker

COLUMN_IN, PAGE_IN, HIGH_IN, DPI = 3.4, 7.0, 2.3, 300
MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D"}
STYLE: dict[Any, Any] = {  # its keys are a closed list of words to type checkers
    "font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "grid.linewidth": 0.5, "lines.linewidth": 1.3, "lines.markersize": 3.5, "legend.frameon": False,
    "legend.fontsize": 7, "pdf.fonttype": 42, "svg.hashsalt": "vla_rl", "savefig.bbox": "tight", "text.usetex": False,
    "text.parse_math": False,
}  # fmt: skip
# No date, no version: the same numbers give the same file wherever the same matplotlib draws them.
METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None, "Producer": None, "Creator": "vla_rl"},
                                       "png": {"Software": None}}  # fmt: skip


def check_installed() -> None:
    """Whether figures can be drawn here.

    Raises:
        MachineError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MachineError(
            "figures for a paper are drawn by matplotlib, which is not installed", where="--figures",
            remedy="pip install 'vla-rl[figures]'; the HTML report needs none of it",
        )  # fmt: skip


def draw_all(charts: Sequence[Chart], formats: Sequence[str]) -> dict[str, bytes]:
    """Every chart in every format, by file name.

    Raises:
        MachineError: matplotlib is not installed.
    """
    check_installed()
    import matplotlib  # pyright: ignore[reportMissingImports]
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    files = {}
    with matplotlib.rc_context(STYLE):
        for chart in charts:
            figure = Figure(figsize=_size(chart.plot), layout="constrained")
            FigureCanvasAgg(figure)
            _DRAWN[type(chart.plot)](figure, chart.plot)
            for kind in formats:
                file = io.BytesIO()
                figure.savefig(file, format=kind, dpi=DPI, metadata=METADATA[kind])
                files[f"{chart.name}.{kind}"] = file.getvalue()
    return files


def _size(plot: Plot) -> tuple[float, float]:
    match plot:
        case Forest() | Stages():
            return PAGE_IN, max(1.4, 0.55 + 0.27 * len(plot.rows) + (0.5 if isinstance(plot, Forest) else 0.0))
        case Pairs() if len(plot.pairs) > NARROW_PAIRS:
            return PAGE_IN, HIGH_IN
    return COLUMN_IN, HIGH_IN


def _lines(figure: Any, plot: Lines) -> None:
    axes = figure.subplots()
    middle, step = (len(plot.series) - 1) / 2, 0.12 if plot.x_names else 0.0
    for i, s in enumerate(plot.series):
        shift = (i - middle) * step
        points = [(x, y) for x, y in s.points if y > 0 or not plot.y_log]
        xs, ys = [x + shift for x, _ in points], [y for _, y in points]
        if s.band:
            axes.fill_between(*zip(*s.band, strict=True), color=colour(s.ink), alpha=0.2, linewidth=0)
        for x, low, high in s.bars:
            axes.plot([x + shift, x + shift], [low, high], color=colour(s.ink), linewidth=0.9)
        every = max(1, len(xs) // 9) if s.joined and not s.bars else 1
        alone = len(plot.series) == 1 and s.joined and not s.bars and len(xs) > 1
        axes.plot(xs, ys, color=colour(s.ink), label=s.label, linestyle="-" if s.joined else "none",
                  marker=None if alone else MARKERS[marker(s.ink)], markevery=every)  # fmt: skip
    if plot.level is not None:
        axes.axhline(plot.level, color=SAME, linewidth=0.8, linestyle="--")
    if plot.y_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif plot.y_range:
        axes.set_ylim(*plot.y_range)
    if plot.x_names:
        axes.set_xticks(range(len(plot.x_names)), plot.x_names)
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    if len(plot.series) > 1:
        figure.legend(
            *axes.get_legend_handles_labels(), loc="outside upper left", ncols=2 if len(plot.series) < 7 else 3
        )


def _stack(figure: Any, plot: Stack) -> None:
    axes, columns = figure.subplots(), thinned(plot.columns)
    xs, base = [x for x, _ in columns], [0.0] * len(columns)
    width = 0.9 * (xs[1] - xs[0] if len(xs) > 1 else 1.0)
    for i, part in enumerate(plot.parts):
        values = [told[i] for _, told in columns]
        axes.bar(xs, values, width, bottom=base, color=colour(i), label=part)
        base = [b + v for b, v in zip(base, values, strict=True)]
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2)


def _pairs(figure: Any, plot: Pairs) -> None:
    axes = figure.subplots()
    for i, pair in enumerate(plot.drawn()):
        ink = UP if pair.after > pair.before else DOWN if pair.after < pair.before else SAME
        axes.plot([i, i], [pair.before, pair.after], color=ink, linewidth=0.8)
        axes.plot(i, pair.before, ".", color="black", markersize=2)
        axes.plot(i, pair.after, "s" if pair.solved_after else "o", color=ink, markersize=2.2)
    axes.set_xticks([])
    axes.set(xlabel="scenes, in order of their change", ylabel=plot.y_label)


def _forest(figure: Any, plot: Forest) -> None:
    units = list(dict.fromkeys(row.unit for row in plot.rows))
    groups = [[row for row in plot.rows if row.unit == unit] for unit in units]
    panels = figure.subplots(len(units), squeeze=False, height_ratios=[len(group) + 1 for group in groups])[:, 0]
    for axes, unit, group in zip(panels, units, groups, strict=True):
        for i, row in enumerate(group):
            ink = COLOURS[ROLES[row.role]]
            axes.plot([row.low, row.high], [i, i], color=ink)
            axes.plot(row.estimate, i, "s" if row.role == "primary" else "o", color=ink)
            if row.line is not None:
                axes.plot([row.line, row.line], [i - 0.35, i + 0.35], "k--", linewidth=0.7)
        axes.set_yticks(range(len(group)), [f"{row.read} ({row.role})" for row in group])
        axes.set_ylim(len(group) - 0.4, -0.6)
        axes.set_xlabel(unit)


def _stages(figure: Any, plot: Stages) -> None:
    panels = figure.subplots(1, len(funnel.STAGES), sharey=True)
    for i, (axes, stage) in enumerate(zip(panels, funnel.STAGES, strict=True)):
        for at, row in enumerate(plot.rows):
            pair = row.counts[i]
            if pair is not None:
                axes.barh(at, 100 * pair[0] / pair[1], color=COLOURS[1] if row.policy == "base" else COLOURS[0])
                inside, share = pair[0] > 0.45 * pair[1], 100 * pair[0] / pair[1]
                axes.text(2 if inside else share + 2, at, f"{pair[0]}/{pair[1]}", va="center", fontsize=6,
                          color="white" if inside else "black")  # fmt: skip
        axes.set(xlim=(0, 100), xlabel="%")
        axes.set_title(stage, fontsize=8)
        axes.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(plot.rows)), [f"{row.evaluation}: {row.policy}" for row in plot.rows])
    panels[0].invert_yaxis()


_DRAWN: dict[type, Callable[[Any, Any], None]] = {
    Lines: _lines, Stack: _stack, Pairs: _pairs, Forest: _forest, Stages: _stages,
}  # fmt: skip
