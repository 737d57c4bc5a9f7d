"""Charts of what a training run recorded step by step: success, reward, groups, drift, time, memory.

In: rows of `train.jsonl` by the name of their run, or of a series that was opened. Out: charts with their numbers. What
no row tells has no chart; a value that does not apply leaves a gap, never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any

from vla_rl.report.curves import MEAN_OVER, Wave, smoothed, waves_of
from vla_rl.report.page.model import Cell, Chart, Table
from vla_rl.report.page.plots import MOST_COLUMNS, Lines, Series, Stack
from vla_rl.report.page.rundata import TERM

Rows = Sequence[Mapping[str, Any]]
Runs = Mapping[str, Rows]
STEP = "step"
TIMES = {"rollout_s": "episodes", "update_s": "update", "eval_s": "held-out evaluation", "save_s": "saving"}


def number(value: Any) -> float | None:
    """A finite number, or None: a yes or no is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def values(rows: Rows, key: str) -> list[tuple[float, float]]:
    """(step, value) of the rows that tell one."""
    told = ((row[STEP], number(row.get(key))) for row in rows)
    return [(step, value) for step, value in told if value is not None]


def learning(runs: Runs) -> list[Chart]:
    """Success and reward of the training waves."""
    waves = {label: found for label, rows in runs.items() if (found := waves_of(rows))}
    charts = []
    if waves:
        series = [_success(label, found, i) for i, (label, found) in enumerate(waves.items())]
        sizes = [n for found in waves.values() for _, _, n in found]
        low, high = min(sizes), max(sizes)
        charts.append(
            Chart(
                "training-success", "Success of training waves",
                Lines("Success of training waves", "step", "success, %", series, (0.0, 100.0)), _waves_table(waves),
                f"Share of {low if low == high else f'{low} to {high}'} sampled episodes a wave that succeeded. "
                f"Line: mean over the last {MEAN_OVER} waves (over all where there were fewer); band: lowest and "
                "highest of them.",
            )
        )  # fmt: skip
    means = {label: found for label, rows in runs.items() if (found := values(rows, "reward_mean"))}
    if means:
        title, note = "Reward of training waves", (
            "Mean over the episodes of a wave, by the reward that the run trains on. "
            f"Line: mean over the last {MEAN_OVER} waves; band: lowest and highest of them."
        )  # fmt: skip
        plot = Lines(
            title, STEP, "mean reward, cm", [_windowed(label, f, i) for i, (label, f) in enumerate(means.items())]
        )
        table = merged("reward", STEP, [Series(label or "reward", found) for label, found in means.items()])
        charts.append(Chart("reward", title, plot, table, note))
    return charts


def groups(runs: Runs) -> list[Chart]:
    """How much the draws of one scene differ: what there is to learn from."""
    return [
        *keys("spread", "Spread inside a group", "standard deviation, cm", runs, {"median_group_std_cm": "median"},
              "Standard deviation of the reward over the draws of one scene; the median of the wave's groups."),
        *keys("mixed", "Groups that teach", "share", runs,
              {"mixed_groups_frac": "groups with both outcomes", "success_advantage_share": "advantage from success"},
              "Groups in which some draws succeed and some do not, and the share of the advantage that success makes.",
              (0.0, 1.0)),
        *keys("kept", "Groups kept", "groups", runs, {"groups_kept": "kept", "groups_total": "played"},
              "Groups that were played, and those that the update learned from."),
    ]  # fmt: skip


def drift(runs: Runs) -> list[Chart]:
    """How far updates move the policy: ratio, KL, clipping, surprise."""
    return [
        *_ratio(runs),
        *keys("kl", "KL", "nats a token", runs,
              {"anchor_kl": "from step 0", "update_kl": "from before the update", "approx_kl": "inside the update"},
              "k3 estimates: from the policy of step 0, from the one that sampled, and inside the update.",
              log=True),
        *keys("clip", "Clipped tokens", "share", runs, {"clip_fraction": "clipped"},
              "Tokens whose ratio lies outside of the clip range."),
        *keys("nll", "Surprise and entropy", "nats a token", runs,
              {"chosen_nll": "chosen tokens", "entropy": "entropy"},
              "Negative log-probability of the sampled tokens before the update, and entropy under the mask."),
        *keys("gradient", "Gradient", "norm", runs, {"grad_norm": "gradient"}, "Norm before clipping.",
              log=True),
    ]  # fmt: skip


def time(rows: Rows) -> list[Chart]:
    """Where the time of each step went, and the peak of the memory."""
    parts = {key: label for key, label in TIMES.items() if values(rows, key)}
    charts = []
    if parts:
        columns = [(row[STEP], [number(row.get(key)) or 0.0 for key in parts]) for row in rows]
        thinned = f" Bars are means over {-(-len(rows) // MOST_COLUMNS)} steps." if len(rows) > MOST_COLUMNS else ""
        table = Table("time", [STEP, *(f"{label}, s" for label in parts.values())],
                      [[step, *told] for step, told in columns])  # fmt: skip
        note = (
            "Seconds of each step by what they were spent on; an evaluation counts to the step after it, the last one "
            f"to none.{thinned}"
        )
        plot = Stack("Time of each step", STEP, "seconds", list(parts.values()), columns)
        charts.append(Chart("time", "Time of each step", plot, table, note))
    charts += keys(
        "memory", "Memory of the device", "GiB", {"": rows}, {"vram_gib": "peak"}, "Peak so far, as torch has it."
    )
    charts += keys("speed", "Speed of the simulator", "ticks a second", {"": rows},
                   {"env_steps_per_s": "ticks a second"}, "Ticks of all episodes of a wave over its time.")  # fmt: skip
    return charts


def time_table(rows: Rows) -> Table | None:
    """Seconds in all and their shares."""
    sums = {label: math.fsum(v for _, v in values(rows, key)) for key, label in TIMES.items() if values(rows, key)}
    if not (whole := math.fsum(sums.values())):
        return None
    return Table(
        "time-in-all", ["", "seconds", "share"],
        [*([label, round(s, 1), f"{100 * s / whole:.0f} %"] for label, s in sums.items()),
         ["all", round(whole, 1), ""]],
    )  # fmt: skip


def terms(episodes: Rows) -> list[Chart]:
    """What the reward of the training episodes is made of, wave by wave."""
    waves: dict[int, list[Mapping[str, Any]]] = {}
    for episode in episodes:
        waves.setdefault(episode[STEP], []).append(episode)
    names = sorted({key for episode in episodes for key in episode if key.startswith(TERM)})
    rows = [{STEP: step, **{name: _mean(waves[step], name) for name in names}} for step in sorted(waves)]
    spread = [{STEP: step, **_middle(waves[step])} for step in sorted(waves)]
    charts = keys(
        "terms", "What the reward is made of", "mean, cm", {"": rows},
        {name: name.removeprefix(TERM).replace("_", " ") for name in names},
        "Mean of each term over the training episodes of a wave; they add up to the reward.",
    )  # fmt: skip
    if any("low" in row for row in spread):
        band = [(row[STEP], row["low"], row["high"]) for row in spread if "low" in row]
        line = [(row[STEP], row["middle"]) for row in spread if "low" in row]
        table = Table("reward-spread", [STEP, "first quartile", "median", "third quartile"],
                      [[x, low, y, high] for (x, y), (_, low, high) in zip(line, band, strict=True)])  # fmt: skip
        plot = Lines("Reward of the episodes", STEP, "reward, cm", [Series("median", line, band)])
        note = "Median of a wave's training episodes; band: the middle half of them."
        charts.append(Chart("reward-spread", "Reward of the episodes", plot, table, note))
    return charts


def keys(
    name: str, title: str, y_label: str, runs: Runs, wanted: Mapping[str, str], note: str,
    y_range: tuple[float, float] | None = None, *, log: bool = False,
) -> list[Chart]:  # fmt: skip
    """A chart of some keys of the rows; none if no row tells any.

    Args:
        log: show logarithms where the values are so far apart that the small ones would lie on the axis.
    """
    series = []
    for key, label in wanted.items():
        for run, rows in runs.items():
            if found := values(rows, key):
                named = ": ".join(filter(None, (run if len(runs) > 1 else "", label if len(wanted) > 1 else "")))
                series.append(Series(named or label, found, ink=len(series)))
    if not series:
        return []
    apart = log and _far_apart([y for s in series for _, y in s.points])
    drawn = [s for s in series if not apart or any(y > 0 for _, y in s.points)]
    plot = Lines(title, STEP, y_label, drawn, y_range, y_log=apart)
    more = " The scale is logarithmic; zeros are not drawn." if apart else ""
    return [Chart(name, title, plot, merged(name, STEP, series), note + more)]


def _far_apart(values: Sequence[float]) -> bool:
    above = sorted(value for value in values if value > 0)
    return bool(above) and min(values) >= 0 and above[-1] > 50 * above[len(above) // 2]


def merged(name: str, x_label: str, series: Iterable[Series]) -> Table:
    """The points of several series in one table, a row each x."""
    told = list(series)
    by_x = [dict(s.points) for s in told]
    xs = sorted({x for points in by_x for x in points})
    return Table(name, [x_label, *(s.label for s in told)], [[_whole(x), *(p.get(x) for p in by_x)] for x in xs])


def _success(label: str, waves: list[Wave], ink: int) -> Series:
    """The line is the mean that every learning curve of this project shows."""
    band = _windowed(label, [(step, 100 * k / n) for step, k, n in waves], ink).band
    return Series(label, [(step, 100 * mean) for step, mean in smoothed(waves).items()], band, ink=ink)


def _windowed(label: str, points: Sequence[tuple[float, float]], ink: int) -> Series:
    """The mean over a point and those before it, and from the lowest to the highest of them."""
    windows = [(x, [y for _, y in points[max(0, i - MEAN_OVER + 1) : i + 1]]) for i, (x, _) in enumerate(points)]
    return Series(label, [(x, fmean(ys)) for x, ys in windows], [(x, min(ys), max(ys)) for x, ys in windows], ink=ink)


def _waves_table(runs: Mapping[str, list[Wave]]) -> Table:
    rows: list[list[Cell]] = [[label, step, k, n, k / n] for label, waves in runs.items() for step, k, n in waves]
    return Table("training-success", ["run", STEP, "successes", "episodes", "share"], rows)


def _ratio(runs: Runs) -> list[Chart]:
    series = []
    for run, rows in runs.items():
        if mean := values(rows, "mean_ratio"):
            low, high = dict(values(rows, "min_ratio")), dict(values(rows, "max_ratio"))
            band = [(x, low[x], high[x]) for x, _ in mean if x in low and x in high]
            series.append(Series(run or "mean", mean, band, ink=len(series)))
    if not series:
        return []
    table = merged("ratio", STEP, series)
    if len(series) == 1:
        ends = {x: (low, high) for x, low, high in series[0].band}
        rows = [[_whole(x), y, *ends.get(x, (None, None))] for x, y in series[0].points]
        table = Table("ratio", [STEP, "mean", "lowest", "highest"], rows)
    note = (
        "Probability of the sampled tokens after over before an optimiser step: mean, and lowest to highest as a band."
    )
    return [
        Chart("ratio", "Probability ratio", Lines("Probability ratio", STEP, "ratio", series, level=1.0), table, note)
    ]


def _mean(rows: Rows, key: str) -> float | None:
    told = [value for row in rows if (value := number(row.get(key))) is not None]
    return fmean(told) if told else None


def _middle(rows: Rows) -> dict[str, float]:
    told = [value for row in rows if (value := number(row.get("reward"))) is not None]
    if len(told) < 4:
        return {}
    low, middle, high = quantiles(told, n=4, method="inclusive")
    return {"low": low, "middle": middle, "high": high}


def _whole(x: float) -> float | int:
    return int(x) if x == int(x) else x
