"""What all rules share: the context that they are judged in, how parameters resolve, how a pair is made.

In: what is registered, and the evidence so far. Out: `Context`, and the base class `Rule`. A rule kind is a frozen
dataclass of typed parameters; a registration holds no expressions and no code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.outcome import Outcome, Unjudged

Number = float | int | str  # a text is the name of a registered constant
Direction = Literal["increase", "decrease"]


@dataclass(frozen=True)
class Planned:
    """What is registered of one measurement.

    Attributes:
        kind: evaluation (episodes), series (rows of a run) or recorded (counts or numbers).
        seeds: environment seeds, one episode each; empty where unknown.
        steps: rows of a series; None where unknown.
        episodes: of every row of a series; None where unknown.
        arms: arms that it is made for; None is the baseline.
    """

    kind: Literal["evaluation", "series", "recorded"]
    seeds: tuple[int, ...] = ()
    steps: int | None = None
    episodes: int | None = None
    arms: tuple[str | None, ...] = (None,)

    @property
    def n(self) -> int | None:
        """Registered number of episodes, if seeds are registered."""
        return len(self.seeds) or None


@dataclass(frozen=True)
class Context:
    """Everything that a rule may look at. Evidence and outcomes are empty when a registration is checked.

    Attributes:
        planned: measurements by id.
        constants: named numbers; None is deferred, that is not set yet.
        direction: of the claim; None: it has none, and every rule with a direction names its own.
        smallest_effect: of the claim, in the unit of its primary reads.
        effect_of: metrics of the primary reads, which are what `smallest_effect` is about.
        evidence: by (measurement, arm), with exclusions applied.
        rules: every read's rule by read id, for rules about reads.
        outcomes: of other reads, by id.
        arm: which arm is judged, for measurements made for several.
    """

    planned: Mapping[str, Planned]
    constants: Mapping[str, float | None] = field(default_factory=dict)
    direction: Direction | None = "increase"
    smallest_effect: float | None = None
    effect_of: frozenset[str] = frozenset()
    evidence: Mapping[tuple[str, str | None], Evidence] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    arm: str | None = None

    def number(self, parameter: Number) -> float:
        """A parameter, or the constant that it names.

        Raises:
            Unjudged: the constant is not registered, or not set yet.
        """
        if not isinstance(parameter, str):
            return parameter
        value = self.constants.get(parameter)
        if value is None:
            raise Unjudged("MISSING", f"the constant {parameter} is not set yet")
        return value

    def toward(self, own: Direction | None) -> Direction:
        """The direction of a rule: its own, else the claim's.

        Raises:
            Unjudged: neither has one.
        """
        if (direction := own or self.direction) is None:
            raise Unjudged("INVALID", "neither the rule nor the claim names a direction")
        return direction

    def effect(self, own: Number | None, metric: str) -> float | None:
        """Smallest effect of interest of a rule on a metric, as a size: its own, else the claim's if that is about this
        metric; None without either."""
        if own is not None:
            return abs(self.number(own))
        found = self.smallest_effect
        return abs(found) if found is not None and metric in self.effect_of else None

    def planned_trials(self, measurement: str, last: int | None = None) -> int | None:
        """Registered number of episodes that a count runs over; None where it is not known beforehand."""
        planned = self.planned[measurement]
        if planned.kind != "series":
            return planned.n
        rows = planned.steps if last is None else last
        return rows * planned.episodes if rows and planned.episodes else None

    def plan(self, measurement: str) -> Planned:
        """What is registered of a measurement.

        Raises:
            Unjudged: nothing.
        """
        if measurement not in self.planned:
            raise Unjudged("MISSING", f"the measurement {measurement} is not registered")
        return self.planned[measurement]

    def one(self, measurement: str) -> Evidence:
        """Evidence of a measurement: of the arm that is judged, or of its only arm.

        Raises:
            Unjudged: it is not there, incomplete, or invalid.
        """
        arms = self.plan(measurement).arms
        if self.arm not in arms and len(arms) != 1:
            raise Unjudged("MISSING", f"{measurement} is made for {len(arms)} arms, and none of them is judged here")
        return self.of(measurement, self.arm if self.arm in arms else arms[0])

    def of(self, measurement: str, arm: str | None) -> Evidence:
        """Evidence of a measurement and an arm; raises as `one` does."""
        planned, name = self.plan(measurement), measurement if arm is None else f"{measurement}@{arm}"
        found = self.evidence.get((measurement, arm))
        if found is None:
            raise Unjudged("MISSING", f"{name} is not measured yet")
        if found.faults:
            raise Unjudged("INVALID", "; ".join(found.faults))
        if found.kind == "episodes" and planned.seeds:
            seeds = {*found.seeds, *found.excluded}
            if extra := sorted(seeds - set(planned.seeds)):
                raise Unjudged("INVALID", f"{name} holds seed {extra[0]}, which is not registered")
            if absent := sorted(set(planned.seeds) - seeds):
                have = f"{len(seeds)} of {len(planned.seeds)}"
                raise Unjudged("MISSING", f"{name} holds {have} registered seeds; seed {absent[0]} lacks")
            if not found.episodes:
                raise Unjudged("INVALID", f"no episode of {name} is left after exclusions")
        if found.kind == "series" and planned.steps is not None:
            if len(found.rows) < planned.steps:
                raise Unjudged("MISSING", f"{name} has {len(found.rows)} of {planned.steps} registered rows")
            if odd := [row["step"] for row in found.rows if not 1 <= row["step"] <= planned.steps]:
                raise Unjudged("INVALID", f"{name} has a row of step {odd[0]}, and {planned.steps} are registered")
        return found

    def count(
        self, measurement: str, metric: str, last: int | None = None, *, skip_null: bool = False
    ) -> tuple[int, int]:
        """(k, n) of a measurement (`Evidence.count`); recorded counts and rows must have the registered n.

        Raises:
            Unjudged: as `one`, or no such count.
        """
        found, planned = self.one(measurement), self.planned[measurement]
        k, n = found.count(metric, last=last, skip_null=skip_null)
        if n == 0:
            raise Unjudged("MISSING", f"{found.name} counts {metric} over nothing")
        if found.kind != "episodes" and planned.n is not None and n != planned.n:
            raise Unjudged("INVALID", f"{found.name} counts {metric} over {n} episodes, not the registered {planned.n}")
        return k, n


def reached(rules: Mapping[str, Rule], *names: str) -> list[str]:
    """Reads and gates by name, and the reads that they rest on, also through others; each once."""
    todo, seen = list(names), []
    while todo:
        name = todo.pop(0)
        if name in rules and name not in seen:
            seen.append(name)
            todo += rules[name].reads()
    return seen


def measured_for(rules: Mapping[str, Rule], *names: str) -> list[str]:
    """Measurements that reads and gates rest on, also through other reads; each once."""
    return list(dict.fromkeys(m for name in reached(rules, *names) for m in rules[name].measurements()))


class Rule(ABC):
    """A rule kind. Subclasses are frozen dataclasses.

    Class attributes:
        KIND: its name in a registration.
        RECORD_ONLY: it decides nothing; PASS means that the numbers are recorded.
        NUMBERS: names of its parameters that may name a constant.
    """

    KIND: ClassVar[str]
    RECORD_ONLY: ClassVar[bool] = False
    NUMBERS: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def measurements(self) -> tuple[str, ...]:
        """Ids of the measurements that it needs."""

    def reads(self) -> tuple[str, ...]:
        """Ids of the reads whose outcomes it needs."""
        return ()

    def constants(self) -> tuple[str, ...]:
        """Names of the constants that it needs."""
        return tuple(value for name in self.NUMBERS if isinstance(value := getattr(self, name), str))

    def directed(self) -> bool:
        """Whether it takes the claim's direction for its own."""
        return getattr(self, "direction", "") is None

    def measured_by_the_claim(self) -> bool:
        """Whether it takes the claim's smallest effect for its own."""
        return getattr(self, "effect", 0.0) is None and getattr(self, "requires", "beyond") == "beyond"

    def judge(self, context: Context) -> Outcome:
        """Judge by the evidence; what cannot be judged is an outcome too."""
        try:
            return self._judge(context)
        except Unjudged as unjudged:
            return unjudged.outcome()

    def impossible(self, context: Context) -> list[str]:
        """Why this rule can never fire, or never do anything else, in what is registered; empty if it is sound.

        What depends on a deferred constant is not checked before it is set.
        """
        wrong = [f"the measurement {m} is not registered" for m in self.measurements() if m not in context.planned]
        wrong += [f"the read {r} is not registered" for r in self.reads() if r not in context.rules]
        wrong += [f"the constant {c} is not registered" for c in self.constants() if c not in context.constants]
        if context.direction is None and self.directed():
            wrong.append("the claim has no direction, so this rule has to name its own")
        if not wrong:
            try:
                wrong.extend(self._impossible(context))
            except Unjudged:
                pass
        return wrong

    @abstractmethod
    def _judge(self, context: Context) -> Outcome: ...

    def _impossible(self, context: Context) -> Iterator[str]:
        yield from ()
