"""Evidence: what a read is computed from, as it is kept in `experiments/<ID>/evidence/`.

In: the JSON of one evidence file. Out: `Evidence` with counts, values by seed and series. Four kinds: episodes of an
evaluation, recorded counts, rows of a training run, recorded numbers. Digests, files and the ledger are not handled
here; which rule reads what is in `rules`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vla_rl.errors import IntegrityError
from vla_rl.prereg.outcome import Unjudged

Kind = Literal["episodes", "counts", "series", "numbers"]
PAYLOAD = {"episodes": "episodes", "counts": "counts", "series": "rows", "numbers": "values"}  # kind -> key of the file
BASELINE = "baseline"  # what people call the arm without a name
IDENTITY = ("policy_digest", "scene_hash", "protocol", "head")
SHARE = "_frac"  # a key of a series that ends so is a share of the row's `episodes`


@dataclass(frozen=True)
class Evidence:
    """What one measurement of one arm has given.

    Attributes:
        measurement: its id.
        arm: its arm; None is the baseline.
        kind: which of the four below is filled.
        source: JSON-able; where it comes from.
        policy_digest, scene_hash, protocol, head, temperature: what was measured; None where unknown.
        episodes: one mapping a seed: `seed`, and metrics as in `episodes.jsonl`.
        counts: (k, n) by name. `<metric>_won` and `<metric>_lost` of n pairs let paired rules work without episodes.
        rows: of a series, by ascending `step`.
        numbers: by name.
        excluded: seeds that a registered exclusion took out, with its id.
        faults: why reads of it are invalid.
    """

    measurement: str
    arm: str | None
    kind: Kind
    source: Mapping[str, Any] = field(default_factory=dict)
    policy_digest: str | None = None
    scene_hash: str | None = None
    protocol: str | None = None
    head: str | None = None
    temperature: float | None = None
    episodes: tuple[Mapping[str, Any], ...] = ()
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    excluded: Mapping[int, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As its file is called: ``measurement@arm``."""
        return self.measurement if self.arm is None else f"{self.measurement}@{self.arm}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the episodes that count, ascending."""
        return tuple(sorted(e["seed"] for e in self.episodes))

    @property
    def by_seed(self) -> dict[int, Mapping[str, Any]]:
        """Episodes by seed, ascending."""
        return {e["seed"]: e for e in sorted(self.episodes, key=lambda e: e["seed"])}

    def without(self, seeds: Collection[int]) -> Evidence:
        """The same without some of its episodes."""
        return replace(self, episodes=tuple(e for e in self.episodes if e["seed"] not in seeds))

    def values(self, metric: str, *, skip_null: bool = False) -> dict[int, float]:
        """A metric by seed.

        Args:
            skip_null: leave out seeds where the metric does not apply; they make the read invalid otherwise.

        Raises:
            Unjudged: no episodes, or one lacks the metric.
        """
        if self.kind != "episodes":
            raise Unjudged("MISSING", f"{self.name} holds {self.kind}, not the {metric} of every episode")
        found = {seed: self._of(episode, metric) for seed, episode in self.by_seed.items()}
        if not skip_null and (null := [seed for seed, value in found.items() if value is None]):
            raise Unjudged(
                "INVALID", f"{metric} does not apply to {len(null)} episodes of {self.name}, first {null[0]}"
            )
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def count(self, metric: str, *, last: int | None = None, skip_null: bool = False) -> tuple[int, int]:
        """(k, n): episodes of which `metric` is true.

        Args:
            last: of a series, only so many rows from its end; a count or, of a key in ``_frac``, a share of `episodes`.
            skip_null: leave out episodes, or the episodes of rows, where the metric does not apply.

        Raises:
            Unjudged: nothing like that is recorded, or there are no rows of which to take the last.
        """
        if self.kind == "series":
            return self._count_rows(metric, last, skip_null)
        if last is not None:
            raise Unjudged("INVALID", f"{self.name} holds {self.kind}, no rows of which to take the last {last}")
        if self.kind == "counts":
            if metric not in self.counts:
                raise Unjudged("MISSING", f"{self.name} records no count of {metric}")
            return self.counts[metric]
        flags = self.values(metric, skip_null=skip_null)
        if odd := [seed for seed, value in flags.items() if value not in (0.0, 1.0)]:
            raise Unjudged(
                "INVALID", f"{metric} is no yes-or-no metric: seed {odd[0]} of {self.name} has {flags[odd[0]]}"
            )
        return int(sum(flags.values())), len(flags)

    def number(self, name: str) -> float:
        """A recorded number.

        Raises:
            Unjudged: it is not recorded.
        """
        if name not in self.numbers:
            raise Unjudged("MISSING", f"{self.name} records no number {name}")
        return self.numbers[name]

    def series(self, key: str) -> list[tuple[int, float | None]]:
        """(step, value) by ascending step, value None where it does not apply.

        Raises:
            Unjudged: no series, or a row lacks the key.
        """
        if self.kind != "series":
            raise Unjudged("MISSING", f"{self.name} holds {self.kind}, no series of {key}")
        return [(row["step"], self._of(row, key)) for row in self.rows]

    def _count_rows(self, metric: str, last: int | None, skip_null: bool) -> tuple[int, int]:
        counted, episodes = self.series(metric), self.series("episodes")
        if last is not None and last > len(counted):
            raise Unjudged("MISSING", f"{self.name} has {len(counted)} rows, not {last}")
        k = n = 0
        for (step, value), (_, of) in list(zip(counted, episodes, strict=True))[-(last or 0) :]:
            if value is None and skip_null:
                continue
            if value is None or of is None:
                raise Unjudged("MISSING", f"step {step} of {self.name} has no {metric} of its episodes")
            own = value * of if metric.endswith(SHARE) else value
            if abs(own - round(own)) > 1e-6 or not 0 <= round(own) <= of:
                raise Unjudged("INVALID", f"step {step} of {self.name}: {metric} {value} of {of} episodes is no count")
            k, n = k + round(own), n + int(of)
        return k, n

    def _of(self, row: Mapping[str, Any], key: str) -> float | None:
        if key not in row:
            raise Unjudged("MISSING", f"{self.name} does not hold {key}")
        value = row[key]
        if value is not None and not isinstance(value, (bool, int, float)):
            raise Unjudged("INVALID", f"{key} of {self.name} is no number: {value!r}")
        return value

    def record(self) -> dict[str, Any]:
        """The JSON of its file, without what exclusions did to it; `parse` is the inverse."""
        payload: Any = {
            "episodes": [dict(e) for e in self.episodes],
            "counts": {name: list(pair) for name, pair in self.counts.items()},
            "series": [dict(row) for row in self.rows],
            "numbers": dict(self.numbers),
        }[self.kind]
        identity = {key: getattr(self, key) for key in (*IDENTITY, "temperature")}
        head = {"measurement": self.measurement, "arm": self.arm, "kind": self.kind, "source": dict(self.source)}
        return {**head, **identity, PAYLOAD[self.kind]: payload}


def parse(record: Mapping[str, Any], where: str = "evidence") -> Evidence:
    """Check the JSON of an evidence file.

    Args:
        where: its path, for messages.

    Raises:
        IntegrityError: naming the field that is wrong.
    """

    def refuse(what: str, field: str) -> IntegrityError:
        return IntegrityError(what, where=f"{where}: {field}")

    kind = str(record.get("kind"))
    if kind not in PAYLOAD:
        raise refuse(f"{kind} is no kind of evidence", "kind")
    known = {"measurement", "arm", "kind", "source", *IDENTITY, "temperature", PAYLOAD[kind]}
    if odd := sorted(known ^ set(record)):
        raise refuse(f"the key {odd[0]} {'lacks' if odd[0] in known else f'is none of {kind} evidence'}", odd[0])
    for key in ("arm", *IDENTITY):
        if not isinstance(record[key], str | None):
            raise refuse(f"{record[key]!r} is neither text nor null", key)
    if not isinstance(record["measurement"], str) or not isinstance(record["source"], Mapping):
        raise refuse("measurement is text and source a mapping", "measurement, source")
    if record["temperature"] is not None and not _number(record["temperature"]):
        raise refuse(f"{record['temperature']!r} is no number", "temperature")
    payload = _PARSERS[kind](record[PAYLOAD[kind]], refuse)
    head = {key: record[key] for key in ("measurement", "arm", "kind", "source", *IDENTITY, "temperature")}
    return Evidence(**head, **{"numbers" if kind == "numbers" else PAYLOAD[kind]: payload})


def _rows(payload: Any, refuse: Any, key: str, name: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(payload, Sequence) or isinstance(payload, str) or not payload:
        raise refuse("not a list with entries", name)
    for i, row in enumerate(payload):
        if not isinstance(row, Mapping) or type(row.get(key)) is not int:
            raise refuse(f"entry {i} has no whole number {key}", f"{name}[{i}]")
        for field_, value in row.items():
            if isinstance(value, (int, float)) and not _finite(value):
                raise refuse(f"{value} is no number; what does not apply is null", f"{name}[{i}].{field_}")
    keys = [row[key] for row in payload]
    if repeated := next((k for k in keys if keys.count(k) > 1), None) if len(set(keys)) < len(keys) else None:
        raise refuse(f"{key} {repeated} appears twice", name)
    return tuple(sorted(payload, key=lambda row: row[key]))


def _counts(payload: Any, refuse: Any) -> dict[str, tuple[int, int]]:
    if not isinstance(payload, Mapping) or not payload:
        raise refuse("not a mapping with entries", "counts")
    for name, pair in payload.items():
        whole = isinstance(pair, Sequence) and len(pair) == 2 and all(type(x) is int and _finite(x) for x in pair)
        if not whole or not 0 <= pair[0] <= pair[1]:
            raise refuse(f"{pair!r} is no count [k, n]", f"counts.{name}")
    return {name: (pair[0], pair[1]) for name, pair in payload.items()}


def _numbers(payload: Any, refuse: Any) -> dict[str, float]:
    if not isinstance(payload, Mapping) or not payload:
        raise refuse("not a mapping with entries", "values")
    for name, value in payload.items():
        if not _number(value):
            raise refuse(f"{value!r} is no number", f"values.{name}")
    return dict(payload)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)


def _finite(value: float) -> bool:
    """Whether it can be computed with: a whole number of hundreds of digits is none that was measured."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


_PARSERS = {
    "episodes": lambda payload, refuse: _rows(payload, refuse, "seed", "episodes"),
    "series": lambda payload, refuse: _rows(payload, refuse, "step", "rows"),
    "counts": _counts,
    "numbers": _numbers,
}
