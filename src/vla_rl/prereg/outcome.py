"""What a rule found: status, counts, interval, power, in one record that can be stored and computed again.

In: the fields. Out: `Outcome`, its JSON and its line. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from vla_rl.errors import IntegrityError

Status = Literal["PASS", "FAIL", "INCONCLUSIVE", "MISSING", "INVALID"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Outcome:
    """The result of one read, gate or boundary.

    Attributes:
        status: PASS: the rule holds. FAIL: its opposite holds. INCONCLUSIVE: neither is shown. MISSING: no evidence.
            INVALID: evidence that may not be judged.
        sentence: counts, statistic and rule in words.
        label: name of a band or direction, e.g. ``"ABORT"``, ``"IMPROVED"``, ``"RECORDED"``.
        n: episodes, pairs or rows that the estimate rests on.
        estimate: in the unit of the rule.
        interval: of the estimate.
        level: confidence level of the interval.
        p: p-value, where the rule is a test or has one.
        effect: smallest effect of interest, which `power` is for.
        power: probability of PASS if that effect is there; None without an effect, or where it is not known.
        details: JSON-able: counts, seeds of resampling, versions of libraries.
    """

    status: Status
    sentence: str
    label: str | None = None
    n: int | None = None
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    level: float | None = None
    p: float | None = None
    effect: float | None = None
    power: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """One line that always tells n, interval and power, also where there is none."""
        name = self.status if self.label in (None, self.status) else f"{self.status} ({self.label})"
        n = "no n" if self.n is None else f"n = {self.n}"
        if self.interval is None or self.level is None:
            interval = "no interval"
        else:
            interval = f"{100 * self.level:g} % interval {self.interval[0]:.4g} to {self.interval[1]:.4g}"
        power = "no power" if self.power is None else f"power {self.power:.3f} to see {self.effect:+g}"
        return f"{name}: {self.sentence}; {n}; {interval}; {power}"

    def record(self) -> dict[str, Any]:
        """JSON-able; `from_record` is the inverse."""
        return {**vars(self), "interval": list(self.interval) if self.interval else None, "details": dict(self.details)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Outcome:
        """Read a record back.

        Raises:
            IntegrityError: a field lacks or is not one of an outcome's, or an unknown status.
        """
        if not isinstance(record, Mapping):
            raise IntegrityError(f"{record!r} is no outcome", where="outcome")
        if odd := sorted(set(record) ^ set(cls.__dataclass_fields__)):
            raise IntegrityError(f"this is no outcome: {', '.join(odd)}", where=odd[0])
        for key, value in record.items():
            if not _FIELDS[key](value):
                raise IntegrityError(f"this is no outcome: {key} is {value!r}", where=key)
        interval = record["interval"]
        return cls(**{**record, "interval": None if interval is None else (interval[0], interval[1])})


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "status": lambda value: _text(value) and value in STATUSES,
    "sentence": _text,
    "label": _or_none(_text),
    "n": _or_none(lambda value: type(value) is int),
    **dict.fromkeys(("estimate", "level", "p", "effect", "power"), _or_none(_number)),
    "interval": _or_none(
        lambda value: isinstance(value, list | tuple) and len(value) == 2 and all(map(_number, value))
    ),
    "details": lambda value: isinstance(value, Mapping),
}


class Unjudged(Exception):
    """Why a rule cannot be judged; it becomes an outcome, never a traceback.

    Args:
        status: ``"MISSING"``: evidence is not there (yet). ``"INVALID"``: what is there may not be judged.
        why: one sentence.
    """

    def __init__(self, status: Status, why: str) -> None:
        self.status: Status = status
        self.why = why
        super().__init__(why)

    def outcome(self) -> Outcome:
        return Outcome(self.status, self.why)
