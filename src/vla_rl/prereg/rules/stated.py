"""An interval that somebody else computed, of data that nobody has published.

In: recorded numbers `NAME`, `NAME_low` and `NAME_high`, and `NAME_n` where it is told. Out: `Outcome`. Nothing is
computed here: whoever has the data registers the rule that computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from vla_rl.errors import ConfigError
from vla_rl.prereg.outcome import Outcome, Unjudged
from vla_rl.prereg.rules.base import Context, Direction, Number, Rule
from vla_rl.prereg.rules.judging import Otherwise, Requires, settle_interval
from vla_rl.stats.exact import written


@dataclass(frozen=True)
class StatedInterval(Rule):
    """Does an interval that was handed in lie beyond a line? The interval is taken as it is stated.

    PASS if it lies wholly beyond, FAIL if wholly on the other side; with `requires: not_against` FAIL only if it lies
    wholly on the wrong side.

    Attributes:
        measurement: recorded numbers: the estimate `metric`, and `metric` with `_low`, `_high` and, if told, `_n`.
        metric: name of the estimate.
        line: in its unit.
        direction: increase: beyond is above the line. Null is the claim's direction.
        level: confidence level that is stated.
        requires: beyond: the whole interval lies beyond the line. not_against: not wholly on the wrong side.
        otherwise: of `beyond`: what it is if the interval holds the line.
    """

    measurement: str
    metric: str
    line: Number = 0.0
    direction: Direction | None = None
    level: float = 0.95
    requires: Requires = "beyond"
    otherwise: Otherwise = "inconclusive"

    KIND: ClassVar[str] = "stated_interval"
    NUMBERS: ClassVar[tuple[str, ...]] = ("line",)

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ConfigError(f"{self.level} is no confidence level", where="level")

    def measurements(self) -> tuple[str, ...]:
        return (self.measurement,)

    def _judge(self, context: Context) -> Outcome:
        found = context.one(self.measurement)
        estimate, low, high = (found.number(f"{self.metric}{end}") for end in ("", "_low", "_high"))
        if not low <= estimate <= high:
            raise Unjudged("INVALID", f"{self.metric} {estimate:g} does not lie in {low:g} to {high:g}")
        line, direction = context.number(self.line), context.toward(self.direction)
        ends = written(low), written(high), written(line)
        side = "above" if (direction == "increase") == (self.requires == "beyond") else "below"
        asked = f"must lie {side}" if self.requires == "beyond" else f"must not lie wholly {side}"
        n = found.numbers.get(f"{self.metric}_n")
        if n is not None and (n < 1 or n != int(n)):
            raise Unjudged("INVALID", f"{self.metric}_n {n:g} is no number of observations")
        return Outcome(
            settle_interval(*ends, direction, self.requires, self.otherwise),
            f"{self.metric} {estimate:+g} with the stated interval, which {asked} {line:g}",
            n=None if n is None else int(n),
            estimate=float(estimate),
            interval=(float(low), float(high)),
            level=self.level,
            details={"line": line, "stated": True},
        )

    def _impossible(self, context: Context) -> Iterator[str]:
        if context.planned[self.measurement].kind != "recorded":
            yield f"{self.measurement} is no recorded one: an interval of what is measured is computed, not stated"
