"""One number of a measurement: a count, a share, a statistic of a metric, or a recorded number.

In: a measurement, a metric and a statistic. Out: the number with its n and, where there is one, its interval.
Thresholds, bands and record-only reads are built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean, median
from typing import Literal

from vla_rl.prereg.outcome import Unjudged
from vla_rl.prereg.rules.base import Context
from vla_rl.stats.bootstrap import bootstrap_mean
from vla_rl.stats.intervals import clopper_pearson

Statistic = Literal["count", "share", "mean", "median", "min", "max", "sum", "range", "first", "last", "value"]
OF_VALUES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "median": median,
    "min": min,
    "max": max,
    "sum": sum,
    "range": lambda values: max(values) - min(values),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
LEVEL = 0.95


@dataclass(frozen=True)
class Quantity:
    """A number, exact where it comes from counts.

    Attributes:
        value: the number.
        n: episodes or rows that it rests on; None for a recorded number.
        interval: at 95 %; None where there is none.
        absent: episodes or rows where the metric does not apply, left out.
        text: in words, with its counts.
    """

    value: float | Fraction
    n: int | None
    interval: tuple[float, float] | None
    absent: int
    text: str


def quantity(
    context: Context, measurement: str, metric: str, statistic: Statistic, *, last: int | None, skip_null: bool
) -> Quantity:
    """Read a number.

    Args:
        last: of a series, only so many rows from its end.
        skip_null: leave out episodes or rows where the metric does not apply.

    Raises:
        Unjudged: it cannot be read from what was measured.
    """
    if statistic in ("count", "share"):
        return _counted(context, measurement, metric, statistic, last, skip_null)
    evidence = context.one(measurement)
    if statistic == "value":
        number = evidence.number(metric)
        return Quantity(number, None, None, 0, f"{metric} {number:g}")
    if evidence.kind == "series":
        found = [value for _, value in evidence.series(metric)][-(last or 0) :]
        unit = "rows"
    else:
        found = list(evidence.values(metric, skip_null=skip_null).values())
        found += [None] * (len(evidence.episodes) - len(found))
        unit = "episodes"
    values = [float(value) for value in found if value is not None]
    absent = len(found) - len(values)
    if absent and not skip_null:
        raise Unjudged("INVALID", f"{metric} does not apply to {absent} of {len(found)} {unit} of {evidence.name}")
    if not values:
        raise Unjudged("MISSING", f"{metric} applies to none of {len(found)} {unit} of {evidence.name}")
    value = OF_VALUES[statistic](values)
    of = f"{len(values)} {unit}" if not absent else f"{len(values)} of {len(found)} {unit}"
    interval = bootstrap_mean(values, level=LEVEL) if statistic == "mean" and unit == "episodes" else None
    return Quantity(value, len(values), interval, absent, f"{statistic} of {metric} {value:.4g} over {of}")


def _counted(
    context: Context, measurement: str, metric: str, statistic: Statistic, last: int | None, skip_null: bool
) -> Quantity:
    k, n = context.count(measurement, metric, last, skip_null=skip_null)
    low, high = clopper_pearson(k, n, LEVEL)
    evidence, absent = context.one(measurement), 0
    if skip_null and evidence.kind == "series":
        absent = [value for _, value in evidence.series(metric)][-(last or 0) :].count(None)
    elif skip_null and evidence.kind == "episodes":
        absent = len(evidence.episodes) - n
    told = f"{metric} {k}/{n}" + (f" = {k / n:.4g}" if statistic == "share" else "")
    if absent:
        told += f" ({absent} {'rows' if evidence.kind == 'series' else 'episodes'} left out)"
    if statistic == "share":
        return Quantity(Fraction(k, n), n, (low, high), absent, told)
    return Quantity(Fraction(k), n, (low * n, high * n), absent, told)


def bounds(context: Context, measurement: str, statistic: Statistic, last: int | None) -> tuple[int, int] | None:
    """(least, largest) count that a statistic can reach in the registered n; None if it is no count or n is unknown."""
    n = context.planned_trials(measurement, last)
    return (0, n) if statistic == "count" and n is not None else None


def faults_of_statistic(context: Context, measurement: str, statistic: Statistic, last: int | None) -> list[str]:
    """Why a statistic cannot be read from a kind of measurement."""
    kind = context.planned[measurement].kind
    if statistic == "value" and last is not None:
        return [f"a recorded number has no rows of which to take the last {last}"]
    if kind == "recorded" and statistic not in ("count", "share", "value"):
        return [f"{measurement} records counts or numbers, of which there is no {statistic}; use value"]
    if kind != "recorded" and statistic == "value":
        return [f"{measurement} is no recorded number; choose a statistic"]
    if kind == "evaluation" and statistic in ("first", "last"):
        return [f"{measurement} is an evaluation, in which no episode is the {statistic}"]
    return []
