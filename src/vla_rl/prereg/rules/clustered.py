"""A claim about training: the same change under several training seeds, as arms that differ in `run.seed`.

In: for every training seed, two measurements of the same environment seeds. Out: `Outcome` over training seeds. With
few of them no exact test can be significant, which is told in the details, and the interval is too narrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from vla_rl.prereg.evidence import BASELINE
from vla_rl.prereg.outcome import Outcome, Unjudged
from vla_rl.prereg.rules.base import Context, Direction, Number, Rule
from vla_rl.prereg.rules.judging import Otherwise, Requires, check_resampling, resampling, settle, settle_interval
from vla_rl.prereg.rules.pairing import faults_of_pairs, pair
from vla_rl.stats.cluster import cluster_bootstrap, smallest_p_over_clusters
from vla_rl.stats.exact import written


@dataclass(frozen=True)
class ClusterBootstrap(Rule):
    """Does the interval of the mean difference over training seeds lie beyond a line? Training seeds are resampled
    first, then the pairs of each.

    The i-th of `after_arms` is paired with the i-th of `before_arms`: two levers under the same training seeds, or
    trained against base.

    Attributes:
        before, after: measurements of the same environment seeds; the same one to compare arms of it.
        metric: any number of an episode.
        after_arms: one arm a training seed; empty is all arms of `after`.
        before_arms: as many arms; empty is the one arm of `before`, else the same as `after_arms`.
        line: a difference, in the unit of the metric.
        direction: increase: beyond is above the line. Null is the claim's direction.
        level: confidence level.
        resamples, seed: of the bootstrap.
        requires: beyond: the whole interval lies beyond the line. not_against: not wholly on the wrong side.
        otherwise: of `beyond`: what it is if the interval holds the line.
    """

    before: str
    after: str
    metric: str = "success"
    after_arms: list[str] = field(default_factory=list)
    before_arms: list[str] = field(default_factory=list)
    line: Number = 0.0
    direction: Direction | None = None
    level: float = 0.95
    resamples: int = 10_000
    seed: int = 0
    requires: Requires = "beyond"
    otherwise: Otherwise = "inconclusive"

    KIND: ClassVar[str] = "cluster_bootstrap"
    NUMBERS: ClassVar[tuple[str, ...]] = ("line",)

    def __post_init__(self) -> None:
        check_resampling(self.level, self.resamples, self.seed)

    def measurements(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.before, self.after)))

    def arms(self, context: Context) -> list[tuple[str | None, str | None]]:
        """(before, after) arm of every training seed.

        Raises:
            Unjudged: the two sides name different numbers of arms.
        """
        after = _named(self.after_arms) or context.plan(self.after).arms
        ours = context.plan(self.before).arms
        before = _named(self.before_arms) or (ours * len(after) if len(ours) == 1 else after)
        if len(before) != len(after):
            told = f"{len(before)} of {self.before} and {len(after)} of {self.after}"
            raise Unjudged("INVALID", f"the arms are of different numbers of training seeds: {told}")
        return list(zip(before, after, strict=True))

    def _judge(self, context: Context) -> Outcome:
        differences = {
            after or BASELINE: pair(
                context.of(self.before, before), context.of(self.after, after), self.metric
            ).differences
            for before, after in self.arms(context)
        }
        read = cluster_bootstrap(differences, level=self.level, resamples=self.resamples, seed=self.seed)
        line, direction = context.number(self.line), context.toward(self.direction)
        status = settle_interval(read.low, read.high, written(line), direction, self.requires, self.otherwise)
        if self.requires == "beyond" and not any(d for ds in differences.values() for d in ds):
            status = settle(False, False, self.otherwise)
        seeds = len(read.means)
        told = ", ".join(f"{mean:+.4g}" for mean in read.means.values())
        return Outcome(
            status,
            f"mean difference of {self.metric} {read.mean:+.4g} over {seeds} training seeds ({told}), line {line:g}",
            n=read.episodes,
            estimate=read.mean,
            interval=(float(read.low), float(read.high)),
            level=self.level,
            details={
                "training_seeds": seeds,
                "means": read.means,
                "line": line,
                "smallest_p_over_training_seeds": smallest_p_over_clusters(seeds),
                **resampling(self.seed, self.resamples),
            },
        )

    def _impossible(self, context: Context) -> Iterator[str]:
        if self.before != self.after:
            yield from faults_of_pairs(context, self.before, self.after)
        elif not self.before_arms:
            yield f"{self.before} is paired with itself; name before_arms and after_arms"
            return
        try:
            arms = self.arms(context)
        except Unjudged as unjudged:
            yield unjudged.outcome().sentence
            return
        for measurement, asked in zip((self.before, self.after), zip(*arms, strict=True), strict=True):
            if odd := [arm for arm in asked if arm not in context.planned[measurement].arms]:
                yield f"{measurement} is not made for the arm {odd[0] or BASELINE}"
        if len({after for _, after in arms}) < len(arms):
            yield "an arm is named twice"
        if len(arms) < 2:
            yield f"{len(arms)} training seed is none to resample over; 2 are the fewest"


def _named(arms: Sequence[str]) -> tuple[str | None, ...]:
    """Arms as evidence names them."""
    return tuple(None if arm == BASELINE else arm for arm in arms)
