"""Rules about other reads: all of them, or any of them.

In: outcomes of reads by id. Out: `Outcome`. Reads that are only recorded decide nothing and are refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from vla_rl.errors import ConfigError
from vla_rl.prereg.outcome import Outcome, Status
from vla_rl.prereg.rules.base import Context, Rule, reached


@dataclass(frozen=True)
class AllOf(Rule):
    """Every one of several reads.

    PASS if all PASS. Else the first that occurs of INVALID, FAIL, MISSING, INCONCLUSIVE: a failed part decides even
    while another is missing.

    Attributes:
        of: ids of reads.
    """

    of: list[str]

    KIND: ClassVar[str] = "all_of"
    ORDER: ClassVar[tuple[Status, ...]] = ("INVALID", "FAIL", "MISSING", "INCONCLUSIVE", "PASS")

    def __post_init__(self) -> None:
        if not self.of or len(set(self.of)) < len(self.of):
            raise ConfigError("at least one read, each once", where="of")

    def measurements(self) -> tuple[str, ...]:
        return ()

    def reads(self) -> tuple[str, ...]:
        return tuple(self.of)

    def _judge(self, context: Context) -> Outcome:
        parts = {read: context.outcomes.get(read) or Outcome("MISSING", f"{read} is not read yet") for read in self.of}
        found = {part.status for part in parts.values()}
        status: Status = next(status for status in self.ORDER if status in found)
        return Outcome(
            status,
            f"{self.KIND.replace('_', ' ')}: " + "; ".join(f"{read} {part.line()}" for read, part in parts.items()),
            details={"of": {read: part.status for read, part in parts.items()}},
        )

    def _impossible(self, context: Context) -> Iterator[str]:
        for read in self.of:
            if context.rules[read].RECORD_ONLY:
                yield f"the read {read} is only recorded and decides nothing"
        if any(context.rules[read] is self for read in reached(context.rules, *self.of)):
            yield f"the reads {', '.join(self.of)} come back to this one: it can never be judged"


@dataclass(frozen=True)
class AnyOf(AllOf):
    """At least one of several reads.

    PASS if one passes and none is INVALID. Else the first that occurs of INVALID, MISSING, INCONCLUSIVE, FAIL.

    Attributes:
        of: ids of reads.
    """

    KIND: ClassVar[str] = "any_of"
    ORDER: ClassVar[tuple[Status, ...]] = ("INVALID", "PASS", "MISSING", "INCONCLUSIVE", "FAIL")
