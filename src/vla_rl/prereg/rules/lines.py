"""Rules on a line: a number against a threshold, consecutive rows beyond a line, a number that is only recorded.

In: one number of a measurement, or a series. Out: `Outcome`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from vla_rl.errors import ConfigError
from vla_rl.prereg.exclusions import Comparator, holds
from vla_rl.prereg.outcome import Outcome
from vla_rl.prereg.rules.base import Context, Number, Rule
from vla_rl.prereg.rules.judging import faults_of_rows
from vla_rl.prereg.rules.quantity import LEVEL, Statistic, bounds, faults_of_statistic, quantity

Nulls = Literal["refuse", "skip"]
SIDES: dict[str, str] = {"above": ">", "at_least": ">=", "equals": "=", "at_most": "<=", "below": "<"}


@dataclass(frozen=True)
class Threshold(Rule):
    """Does a number lie on the named side of a line?

    PASS if it does, else FAIL. Counts, shares and lines are compared as they are written, not as floats.

    Attributes:
        measurement: what is read.
        metric: of its episodes or rows, or the name of a recorded number.
        statistic: count and share of yes-or-no metrics; mean, median, min, max, sum and range of numbers; first and
            last of a series; value of a recorded number.
        comparator: side of the line.
        line: the threshold.
        last: of a series, only so many rows from its end.
        nulls: what to do where the metric does not apply: skip leaves those episodes or rows out.
    """

    measurement: str
    metric: str
    statistic: Statistic
    comparator: Comparator
    line: Number
    last: int | None = None
    nulls: Nulls = "refuse"

    KIND: ClassVar[str] = "threshold"
    NUMBERS: ClassVar[tuple[str, ...]] = ("line",)

    def measurements(self) -> tuple[str, ...]:
        return (self.measurement,)

    def _judge(self, context: Context) -> Outcome:
        line = context.number(self.line)
        read = quantity(
            context, self.measurement, self.metric, self.statistic, last=self.last, skip_null=self.nulls == "skip"
        )
        passed = holds(read.value, self.comparator, line)
        return Outcome(
            "PASS" if passed else "FAIL",
            f"{read.text}, {'' if passed else 'not '}{SIDES[self.comparator]} {line:g}",
            n=read.n,
            estimate=float(read.value),
            interval=read.interval,
            level=LEVEL if read.interval else None,
            details={"line": line, "absent": read.absent},
        )

    def _impossible(self, context: Context) -> Iterator[str]:
        yield from faults_of_rows(context, self.measurement, self.last)
        yield from faults_of_statistic(context, self.measurement, self.statistic, self.last)
        line, reach = context.number(self.line), bounds(context, self.measurement, self.statistic, self.last)
        if self.statistic == "share":
            reach = reach or (0, 1)
        if reach is None:
            return
        least, largest = reach
        told = f"{self.statistic} between {least} and {largest}"
        always = {
            "above": least > line,
            "at_least": least >= line,
            "at_most": largest <= line,
            "below": largest < line,
            "equals": False,
        }
        never = {
            "above": largest <= line,
            "at_least": largest < line,
            "at_most": least > line,
            "below": least >= line,
            "equals": not least <= line <= largest or (self.statistic == "count" and line != int(line)),
        }
        if always[self.comparator]:
            yield f"every {told} is {SIDES[self.comparator]} {line:g}: it can never FAIL"
        if never[self.comparator]:
            yield f"no {told} is {SIDES[self.comparator]} {line:g}: it can never PASS"


@dataclass(frozen=True)
class Window(Rule):
    """A wire: does a series stay beyond a line for several rows in a row?

    FAIL if it does, else PASS. A row where the metric does not apply leaves the streak as it is. The line is a number,
    or a multiple of the first row's value; that row is then exempt.

    Attributes:
        measurement: a series.
        metric: a key of its rows.
        comparator: side of the line that is beyond.
        consecutive: how many rows in a row.
        line: the line; null with `times_first`.
        times_first: the line as a multiple of the first row's value; null with `line`.
    """

    measurement: str
    metric: str
    comparator: Comparator
    consecutive: int
    line: Number | None = None
    times_first: Number | None = None

    KIND: ClassVar[str] = "window"
    NUMBERS: ClassVar[tuple[str, ...]] = ("line", "times_first")

    def __post_init__(self) -> None:
        if (self.line is None) == (self.times_first is None):
            raise ConfigError("the line is a number or a multiple of the first row's value", where="line")
        if self.consecutive < 1:
            raise ConfigError(f"{self.consecutive} consecutive rows are none", where="consecutive")

    def measurements(self) -> tuple[str, ...]:
        return (self.measurement,)

    def _judge(self, context: Context) -> Outcome:
        rows = context.one(self.measurement).series(self.metric)
        if self.line is not None:
            line, judged = context.number(self.line), rows
        else:
            first = next((i for i, (_, value) in enumerate(rows) if value is not None), None)
            if first is None or self.times_first is None:
                return Outcome("MISSING", f"no row of {self.measurement} has {self.metric}")
            line, judged = context.number(self.times_first) * float(rows[first][1] or 0.0), rows[first + 1 :]
        streak = longest = 0
        fired_at: int | None = None
        for step, value in judged:
            if value is not None:
                streak = streak + 1 if holds(float(value), self.comparator, line) else 0
                longest = max(longest, streak)
                if streak == self.consecutive and fired_at is None:
                    fired_at = step
        told = f"{self.metric} {SIDES[self.comparator]} {line:g} for {longest} rows in a row, of {len(judged)} judged"
        values = [value for _, value in judged if value is not None]
        return Outcome(
            "PASS" if fired_at is None else "FAIL",
            f"{told}; {self.consecutive} fire{'' if fired_at is None else f', at step {fired_at}'}",
            label="QUIET" if fired_at is None else "FIRED",
            n=len(values),
            estimate=float(longest),
            details={"line": line, "longest": longest, "fired_at": fired_at, "absent": len(judged) - len(values)},
        )

    def _impossible(self, context: Context) -> Iterator[str]:
        planned = context.planned[self.measurement]
        if planned.kind != "series":
            yield f"{self.measurement} is no series"
        elif planned.steps is not None:
            judged = planned.steps - (self.times_first is not None)
            if self.consecutive > judged:
                exempt = " (the first one is exempt)" if self.times_first is not None else ""
                yield f"{self.consecutive} rows in a row of {planned.steps} rows{exempt}: it can never fire"


@dataclass(frozen=True)
class Record(Rule):
    """A number that is recorded and decides nothing; PASS means that it is there.

    Attributes: as of `Threshold`.
    """

    measurement: str
    metric: str
    statistic: Statistic
    last: int | None = None
    nulls: Nulls = "refuse"

    KIND: ClassVar[str] = "record"
    RECORD_ONLY: ClassVar[bool] = True

    def measurements(self) -> tuple[str, ...]:
        return (self.measurement,)

    def _judge(self, context: Context) -> Outcome:
        read = quantity(
            context, self.measurement, self.metric, self.statistic, last=self.last, skip_null=self.nulls == "skip"
        )
        return Outcome(
            "PASS",
            read.text,
            label="RECORDED",
            n=read.n,
            estimate=float(read.value),
            interval=read.interval,
            level=LEVEL if read.interval else None,
            details={"absent": read.absent},
        )

    def _impossible(self, context: Context) -> Iterator[str]:
        yield from faults_of_rows(context, self.measurement, self.last)
        yield from faults_of_statistic(context, self.measurement, self.statistic, self.last)
