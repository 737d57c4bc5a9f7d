"""Two measurements of the same seeds, paired.

In: evidence of before and after. Out: values by seed on both sides, or won and lost pairs. A seed that an exclusion
took out of one side leaves both. Measurements of different scenes are never paired.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.outcome import Unjudged
from vla_rl.prereg.rules.base import Context
from vla_rl.stats.mcnemar import Signs, signs

SAME = ("protocol", "scene_hash")


def common(before: Evidence, after: Evidence) -> tuple[Evidence, Evidence]:
    """Both without the seeds that an exclusion took out of either."""
    gone = before.excluded.keys() | after.excluded.keys()
    return before.without(gone), after.without(gone)


@dataclass(frozen=True)
class Paired:
    """Values of a metric on both sides, over the same seeds; at least one."""

    before: dict[int, float]
    after: dict[int, float]

    @property
    def binary(self) -> bool:
        """Whether the metric is a yes or no."""
        return {*self.before.values(), *self.after.values()} <= {0.0, 1.0}

    @property
    def signs(self) -> Signs:
        return signs(self.before, self.after)

    @property
    def differences(self) -> list[float]:
        """After - before by ascending seed."""
        return [self.after[seed] - self.before[seed] for seed in sorted(self.before)]


def pair(before: Evidence, after: Evidence, metric: str) -> Paired:
    """Pair two evaluations by seed.

    Raises:
        Unjudged: other scenes, other seeds, or no pair left.
    """
    for key in SAME:
        ours, theirs = getattr(before, key), getattr(after, key)
        if ours is not None and theirs is not None and ours != theirs:
            raise Unjudged("INVALID", f"{before.name} and {after.name} differ in their {key.replace('_', ' ')}")
    left, right = (side.values(metric) for side in common(before, after))
    if odd := sorted(left.keys() ^ right.keys()):
        raise Unjudged("INVALID", f"{before.name} and {after.name} do not hold the same seeds; first {odd[0]}")
    if not left:
        raise Unjudged("MISSING", f"no pair of {before.name} and {after.name} is left")
    return Paired(left, right)


def counted_signs(context: Context, before: str, after: str, metric: str) -> Signs | None:
    """Won and lost pairs that were recorded as counts `<metric>_won` and `<metric>_lost`; None if none were."""
    found = context.one(after)
    if found.kind != "counts" or f"{metric}_won" not in found.counts:
        return None
    (won, n), (lost, of) = context.count(after, f"{metric}_won"), context.count(after, f"{metric}_lost")
    if n != of or won + lost > n:
        raise Unjudged("INVALID", f"{won} won and {lost} lost of {n} and {of} pairs of {found.name} is no count")
    return Signs(won, lost, n - won - lost)


def planned_pairs(context: Context, before: str, after: str) -> int | None:
    """Registered number of pairs; None where it is not known beforehand."""
    sides = [context.planned[side].seeds for side in (before, after)]
    if all(sides):
        return len(set(sides[0]) & set(sides[1]))
    return len(sides[0] or sides[1]) or None


def faults_of_pairs(context: Context, before: str, after: str) -> list[str]:
    """Why the two measurements cannot be paired."""
    if before == after:
        return [f"{before} is paired with itself"]
    faults = [f"{side} is a series, not one value a seed" for side in (before, after) if _is_series(context, side)]
    left, right = (context.planned[side].seeds for side in (before, after))
    if left and right and set(left) != set(right):
        odd = min(set(left) ^ set(right))
        faults.append(f"{before} and {after} are not registered on the same seeds; first {odd}")
    return faults


def _is_series(context: Context, measurement: str) -> bool:
    return context.planned[measurement].kind == "series"
