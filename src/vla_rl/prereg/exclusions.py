"""Registered exclusions: which episodes do not count, decided before any outcome was known.

In: evidence and the exclusions of a registration. Out: the evidence without the episodes that one of them names. A
paired rule leaves such a seed out on both sides. Where more are excluded than was registered, the reads are invalid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from vla_rl.errors import ConfigError
from vla_rl.prereg.evidence import Evidence
from vla_rl.stats.exact import written

Comparator = Literal["above", "at_least", "equals", "at_most", "below"]


def holds(value: float | Fraction, comparator: Comparator, line: float | Fraction) -> bool:
    """Whether a number lies on the named side of a line, both as they were written."""
    a, b = written(value), written(line)
    return {"above": a > b, "at_least": a >= b, "equals": a == b, "at_most": a <= b, "below": a < b}[comparator]


@dataclass(frozen=True)
class Exclusion:
    """Episodes of a measurement whose `field` lies on the named side of `value` do not count.

    Attributes:
        id: its name.
        measurement: whose episodes.
        field: a metric of the episode, e.g. ``"reset_strikes"``; null is never excluded.
        comparator: side of the line; only ``"equals"`` for text and yes-or-no metrics.
        value: the line.
        max_share: largest share of the episodes that may be excluded; above it, reads of the measurement are invalid.
    """

    id: str
    measurement: str
    field: str
    comparator: Comparator
    value: float | int | bool | str
    max_share: float

    def __post_init__(self) -> None:
        if not 0 <= self.max_share <= 1:
            raise ConfigError(f"{self.max_share} is no share", where="max_share")
        if isinstance(self.value, (bool, str)) and self.comparator != "equals":
            raise ConfigError(f"{self.value!r} has no {self.comparator}", where="comparator", remedy="equals")

    def names(self, value: Any) -> bool:
        """Whether an episode with this value is excluded."""
        if isinstance(self.value, (bool, str)) or isinstance(value, (bool, str)) or value is None:
            return type(value) is type(self.value) and value == self.value
        return holds(value, self.comparator, self.value)


def exclude(evidence: Evidence, exclusions: Sequence[Exclusion]) -> Evidence:
    """The evidence with the named episodes taken out and noted; with `faults` where an exclusion cannot be applied or
    takes out more than its share."""
    own = [exclusion for exclusion in exclusions if exclusion.measurement == evidence.measurement]
    faults, excluded = list(evidence.faults), dict(evidence.excluded)
    for exclusion in own:
        if evidence.kind != "episodes" or any(exclusion.field not in episode for episode in evidence.episodes):
            faults.append(f"exclusion {exclusion.id} needs the {exclusion.field} of every episode of {evidence.name}")
            continue
        hit = [seed for seed, episode in evidence.by_seed.items() if exclusion.names(episode[exclusion.field])]
        if len(hit) > written(exclusion.max_share) * len(evidence.episodes):
            told = (
                f"exclusion {exclusion.id} takes out {len(hit)} of {len(evidence.episodes)} episodes of {evidence.name}"
            )
            faults.append(f"{told}, more than the registered share {exclusion.max_share}")
        excluded.update({seed: exclusion.id for seed in hit if seed not in excluded})
    return replace(evidence.without(excluded), excluded=excluded, faults=tuple(faults))
