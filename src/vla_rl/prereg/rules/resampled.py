"""Intervals of a paired difference by resampling: pairs, or training seeds first and then pairs.

In: two measurements of the same seeds. Out: `Outcome`. Success counts stay integers until the status is settled, so
that an end at the very line is decided exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from statistics import stdev
from typing import Any, ClassVar

from vla_rl.prereg.outcome import Outcome, Status
from vla_rl.prereg.rules.base import Context, Direction, Number, Rule
from vla_rl.prereg.rules.judging import (
    Otherwise,
    Requires,
    check_resampling,
    faults_of_shares,
    resampling,
    settle,
    settle_interval,
)
from vla_rl.prereg.rules.pairing import Paired, counted_signs, faults_of_pairs, pair, planned_pairs
from vla_rl.stats.bootstrap import bootstrap_counts, paired_bootstrap
from vla_rl.stats.exact import written
from vla_rl.stats.mcnemar import Signs, exact_mcnemar
from vla_rl.stats.power import LARGEST, power_of_mean_interval, power_of_paired_interval

FEWEST_PAIRS = 6  # all alike, they are two-sided significant; fewer can make a narrow interval out of chance


@dataclass(frozen=True)
class PairedBootstrap(Rule):
    """Does the interval of the mean paired difference, after - before, lie beyond a line? Paired percentile bootstrap.

    PASS if it lies wholly beyond, FAIL if wholly on the other side. Where no pair differs nothing is shown, and
    `otherwise` decides. With few pairs that differ the interval is bolder than the exact test, whose p is told beside
    it and which is the rule to choose for a family of reads.

    Attributes:
        before, after: measurements of the same seeds.
        metric: any number of an episode; yes-or-no metrics are resampled as counts.
        line: a difference, in the unit of the metric.
        direction: increase: beyond is above the line. Null is the claim's direction.
        level: confidence level.
        resamples, seed: of the bootstrap.
        requires: beyond: the whole interval lies beyond the line. not_against: not wholly on the wrong side.
        otherwise: of `beyond`: what it is if the interval holds the line.
        discordant: of yes-or-no metrics: share of pairs expected to differ, for the power; null: the observed one.
        effect: smallest difference that it should see; null is the claim's. The power of a yes-or-no metric is exact,
            that of any other number an approximation with the observed spread.
    """

    before: str
    after: str
    metric: str = "success"
    line: Number = 0.0
    direction: Direction | None = None
    level: float = 0.95
    resamples: int = 10_000
    seed: int = 0
    requires: Requires = "beyond"
    otherwise: Otherwise = "inconclusive"
    discordant: Number | None = None
    effect: Number | None = None

    KIND: ClassVar[str] = "paired_bootstrap"
    NUMBERS: ClassVar[tuple[str, ...]] = ("line", "discordant", "effect")

    def __post_init__(self) -> None:
        check_resampling(self.level, self.resamples, self.seed)

    def measurements(self) -> tuple[str, ...]:
        return (self.before, self.after)

    def _judge(self, context: Context) -> Outcome:
        counted = counted_signs(context, self.before, self.after, self.metric)
        if counted:
            return self._of_counts(context, counted)
        paired = pair(context.one(self.before), context.one(self.after), self.metric)
        return self._of_counts(context, paired.signs) if paired.binary else self._of_values(context, paired)

    def _of_counts(self, context: Context, found: Signs) -> Outcome:
        n, line = found.pairs, context.number(self.line)
        read = bootstrap_counts(found.won, found.lost, n, level=self.level, resamples=self.resamples, seed=self.seed)
        at = written(line) * n  # of the sum
        exact = exact_mcnemar(found.won, found.lost)
        told = f"{self.metric} won on {found.won} and lost on {found.lost} of {n} seeds (exact McNemar p = {exact:.4g})"
        return Outcome(
            self._settle(context, found, read.low, read.high, at),
            f"{told}, {self._asked(context, line)}",
            n=n,
            estimate=read.sum / n,
            interval=(read.low / n, read.high / n),
            level=self.level,
            **self._power(context, found, line),
            details={
                "won": found.won,
                "lost": found.lost,
                "tied": found.tied,
                "mcnemar_p": exact,
                "line": line,
                "interval_of_sum": [read.low, read.high],
                **resampling(self.seed, self.resamples),
            },
        )

    def _of_values(self, context: Context, paired: Paired) -> Outcome:
        line = context.number(self.line)
        read = paired_bootstrap(paired.before, paired.after, level=self.level, resamples=self.resamples, seed=self.seed)
        found = paired.signs
        return Outcome(
            self._settle(context, found, read.low, read.high, line),
            f"mean difference of {self.metric} {read.mean:+.4g} over {read.pairs} seeds, {self._asked(context, line)}",
            n=read.pairs,
            estimate=read.mean,
            interval=(read.low, read.high),
            level=self.level,
            **self._power_of_values(context, paired, line),
            details={
                "rose": found.won,
                "fell": found.lost,
                "same": found.tied,
                "line": line,
                **resampling(self.seed, self.resamples),
            },
        )

    def _settle(self, context: Context, found: Signs, low: float, high: float, line: float | Fraction) -> Status:
        if self.requires == "beyond" and not found.won + found.lost:  # a point without width shows nothing
            return settle(False, False, self.otherwise)
        return settle_interval(low, high, line, self._direction(context), self.requires, self.otherwise)

    def _direction(self, context: Context) -> Direction:
        return context.toward(self.direction)

    def _asked(self, context: Context, line: float) -> str:
        beyond, wrong = ("above", "below") if self._direction(context) == "increase" else ("below", "above")
        if self.requires == "beyond":
            return f"whose interval must lie {beyond} {line:g}"
        return f"whose interval must not lie wholly {wrong} {line:g}"

    def _power(self, context: Context, found: Signs, line: float) -> dict[str, Any]:
        effect, rising = context.effect(self.effect, self.metric), self._direction(context) == "increase"
        if not effect or effect > 1 or self.requires != "beyond" or found.pairs > LARGEST:
            return {}
        observed = (found.won + found.lost) / found.pairs
        share = max(effect, observed if self.discordant is None else context.number(self.discordant))
        power = power_of_paired_interval(found.pairs, effect, share, level=self.level, line=line if rising else -line)
        return {"effect": effect if rising else -effect, "power": power}

    def _power_of_values(self, context: Context, paired: Paired, line: float) -> dict[str, Any]:
        """By the normal approximation, with the observed spread of the differences."""
        effect, rising = context.effect(self.effect, self.metric), self._direction(context) == "increase"
        spread = stdev(paired.differences) if len(paired.before) > 1 else 0.0
        if effect is None or self.requires != "beyond" or not spread:
            return {}
        away = effect - (line if rising else -line)
        power = power_of_mean_interval(len(paired.before), away, spread, level=self.level)
        return {"effect": effect if rising else -effect, "power": power}

    def _impossible(self, context: Context) -> Iterator[str]:
        yield from faults_of_pairs(context, self.before, self.after)
        pairs = planned_pairs(context, self.before, self.after)
        if pairs is not None and pairs < FEWEST_PAIRS:
            yield f"{pairs} pairs are too few to resample: {FEWEST_PAIRS} are the fewest"
        yield from faults_of_shares(discordant=None if self.discordant is None else context.number(self.discordant))
        line, rising = context.number(self.line), self._direction(context) == "increase"
        if self.metric == "success" and (line >= 1 if rising else line <= -1) and self.requires == "beyond":
            yield f"no difference of success shares lies beyond {line:g}: it can never PASS"
