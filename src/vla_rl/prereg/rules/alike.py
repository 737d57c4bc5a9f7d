"""Are two measurements alike, and which seeds did both succeed on?

In: two measurements. Out: `Outcome`. The first is the parity rule: a difference within a tolerance. The second is only
recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean
from typing import ClassVar, Literal

from vla_rl.errors import ConfigError
from vla_rl.prereg.exclusions import holds
from vla_rl.prereg.outcome import Outcome, Unjudged
from vla_rl.prereg.rules.base import Context, Number, Rule
from vla_rl.prereg.rules.pairing import common, pair
from vla_rl.seeds import parse_seeds
from vla_rl.stats.bootstrap import paired_bootstrap
from vla_rl.stats.intervals import newcombe

LEVEL = 0.95
_Difference = tuple[
    float | Fraction, tuple[float, float], int, tuple[str, str]
]  # with interval, n, both sides in words


@dataclass(frozen=True)
class Tolerance(Rule):
    """Do two counts, shares or means differ by at most a tolerance?

    PASS if so, else FAIL; the very tolerance passes. Counts and shares: the interval takes the two sides as independent
    (Newcombe). Means: over the same seeds, by the paired bootstrap.

    Attributes:
        left, right: two measurements; the difference is left - right.
        metric: a yes-or-no metric; of means, any number.
        statistic: count (both over the same n), share or mean.
        at_most: the tolerance.
    """

    left: str
    right: str
    metric: str
    statistic: Literal["count", "share", "mean"]
    at_most: Number

    KIND: ClassVar[str] = "tolerance"
    NUMBERS: ClassVar[tuple[str, ...]] = ("at_most",)

    def measurements(self) -> tuple[str, ...]:
        return (self.left, self.right)

    def _judge(self, context: Context) -> Outcome:
        tolerance = context.number(self.at_most)
        difference, interval, n, sides = self._means(context) if self.statistic == "mean" else self._counts(context)
        passed = holds(abs(difference), "at_most", tolerance)
        told = f"{self.metric} {' and '.join(sides)}: the {self.statistic}s differ by {float(abs(difference)):g}"
        return Outcome(
            "PASS" if passed else "FAIL",
            f"{told}, {'' if passed else 'not '}<= {tolerance:g}",
            n=n,
            estimate=float(difference),
            interval=interval,
            level=LEVEL,
            details={"sides": list(sides), "tolerance": tolerance},
        )

    def _counts(self, context: Context) -> _Difference:
        sides = context.one(self.left), context.one(self.right)
        if all(side.kind == "episodes" for side in sides):
            (k, n), (j, m) = (side.count(self.metric) for side in common(*sides))
        else:
            (k, n), (j, m) = context.count(self.left, self.metric), context.count(self.right, self.metric)
        low, high = newcombe((j, m), (k, n), LEVEL)
        told = f"{k}/{n}", f"{j}/{m}"
        if self.statistic == "share":
            return Fraction(k, n) - Fraction(j, m), (low, high), min(n, m), told
        if n != m:
            raise Unjudged("INVALID", f"counts over {n} and {m} episodes cannot be compared")
        return Fraction(k - j), (low * n, high * n), n, told

    def _means(self, context: Context) -> _Difference:
        paired = pair(context.one(self.right), context.one(self.left), self.metric)
        read = paired_bootstrap(paired.before, paired.after, level=LEVEL)
        told = f"{fmean(paired.after.values()):.4g}", f"{fmean(paired.before.values()):.4g}"
        return read.mean, (read.low, read.high), read.pairs, told

    def _impossible(self, context: Context) -> Iterator[str]:
        tolerance = context.number(self.at_most)
        sizes = [context.planned_trials(side) for side in (self.left, self.right)]
        if self.left == self.right:
            yield f"{self.left} is compared with itself"
        if tolerance < 0:
            yield f"no difference is at most {tolerance:g}: it can never PASS"
        if self.statistic == "count" and None not in sizes and sizes[0] != sizes[1]:
            yield f"counts over {sizes[0]} and {sizes[1]} episodes cannot be compared; use share"
        largest = {"share": 1, "count": sizes[0], "mean": None}[self.statistic]
        if largest is not None and tolerance >= largest:
            yield f"no difference exceeds {largest}, so none exceeds {tolerance:g}: it can never FAIL"


@dataclass(frozen=True)
class Overlap(Rule):
    """Which seeds succeeded in both? Recorded only.

    Attributes:
        measurement: one side.
        other: the other side; null with `seeds`.
        seeds: seeds that are known to have succeeded elsewhere, such as ``"42,47,85"``; null with `other`.
        metric: a yes-or-no metric.
    """

    measurement: str
    other: str | None = None
    seeds: str | None = None
    metric: str = "success"

    KIND: ClassVar[str] = "overlap"
    RECORD_ONLY: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.other is None) == (self.seeds is None):
            raise ConfigError("the other side is a measurement or a list of seeds", where="other")
        if self.seeds is not None:
            parse_seeds(self.seeds)

    def measurements(self) -> tuple[str, ...]:
        return (self.measurement,) if self.other is None else (self.measurement, self.other)

    def _successes(self, context: Context, measurement: str) -> tuple[set[int], set[int]]:
        values = context.one(measurement).values(self.metric)
        return {seed for seed, value in values.items() if value}, set(values)

    def _judge(self, context: Context) -> Outcome:
        ours, seen = self._successes(context, self.measurement)
        if self.other is not None:
            theirs, also = self._successes(context, self.other)
        else:
            theirs = also = set(parse_seeds(self.seeds or ""))
            also = also | seen
        common = seen & also
        ours, theirs = ours & common, theirs & common
        both, n = sorted(ours & theirs), len(common)
        expected = len(ours) * len(theirs) / n if n else 0.0
        return Outcome(
            "PASS",
            f"{self.metric} on {len(ours)} and {len(theirs)} of {n} common seeds, on {len(both)} in both "
            f"({expected:.3g} expected by chance)",
            label="RECORDED",
            n=n,
            estimate=float(len(both)),
            details={
                "both": both,
                "only_ours": sorted(ours - theirs),
                "only_theirs": sorted(theirs - ours),
                "expected": expected,
            },
        )

    def _impossible(self, context: Context) -> Iterator[str]:
        known = [set(context.planned[m].seeds) for m in self.measurements()]
        if self.seeds is not None:
            known.append(set(parse_seeds(self.seeds)))
        if len(known) == 2 and all(known) and not known[0] & known[1]:
            yield "the two sides have no seed in common: nothing can overlap"
