"""Named bands of a number, such as ABORT at most 2, BAND 3 to 6, PASS at least 7.

In: one number of a measurement. Out: `Outcome` with the band's name and status. Bands that overlap or leave a gap are
refused when a registration is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Literal

from vla_rl.errors import ConfigError
from vla_rl.prereg.exclusions import Comparator, holds
from vla_rl.prereg.outcome import Outcome
from vla_rl.prereg.rules.base import Context, Number, Rule
from vla_rl.prereg.rules.judging import faults_of_rows, faults_of_shares
from vla_rl.prereg.rules.quantity import LEVEL, Statistic, bounds, faults_of_statistic, quantity
from vla_rl.stats.binomial import lower_tail, masses, upper_tail
from vla_rl.stats.exact import written

LABELS = {"PASS": "PASS", "BAND": "INCONCLUSIVE", "ABORT": "FAIL"}  # what these names mean of a gate, they always mean


@dataclass(frozen=True)
class Band:
    """One band.

    Attributes:
        label: its name; PASS, BAND and ABORT have a fixed status.
        status: what falling into it means.
        at_least, above: its lower edge, inside or outside of it; neither: open.
        at_most, below: its upper edge; likewise.
    """

    label: str
    status: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    at_least: Number | None = None
    above: Number | None = None
    at_most: Number | None = None
    below: Number | None = None

    def __post_init__(self) -> None:
        if (self.at_least is not None and self.above is not None) or (
            self.at_most is not None and self.below is not None
        ):
            raise ConfigError(f"the band {self.label} has an edge twice", where="bands")
        if LABELS.get(self.label, self.status) != self.status:
            raise ConfigError(f"a band {self.label} is {LABELS[self.label]}, not {self.status}", where="bands")

    def edges(self, context: Context) -> list[tuple[Comparator, float]]:
        """Its edges as numbers."""
        named: tuple[tuple[Comparator, Number | None], ...] = (
            ("at_least", self.at_least),
            ("above", self.above),
            ("at_most", self.at_most),
            ("below", self.below),
        )
        return [(side, context.number(edge)) for side, edge in named if edge is not None]

    def holds(self, value: float | Fraction, context: Context) -> bool:
        return all(holds(value, side, edge) for side, edge in self.edges(context))


@dataclass(frozen=True)
class Bands(Rule):
    """Which band does a number fall into?

    Attributes:
        measurement, metric, statistic, last: as of a threshold.
        bands: at least two; every value lies in exactly one.
        rate: of a count: a known rate; the tail at the count and the chance of every band under it are told.
        effect: smallest change of that rate, for the power (chance of the bands that PASS); null is the claim's.
        direction: sign of that change.
    """

    measurement: str
    metric: str
    statistic: Statistic
    bands: list[Band]
    last: int | None = None
    rate: Number | None = None
    effect: Number | None = None
    direction: Literal["increase", "decrease"] | None = None

    KIND: ClassVar[str] = "bands"
    NUMBERS: ClassVar[tuple[str, ...]] = ("rate", "effect")

    def __post_init__(self) -> None:
        labels = [band.label for band in self.bands]
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ConfigError("at least two bands, each with its own label", where="bands")
        if self.rate is not None and self.statistic != "count":
            raise ConfigError("a rate says something of a count only", where="rate")

    def measurements(self) -> tuple[str, ...]:
        return (self.measurement,)

    def directed(self) -> bool:
        return self.direction is None and self.effect is not None  # it is the sign of the effect

    def measured_by_the_claim(self) -> bool:
        return self.rate is not None and super().measured_by_the_claim()

    def constants(self) -> tuple[str, ...]:
        edges = [getattr(band, side) for band in self.bands for side in ("at_least", "above", "at_most", "below")]
        return tuple(dict.fromkeys((*super().constants(), *(edge for edge in edges if isinstance(edge, str)))))

    def _judge(self, context: Context) -> Outcome:
        read = quantity(context, self.measurement, self.metric, self.statistic, last=self.last, skip_null=False)
        hit = [band for band in self.bands if band.holds(read.value, context)]
        if len(hit) != 1:
            which = " and ".join(band.label for band in hit) or "no band"
            return Outcome("INVALID", f"{read.text} falls into {which}", n=read.n, estimate=float(read.value))
        found: dict[str, Any] = {}
        told = f"{read.text}: {hit[0].label}"
        if self.rate is not None and read.n is not None:
            found = self._under_rate(context, int(read.value), read.n, context.number(self.rate))
            told += f"; P(X <= {int(read.value)} | Binomial({read.n}, {found['details']['rate']:g})) = "
            told += f"{found['details']['p_at_most']:.4g}"
        return Outcome(
            hit[0].status,
            told,
            label=hit[0].label,
            n=read.n,
            estimate=float(read.value),
            interval=read.interval,
            level=LEVEL if read.interval else None,
            **found,
        )

    def _under_rate(self, context: Context, k: int, n: int, rate: float) -> dict[str, Any]:
        """Tails at the count, the chance of every band, and the chance of PASS at the smallest effect."""
        details = {
            "k": k,
            "rate": rate,
            "p_at_most": lower_tail(k, n, rate),
            "p_at_least": upper_tail(k, n, rate),
            "chances": {band.label: self._chance(context, [band], n, rate) for band in self.bands},
        }
        effect = context.effect(self.effect, self.metric)
        if effect is None:
            return {"details": details}
        signed = effect if context.toward(self.direction) == "increase" else -effect
        passing = [band for band in self.bands if band.status == "PASS"]
        true = min(1.0, max(0.0, rate + signed))
        return {"details": details, "effect": signed, "power": self._chance(context, passing, n, true)}

    @staticmethod
    def _chance(context: Context, bands: Sequence[Band], n: int, rate: float) -> float:
        inside = [any(band.holds(Fraction(k), context) for band in bands) for k in range(n + 1)]
        return float(masses(n, rate)[inside].sum())

    def _impossible(self, context: Context) -> Iterator[str]:
        yield from faults_of_rows(context, self.measurement, self.last)
        yield from faults_of_statistic(context, self.measurement, self.statistic, self.last)
        if self.rate is not None:
            effect = context.effect(self.effect, self.metric)
            yield from faults_of_shares(rate=context.number(self.rate), effect=effect)
        reach, points = bounds(context, self.measurement, self.statistic, self.last), self._points(context)
        hits = {point: [band.label for band in self.bands if band.holds(point, context)] for point in points}
        for wrong, told in ((0, "no band"), (2, "several bands")):
            if odd := [point for point, labels in hits.items() if min(len(labels), 2) == wrong]:
                names = f" ({', '.join(hits[odd[0]])})" if wrong else ""
                yield f"{self.statistic} {float(odd[0]):g} lies in {told}{names}"
        reached = {label for labels in hits.values() for label in labels}
        for band in self.bands:
            if band.label not in reached:
                within = f" between {reach[0]} and {reach[1]}" if reach else ""
                yield f"no {self.statistic}{within} lies in the band {band.label}: it can never be reached"

    def _points(self, context: Context) -> list[Fraction]:
        """Values that tell every other: all counts, or every edge and a point in each gap between edges."""
        reach = bounds(context, self.measurement, self.statistic, self.last)
        if reach is not None:
            return [Fraction(k) for k in range(reach[0], reach[1] + 1)]
        edges = sorted({written(edge) for band in self.bands for _, edge in band.edges(context)})
        if self.statistic == "count":  # of unknown n
            whole = {point for edge in edges for point in (int(edge) - 1, int(edge), int(edge) + 1)}
            return [Fraction(k) for k in sorted(whole) if k >= 0]
        if self.statistic == "share":
            edges = sorted({Fraction(0), Fraction(1), *(edge for edge in edges if 0 <= edge <= 1)})
            return sorted({*edges, *((a + b) / 2 for a, b in pairwise(edges))})
        between = [(a + b) / 2 for a, b in pairwise(edges)]
        return sorted({*edges, *between, *((edges[0] - 1, edges[-1] + 1) if edges else (Fraction(0),))})
