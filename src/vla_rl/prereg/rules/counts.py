"""Rules on one count: an exact binomial tail, and an exact interval against a line.

In: (k, n) of a measurement, from episodes, recorded counts or the last rows of a series. Out: `Outcome`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vla_rl.errors import ConfigError
from vla_rl.prereg.outcome import Outcome
from vla_rl.prereg.rules.base import Context, Direction, Number, Rule
from vla_rl.prereg.rules.judging import Otherwise, Requires, faults_of_rows, faults_of_shares, settle, settle_interval
from vla_rl.stats.binomial import critical_high, critical_low, lower_tail, masses, upper_tail
from vla_rl.stats.intervals import clopper_pearson
from vla_rl.stats.power import power_of_tail


@dataclass(frozen=True)
class BinomialTail(Rule):
    """Is the count too high (or too low) for a known rate? Exact one-sided tail.

    PASS: P(X >= k), or P(X <= k) for a decrease, is at most `alpha` under Binomial(n, rate). FAIL: the other tail is.
    With `requires: not_against` it is a guard: FAIL if the count is materially on the wrong side, else PASS.

    Attributes:
        measurement: whose episodes are counted.
        rate: the rate that is to be exceeded or missed.
        metric: a yes-or-no metric.
        direction: which tail; null is the claim's direction.
        alpha: size of the test.
        requires: beyond: the count is materially beyond the rate. not_against: not materially on the other side of it.
        otherwise: of `beyond`: what it is if neither tail is small.
        last: of a series, only so many rows from its end.
        effect: smallest change of the rate that it should see, of `not_against` to the other side; null is the claim's.
    """

    measurement: str
    rate: Number
    metric: str = "success"
    direction: Direction | None = None
    alpha: Number = 0.05
    requires: Requires = "beyond"
    otherwise: Otherwise = "inconclusive"
    last: int | None = None
    effect: Number | None = None

    KIND: ClassVar[str] = "binomial_tail"
    NUMBERS: ClassVar[tuple[str, ...]] = ("rate", "alpha", "effect")

    def measurements(self) -> tuple[str, ...]:
        return (self.measurement,)

    def _judge(self, context: Context) -> Outcome:
        k, n = context.count(self.measurement, self.metric, self.last)
        rate, alpha = context.number(self.rate), context.number(self.alpha)
        rising = self._rising(context)
        tails = upper_tail(k, n, rate), lower_tail(k, n, rate)
        p, opposite = tails if rising else tails[::-1]
        critical = critical_high(n, rate, alpha) if rising else critical_low(n, rate, alpha)
        guard, material = self.requires == "not_against", p <= alpha
        if guard:
            status = "FAIL" if material else "PASS"
        else:
            status = settle(material, opposite <= alpha, self.otherwise)
        sign = ">=" if rising else "<="
        effect = context.effect(self.effect, self.metric)
        signed = None if effect is None else effect if rising else -effect
        level = 1 - 2 * alpha
        return Outcome(
            status,
            f"{self.metric} {k}/{n}; P(X {sign} {k} | Binomial({n}, {rate:g})) = {p:.4g}, size {alpha:g}",
            n=n,
            estimate=k / n,
            interval=clopper_pearson(k, n, level) if 0 < level < 1 else None,
            level=level if 0 < level < 1 else None,
            p=None if guard else p,  # a small one speaks against it
            effect=signed,
            power=None if signed is None or not 0 <= rate + signed <= 1 else power_of_tail(n, rate, signed, alpha),
            details={"k": k, "rate": rate, "critical": critical, "p_opposite": p if guard else opposite},
        )

    def _rising(self, context: Context) -> bool:
        """Whether the tail that is looked at is the upper one: of a guard, that which it warns of."""
        return (context.toward(self.direction) == "increase") == (self.requires == "beyond")

    def _impossible(self, context: Context) -> Iterator[str]:
        yield from faults_of_rows(context, self.measurement, self.last)
        rate, alpha = context.number(self.rate), context.number(self.alpha)
        if not 0 <= rate <= 1 or not 0 < alpha < 1:
            yield f"rate {rate:g} or size {alpha:g} is none"
            return
        yield from faults_of_shares(effect=context.effect(self.effect, self.metric))
        if self.requires != "beyond" and self.otherwise != "inconclusive":
            yield "a guard passes unless it fails, so that it is never otherwise"
        n = context.planned_trials(self.measurement, self.last)
        if n is None:
            return
        rising, never = self._rising(context), "PASS" if self.requires == "beyond" else "FAIL"
        if rising and critical_high(n, rate, alpha) > n:
            yield f"even {n}/{n} has P(X >= {n}) = {upper_tail(n, n, rate):.3g} > {alpha:g}: it can never {never}"
        if not rising and critical_low(n, rate, alpha) < 0:
            yield f"even 0/{n} has P(X <= 0) = {lower_tail(0, n, rate):.3g} > {alpha:g}: it can never {never}"


@dataclass(frozen=True)
class Interval(Rule):
    """Does the Clopper-Pearson interval of a rate lie beyond a line?

    Attributes:
        measurement: whose episodes are counted.
        line: a rate.
        metric: a yes-or-no metric.
        direction: increase: beyond is above the line. Null is the claim's direction.
        level: confidence level of the interval.
        sides: two: both ends are kept. One: only the end that decides, at the full level.
        requires: beyond: the whole interval lies beyond the line. not_against: not wholly on the wrong side.
        otherwise: of `beyond`: what it is if the interval holds the line.
        last: of a series, only so many rows from its end.
        effect: of `beyond`: smallest distance from the line that it should see; null is the claim's.
    """

    measurement: str
    line: Number
    metric: str = "success"
    direction: Direction | None = None
    level: float = 0.95
    sides: Literal["one", "two"] = "two"
    requires: Requires = "beyond"
    otherwise: Otherwise = "inconclusive"
    last: int | None = None
    effect: Number | None = None

    KIND: ClassVar[str] = "interval"
    NUMBERS: ClassVar[tuple[str, ...]] = ("line", "effect")

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or (self.sides == "one" and self.level <= 0.5):
            raise ConfigError(f"{self.level} is no confidence level", where="level")

    def measurements(self) -> tuple[str, ...]:
        return (self.measurement,)

    def _ends(self, k: int, n: int) -> tuple[float, float]:
        return clopper_pearson(k, n, self.level if self.sides == "two" else 2 * self.level - 1)

    def _judge(self, context: Context) -> Outcome:
        k, n = context.count(self.measurement, self.metric, self.last)
        line, direction = context.number(self.line), context.toward(self.direction)
        low, high = self._ends(k, n)
        status = settle_interval(low, high, line, direction, self.requires, self.otherwise)
        wanted = f"{'above' if direction == 'increase' else 'below'} {line:g}"
        asked = (
            f"must lie {wanted}"
            if self.requires == "beyond"
            else f"must not lie wholly on the side opposite to {wanted}"
        )
        return Outcome(
            status,
            f"{self.metric} {k}/{n} = {k / n:.4g}; the {self.sides}-sided Clopper-Pearson interval {asked}",
            n=n,
            estimate=k / n,
            interval=(low, high),
            level=self.level if self.sides == "two" else 2 * self.level - 1,
            **self._power(context, n, line),
            details={"k": k, "line": line, "sides": self.sides},
        )

    def _power(self, context: Context, n: int, line: float) -> dict[str, Any]:
        """Chance of a count whose interval lies beyond, at the line moved by the effect."""
        effect = context.effect(self.effect, self.metric)
        if effect is None or self.requires != "beyond":
            return {}
        rising = context.toward(self.direction) == "increase"
        signed = effect if rising else -effect
        true = min(1.0, max(0.0, line + signed))
        ends = [self._ends(k, n) for k in range(n + 1)]
        beyond = [low > line if rising else high < line for low, high in ends]
        return {"effect": signed, "power": float(masses(n, true)[beyond].sum())}

    def _impossible(self, context: Context) -> Iterator[str]:
        yield from faults_of_rows(context, self.measurement, self.last)
        yield from faults_of_shares(effect=context.effect(self.effect, self.metric))
        n, line = context.planned_trials(self.measurement, self.last), context.number(self.line)
        if n is None:
            return
        rising = context.toward(self.direction) == "increase"
        highest_low, lowest_high = self._ends(n, n)[0], self._ends(0, n)[1]
        reach_above, reach_below = highest_low > line, lowest_high < line
        if self.requires == "beyond" and not (reach_above if rising else reach_below):
            edge = (
                f"{n}/{n} has its lower end at {highest_low:.3g}"
                if rising
                else f"0/{n} has its upper end at {lowest_high:.3g}"
            )
            yield f"even {edge}, not beyond {line:g}: it can never PASS"
        if self.requires == "not_against" and not (reach_below if rising else reach_above):
            edge = (
                f"0/{n} has its upper end at {lowest_high:.3g}"
                if rising
                else f"{n}/{n} has its lower end at {highest_low:.3g}"
            )
            yield f"even {edge}, not on the wrong side of {line:g}: it can never FAIL"
