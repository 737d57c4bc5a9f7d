"""Learning curves of a registration: success of training waves, and of held-out evaluations, over updates.

In: a registration and what was opened of it. Out: curves as plain data, and the figure. Arms that differ only in
`run.seed` are one curve, their mean, with a band from the lowest to the highest of them. Held-out evaluations on the
same scenes share a panel, with Clopper-Pearson intervals; one that is sealed is in none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from vla_rl.prereg.canonical import digest
from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import BASELINE
from vla_rl.prereg.outcome import Unjudged
from vla_rl.report.opened import Opened
from vla_rl.report.svg import CHAR_PX, Panel, Svg, caption, caption_height, colour, fitted, marker, spanned
from vla_rl.seeds import parse_seeds
from vla_rl.stats.intervals import clopper_pearson

MEAN_OVER = 5  # waves: one of them is a few dozen episodes
SEED = "run.seed"
WIDTH, LEFT, PANEL_WIDTH, PANEL_HEIGHT, GAP = 880.0, 66.0, 350.0, 230.0, 84.0
TOP, LEGEND_ROW, BELOW = 84.0, 18.0, 48.0
DODGE_PX, DODGED_PX = 7.0, 28.0  # between intervals of several policies at one number of updates; over all of them

Wave = tuple[int, int, int]  # step, successes, episodes
Run = tuple[Opened, list[Wave]]


@dataclass(frozen=True)
class Curve:
    """Success of the training waves of one arm, or of several that differ only in their seed.

    Attributes:
        seeds: how many arms it is the mean of.
        points: (updates before the wave and with it, mean share, lowest, highest), smoothed.
        episodes: of one wave, smallest and largest number.
    """

    label: str
    seeds: int
    points: tuple[tuple[int, float, float, float], ...]
    episodes: tuple[int, int]


@dataclass(frozen=True)
class HeldOut:
    """Evaluations on one set of scenes.

    Attributes:
        scenes: what they have in common, in words.
        lines: by policy, (updates, successes, trials) in ascending order.
    """

    scenes: str
    lines: Mapping[str, tuple[tuple[int, int, int], ...]]


def training(registration: Registration, seen: Sequence[Opened]) -> list[Curve]:
    """Curves of all series that tell how many episodes of a wave succeeded. Where the seeds of one arm share no step
    there is no mean, and each is a curve of its own."""
    runs: dict[tuple[str, str], Run] = {}
    for each in seen:
        if each.evidence.kind == "series" and (waves := waves_of(each.evidence.rows)):
            key = each.rung, each.evidence.arm or ""
            if key not in runs or len(runs[key][1]) < len(waves):  # the same run may be registered up to two steps
                runs[key] = each, waves
    groups: dict[tuple[str, str], list[Run]] = {}
    for (rung, _), (each, waves) in runs.items():
        rest = {path: value for path, value in (each.arm.set if each.arm else {}).items() if path != SEED}
        groups.setdefault((rung, digest("arm", rest)), []).append((each, waves))
    told = []
    for members in groups.values():
        shared = set.intersection(*({step for step, _, _ in waves} for _, waves in members))
        told += [_curve(registration, part) for part in ([members] if shared else [[member] for member in members])]
    return told


def held_out(registration: Registration, seen: Sequence[Opened]) -> list[HeldOut]:
    """Evaluations of which those on one set of scenes were made at two numbers of updates or more."""
    groups: dict[tuple[Any, ...], list[tuple[Opened, tuple[int, int]]]] = {}
    for each in seen:
        if (counted := _successes(each)) is not None and each.step is not None:
            e = each.evidence
            alike = _seeds(each), e.protocol, e.temperature, e.head, e.scene_hash, counted[1]
            groups.setdefault(alike, []).append((each, counted))
    from_base = {rung.id for rung in registration.ladder if rung.starts_from == "base"}
    told = []
    for members in groups.values():
        base = {(0, *counted) for each, counted in members if each.base}
        lines: dict[str, set[Wave]] = {}
        for each, counted in members:
            if not each.base:
                start = base if each.rung in from_base else set()
                lines.setdefault(name_of(registration, each), set()).update({(each.step or 0, *counted)}, start)
        if any(len({at[0] for at in line}) > 1 for line in lines.values()):
            scenes = _scenes(members[0][0], members[0][1][1])
            told.append(HeldOut(scenes, {name: tuple(sorted(line)) for name, line in lines.items()}))
    return told


def figure(curves: Sequence[Curve], evaluations: Sequence[HeldOut], id: str) -> bytes:
    """The picture; at least one curve or evaluation."""
    panels = len(evaluations) + bool(curves)
    entries = [len(each.lines) for each in evaluations] + [len(curves)] * bool(curves)
    tall = TOP + LEGEND_ROW * max(entries) + PANEL_HEIGHT + BELOW - 30
    names = list(dict.fromkeys([*(c.label for c in curves), *(name for each in evaluations for name in each.lines)]))
    note, width = _note(curves, evaluations, names), WIDTH if panels > 1 else LEFT + PANEL_WIDTH + GAP
    height = 34 + tall * -(-panels // 2) + caption_height(note, width) + 14
    svg = Svg(width, height, f"Learning curves of {id}", _description(curves, evaluations))
    svg.text(16, 24, f"{id}: learning curves", px=15, bold=True)
    for i in range(panels):
        left, top = LEFT + i % 2 * (PANEL_WIDTH + GAP), 10 + tall * (i // 2) + TOP + LEGEND_ROW * max(entries) - 30
        box = left, top, left + PANEL_WIDTH, top + PANEL_HEIGHT
        if i < bool(curves):
            _draw_training(svg, box, curves, names)
        else:
            _draw_held_out(svg, box, evaluations[i - bool(curves)], names)
    caption(svg, 34 + tall * -(-panels // 2) + 8, note)
    return svg.bytes()


# ------------------------------------------------------------------------------------------------------------- the data
def waves_of(rows: Sequence[Mapping[str, Any]]) -> list[Wave]:
    """(step, successes, episodes) of the rows that tell all three."""
    told = [(row["step"], row.get("successes"), row.get("episodes")) for row in rows]
    return [(step, k, n) for step, k, n in told if type(k) is int and type(n) is int and 0 <= k <= n and n > 0]


def smoothed(waves: Sequence[Wave]) -> dict[int, float]:
    """By step, the mean share of the wave and those before it, `MEAN_OVER` in all."""
    shares = [k / n for _, k, n in waves]
    return {step: fmean(shares[max(0, i - MEAN_OVER + 1) : i + 1]) for i, (step, _, _) in enumerate(waves)}


def _curve(registration: Registration, members: Sequence[Run]) -> Curve:
    means = [smoothed(waves) for _, waves in members]
    common = sorted(set.intersection(*(set(each) for each in means)))
    shares = [(step, [each[step] for each in means]) for step in common]
    sizes = [n for _, waves in members for _, _, n in waves]
    points = tuple((step, fmean(each), min(each), max(each)) for step, each in shares)
    return Curve(name_of(registration, members[0][0]), len(members), points, (min(sizes), max(sizes)))


def name_of(registration: Registration, each: Opened) -> str:
    """The arm, and of several rungs which."""
    return each.arm_name + (f" of {each.rung}" if len(registration.ladder) > 1 else "")


def _successes(each: Opened) -> tuple[int, int] | None:
    """(k, n) of an evaluation; None if it does not tell, or cannot be judged."""
    if each.evidence.kind not in ("episodes", "counts") or each.evidence.faults:
        return None
    try:
        k, n = each.evidence.count("success")
    except Unjudged:
        return None
    return (k, n) if n else None


def _seeds(each: Opened) -> tuple[Any, ...]:
    """Which scenes an evaluation is of; where neither evidence nor registration tells, its own and no other's."""
    if each.evidence.seeds:
        return each.evidence.seeds
    registered = each.measurement.seeds if each.measurement else None
    return parse_seeds(registered) if registered else (each.evidence.measurement,)


def _scenes(each: Opened, n: int) -> str:
    """What the evaluations of a panel have in common."""
    e, registered = each.evidence, each.measurement.seeds if each.measurement else None
    temperature = "" if e.temperature is None else "greedy, " if e.temperature == 0 else f"T {e.temperature:g}, "
    return f"{temperature}{f'seeds {registered}, ' if registered else ''}n = {n}"


# ---------------------------------------------------------------------------------------------------------- the picture
def _draw_training(svg: Svg, box: tuple[float, float, float, float], curves: Sequence[Curve], names: list[str]) -> None:
    steps = [point[0] for curve in curves for point in curve.points]
    panel = Panel.draw(
        svg, box, spanned(steps, share=0.02), (0.0, 100.0), x_label="GRPO step", y_label="success of the wave, %",
        y_ticks=range(0, 101, 20),
    )  # fmt: skip
    entries = [(c.label, f", {c.seeds} training seeds" * (c.seeds > 1)) for c in curves]
    _title(svg, box, "training waves", entries, names)
    for curve in curves:
        ink = colour(names.index(curve.label))
        if curve.seeds > 1:
            upper = [(panel.x(p[0]), panel.y(100 * p[3])) for p in curve.points]
            lower = [(panel.x(p[0]), panel.y(100 * p[2])) for p in reversed(curve.points)]
            svg.area([*upper, *lower], ink, cls="band")
        line = [(panel.x(p[0]), panel.y(100 * p[1])) for p in curve.points]
        svg.line(line, ink, width=2.0, cls="curve", tip=curve.label)
        for at in line[:: max(1, len(line) // 8)]:
            svg.mark(at, marker(names.index(curve.label)), ink, size=3.2)


def _draw_held_out(svg: Svg, box: tuple[float, float, float, float], each: HeldOut, names: list[str]) -> None:
    steps = [at[0] for line in each.lines.values() for at in line]
    panel = Panel.draw(
        svg, box, spanned(steps), (0.0, 100.0), x_label="updates", y_label="held-out success, %",
        y_ticks=range(0, 101, 20),
    )  # fmt: skip
    _title(svg, box, f"held out: {each.scenes}", [(name, "") for name in each.lines], names)
    middle = (len(each.lines) - 1) / 2
    apart = min(DODGE_PX, DODGED_PX / max(1, len(each.lines) - 1))
    for i, (name, points) in enumerate(each.lines.items()):
        ink, shift = colour(names.index(name)), (i - middle) * apart
        at = [(panel.x(step) + (shift if step else 0.0), panel.y(100 * k / n)) for step, k, n in points]
        svg.line(at, ink, width=2.0, cls="curve", tip=name)
        for (x, y), (step, k, n) in zip(at, points, strict=True):
            low, high = clopper_pearson(k, n)
            tip = f"{name}, {step} updates: {k}/{n}"
            svg.line([(x, panel.y(100 * low)), (x, panel.y(100 * high))], ink, width=1.2, cls="interval", tip=tip)
            svg.mark((x, y), marker(names.index(name)), ink, cls="point")


def _title(
    svg: Svg, box: tuple[float, float, float, float], title: str, entries: Sequence[tuple[str, str]], names: list[str]
) -> None:
    """Title and legend above a panel."""
    left, top = box[0], box[1] - 12 - LEGEND_ROW * len(entries)
    svg.text(left, top, fitted(title, PANEL_WIDTH, px=13), px=13, bold=True)
    for i, (name, more) in enumerate(entries):
        y, at = top + LEGEND_ROW * (i + 1) - 2, names.index(name)
        svg.line([(left, y - 4), (left + 26, y - 4)], colour(at), width=2.0)
        svg.mark((left + 13, y - 4), marker(at), colour(at))
        svg.text(left + 34, y, f"{fitted(name, PANEL_WIDTH - 34 - CHAR_PX * len(more))}{more}")


def _note(curves: Sequence[Curve], evaluations: Sequence[HeldOut], names: Sequence[str]) -> str:
    told = []
    if curves:
        low, high = min(c.episodes[0] for c in curves), max(c.episodes[1] for c in curves)
        told.append(
            f"Training waves: share of {low if low == high else f'{low} to {high}'} sampled episodes a wave that "
            f"succeeded, mean over the last {MEAN_OVER} waves, or over all where there were fewer."
        )
    if any(curve.seeds > 1 for curve in curves):
        told.append("Line and band: mean, lowest and highest of the training seeds, each smoothed by itself.")
    if evaluations:
        told.append("Held out: share of n scenes; bars: Clopper-Pearson, 95\u00a0%.")
        told.append("Points at one step lie side by side.")
    if any(name.split(" of ")[0] == BASELINE for name in names):
        told.append(f"{BASELINE}: the registered configuration as it stands, trained.")
    return " ".join(told)


def _description(curves: Sequence[Curve], evaluations: Sequence[HeldOut]) -> str:
    told = [
        f"training waves of {c.label} ({c.seeds} training seeds): {100 * c.points[0][1]:.0f} % at step "
        f"{c.points[0][0]}, {100 * c.points[-1][1]:.0f} % at step {c.points[-1][0]}"
        for c in curves
        if c.points
    ]
    for each in evaluations:
        for name, points in each.lines.items():
            told.append(f"{each.scenes}, {name}: " + ", ".join(f"{k}/{n} after {step}" for step, k, n in points))
    return "; ".join(told)
