"""Exact tests of pairs: McNemar's for yes-or-no metrics, the sign test for any other.

In: two measurements of the same seeds, or recorded counts of won and lost pairs. Out: `Outcome`, labelled IMPROVED,
REGRESSED or FLAT in the sense of the claimed direction. Only pairs that differ count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vla_rl.prereg.outcome import Outcome, Unjudged
from vla_rl.prereg.rules.base import Context, Direction, Number, Rule
from vla_rl.prereg.rules.judging import Otherwise, faults_of_shares, resampling, settle
from vla_rl.prereg.rules.pairing import counted_signs, faults_of_pairs, pair, planned_pairs
from vla_rl.stats.bootstrap import bootstrap_counts
from vla_rl.stats.mcnemar import Signs, fewest_discordant, sign_p
from vla_rl.stats.power import LARGEST, power_of_mcnemar

LABELS = {"PASS": "IMPROVED", "FAIL": "REGRESSED"}
LEVEL, RESAMPLES = 0.95, 10_000  # of the interval that is told beside the test


@dataclass(frozen=True)
class SignTest(Rule):
    """Did more pairs move in the claimed direction than against it? Exact sign test of the differences after - before.

    PASS: p is at most `alpha`, in the claimed direction. FAIL: the same against it. Ties do not count.

    Attributes:
        before, after: measurements of the same seeds.
        metric: any number of an episode.
        direction: in which the metric is meant to move; null is the claim's direction.
        sides: two-sided, or one-sided in the claimed direction (and, for FAIL, against it).
        alpha: size of the test.
        mid_p: the less conservative mid-p form.
        otherwise: what it is if neither is shown.
        discordant: share of pairs expected to differ, for the power; null takes the observed one.
        effect: smallest difference of shares that it should see, gained minus lost; null: no power is told, because
            the claim's is in the unit of the metric.
    """

    before: str
    after: str
    metric: str
    direction: Direction | None = None
    sides: Literal["one", "two"] = "two"
    alpha: Number = 0.05
    mid_p: bool = False
    otherwise: Otherwise = "inconclusive"
    discordant: Number | None = None
    effect: Number | None = None

    KIND: ClassVar[str] = "sign_test"
    NUMBERS: ClassVar[tuple[str, ...]] = ("alpha", "discordant", "effect")

    def measurements(self) -> tuple[str, ...]:
        return (self.before, self.after)

    def _signs(self, context: Context) -> Signs:
        counted = counted_signs(context, self.before, self.after, self.metric)
        return counted or pair(context.one(self.before), context.one(self.after), self.metric).signs

    def _judge(self, context: Context) -> Outcome:
        found, alpha = self._signs(context), context.number(self.alpha)
        rising, two_sided = context.toward(self.direction) == "increase", self.sides == "two"
        gained, lost = (found.won, found.lost) if rising else (found.lost, found.won)
        p = sign_p(gained, lost, two_sided=two_sided, mid_p=self.mid_p)
        opposite = sign_p(lost, gained, two_sided=two_sided, mid_p=self.mid_p)
        status = settle(p <= alpha and gained > lost, opposite <= alpha and lost > gained, self.otherwise)
        shown = status == "PASS" or (opposite <= alpha and lost > gained)
        read = bootstrap_counts(found.won, found.lost, found.pairs, level=LEVEL, resamples=RESAMPLES)
        name = f"{self.sides}-sided {'mid-p' if self.mid_p else 'exact'} p = {p:.4g}, size {alpha:g}"
        return Outcome(
            status,
            f"{self.metric} rose on {found.won} and fell on {found.lost} of {found.pairs} seeds; {name}",
            label=LABELS[status] if shown else "FLAT",
            n=found.pairs,
            estimate=read.sum / read.pairs,
            interval=(read.low / read.pairs, read.high / read.pairs),
            level=LEVEL,
            p=p,
            **self._power(context, found, alpha),
            details={
                "won": found.won,
                "lost": found.lost,
                "tied": found.tied,
                "mid_p": self.mid_p,
                "discordant": self._discordant(context, found),
                "interval_by": "paired bootstrap of counts",
                **resampling(0, RESAMPLES),
            },
        )

    def _power(self, context: Context, found: Signs, alpha: float) -> dict[str, Any]:
        """In the claimed direction, with the registered share of pairs that differ or else the observed one."""
        effect = self._effect(context)
        if not effect or found.pairs > LARGEST:
            return {}
        share, rising = self._discordant(context, found), context.toward(self.direction) == "increase"
        two_sided = self.sides == "two"
        power = power_of_mcnemar(found.pairs, effect, max(share, effect), alpha, two_sided=two_sided, mid_p=self.mid_p)
        return {"effect": effect if rising else -effect, "power": power}

    def _effect(self, context: Context) -> float | None:
        return None if self.effect is None else abs(context.number(self.effect))

    def _discordant(self, context: Context, found: Signs) -> float:
        """Share of pairs that differ: registered, else observed."""
        if self.discordant is not None:
            return context.number(self.discordant)
        return (found.won + found.lost) / found.pairs

    def _impossible(self, context: Context) -> Iterator[str]:
        yield from faults_of_pairs(context, self.before, self.after)
        alpha, pairs = context.number(self.alpha), planned_pairs(context, self.before, self.after)
        if not 0 < alpha < 1:
            yield f"size {alpha:g} is none"
            return
        discordant = None if self.discordant is None else context.number(self.discordant)
        yield from faults_of_shares(discordant=discordant, effect=self._effect(context))
        needed = fewest_discordant(alpha, two_sided=self.sides == "two", mid_p=self.mid_p)
        if pairs is not None and pairs < needed:
            yield f"{pairs} pairs cannot be significant: {needed} that differ, all one way, are the fewest"


@dataclass(frozen=True)
class McNemar(SignTest):
    """Did more seeds go from no to yes than from yes to no? McNemar's exact test; everything as `SignTest`.

    Attributes:
        metric: a yes-or-no metric.
        effect: smallest difference of shares that it should see; null is the claim's.
    """

    metric: str = "success"

    KIND: ClassVar[str] = "mcnemar"

    def _effect(self, context: Context) -> float | None:
        return context.effect(self.effect, self.metric)

    def _signs(self, context: Context) -> Signs:
        counted = counted_signs(context, self.before, self.after, self.metric)
        if counted:
            return counted
        paired = pair(context.one(self.before), context.one(self.after), self.metric)
        if not paired.binary:
            raise Unjudged("INVALID", f"{self.metric} is no yes-or-no metric; the sign test takes any number")
        return paired.signs
