"""Where a registration stands: a pure fold over its ledger.

In: ledger entries. Out: one `State`. Which event may follow in which state is one table (`TRANSITIONS`); an event that
it does not have is refused before it is written, and a ledger that holds one is broken. The fold reads no file and no
clock; `Attempt.alive` alone asks the operating system. Left out: whether an action is wise (`launchgates`, `budget`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vla_rl.errors import IntegrityError, UsageError
from vla_rl.prereg.ledger import Entry
from vla_rl.prereg.process import Process

DRAFT, REGISTERED, ACTIVE, HALTED = "DRAFT", "REGISTERED", "ACTIVE", "HALTED"
COMPLETE, CLOSED, WITHDRAWN, SUPERSEDED = "COMPLETE", "CLOSED", "WITHDRAWN", "SUPERSEDED"
STATES = (DRAFT, REGISTERED, ACTIVE, HALTED, COMPLETE, CLOSED, WITHDRAWN, SUPERSEDED)
ENDS = (CLOSED, WITHDRAWN, SUPERSEDED)
FINISHED, STOPPED = "finished", "stopped"  # how an attempt ended that came to its end, or that a wire or gate ended

EVENTS = {
    "registered": "the registration was frozen",
    "amended": "an amendment came into force",
    "objected": "somebody objects",
    "answered": "an objection was answered",
    "checked": "an item of the activation checklist is done",
    "activated": "the checklist is done and the objection window over",
    "gate_passed": "a registered gate was passed",
    "gate_refused": "a registered gate was not passed, or a launch was refused",
    "overridden": "a registered override of a gate's BAND",
    "launched": "an attempt began",
    "attempt_ended": "an attempt ended, with its cost",
    "attempt_recorded": "an attempt that other software made is on record, with its cost",
    "tripwire": "a wire or gate inside the run ended it",
    "budget": "the budget ended a run",
    "look": "outcomes were opened",
    "read": "a read was computed",
    "rung": "the boundary of a rung was judged",
    "published": "a rung's checkpoint was copied with a receipt",
    "verdict": "the claim was judged",
    "erratum": "something was found to be wrong afterwards",
    "reported": "REPORT.md was written",
    "closed": "the end",
    "withdrawn": "the registration was taken back, with its reason",
    "superseded": "another registration takes its place",
}
_ASIDE = {"withdrawn": WITHDRAWN, "superseded": SUPERSEDED}
_NOTED: dict[str, str | None] = {"erratum": None, "reported": None}  # None: the state stays
_TALK: dict[str, str | None] = {"objected": None, "answered": None, "gate_refused": None, **_NOTED}
_RESULTS: dict[str, str | None] = {
    name: None for name in ("attempt_ended", "look", "read", "rung", "published", "verdict")
}  # fmt: skip
_WORK: dict[str, str | None] = {"gate_passed": None, "overridden": None, **_RESULTS}
# Not in the table, because it depends on more than the event: a read that completes the primary ones leads to COMPLETE,
# from ACTIVE and HALTED; a recorded attempt that was stopped leads to HALTED.
TRANSITIONS: dict[str, dict[str, str | None]] = {
    DRAFT: {"registered": REGISTERED},
    REGISTERED: {**_TALK, **_ASIDE, "amended": None, "checked": None, "activated": ACTIVE},
    ACTIVE: {
        **_TALK, **_WORK, **_ASIDE, "amended": None, "launched": None, "attempt_recorded": None, "tripwire": HALTED,
        "budget": HALTED, "closed": CLOSED,
    },
    HALTED: {**_TALK, **_WORK, **_ASIDE, "amended": ACTIVE, "tripwire": None, "budget": None, "closed": CLOSED},
    COMPLETE: {"gate_refused": None, **_NOTED, **_RESULTS, "closed": CLOSED},
    CLOSED: _NOTED,
    WITHDRAWN: _NOTED,
    SUPERSEDED: _NOTED,
}  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """One launch of a rung and arm.

    Attributes:
        number: from 1, over the whole registration.
        data: of its `launched` event, or of `attempt_recorded`.
        end: of its `attempt_ended` event, or of `attempt_recorded`; None while it has none.
        outdated: an amendment has since changed what this would have had to run.
        amended: an amendment has since been recorded that was more than clerical.
    """

    number: int
    utc: str
    data: Mapping[str, Any]
    end: Mapping[str, Any] | None = None
    outdated: bool = False
    amended: bool = False

    @property
    def rung(self) -> str:
        return self.data["rung"]

    @property
    def arm(self) -> str:
        return self.data["arm"]

    @property
    def elsewhere(self) -> str | None:
        """Where it is told of, if other software made it: nothing of it is here but what is handed in."""
        return self.data.get("source")

    @property
    def place(self) -> str:
        """Its run directory, or where it is told of."""
        return self.elsewhere or self.data["run"]

    @property
    def exploratory(self) -> bool:
        return self.data["exploratory"]

    @property
    def alive(self) -> bool:
        """Whether its process may still run: on another machine that cannot be told."""
        return self.end is None and Process.of_body(self.data["process"]).alive() is not False

    @property
    def hours(self) -> float | None:
        """What it took; of one that other software made, whichever hours are told. None while it runs."""
        end = self.end or {}
        return end.get("gpu_h") if end.get("wall_h") is None else end["wall_h"]

    @property
    def finished(self) -> bool:
        """Whether the run came to its registered end."""
        return self.end is not None and self.end["how"] == FINISHED


@dataclass(frozen=True)
class State:
    """Where a registration stands.

    Attributes:
        name: one of `STATES`.
        since: when the registration, or its last amendment that was more than clerical, was recorded.
        amendments: how many are in force.
        primaries: reads that complete it.
        attempts: in order.
        reads: by id, the data of the event that recorded them.
        opened: names of the evidence that was opened.
        handed_in: those of it that somebody handed in, so that nothing here played it.
        outdated: of the opened evidence, the runs (rung/arm) that amendments have made others of since.
        gates: by id, the data of the last judgement.
        overridden: gates whose BAND was overridden since the last amendment: the next launch may rest on it.
        once_overridden: gates whose BAND was ever overridden: what was launched then was launched rightly.
        rungs: by id, the decision at its boundary.
        published: by rung, data of the event.
        checked: items of the checklist that are done, with their evidence.
        objections: by number, the open ones.
        verdict: data of the last one.
        closing: data of the event that ended it.
        errata: their data.
    """

    name: str = DRAFT
    since: str = ""
    amendments: int = 0
    primaries: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    reads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    opened: tuple[str, ...] = ()
    handed_in: tuple[str, ...] = ()
    outdated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    overridden: tuple[str, ...] = ()
    once_overridden: tuple[str, ...] = ()
    rungs: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    checked: Mapping[str, Any] = field(default_factory=dict)
    objections: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    stops: tuple[Mapping[str, Any], ...] = ()
    verdict: Mapping[str, Any] | None = None
    closing: Mapping[str, Any] | None = None
    errata: tuple[Mapping[str, Any], ...] = ()
    other_cost: tuple[Mapping[str, Any], ...] = ()

    @property
    def running(self) -> tuple[Attempt, ...]:
        """Attempts without an end."""
        return tuple(attempt for attempt in self.attempts if attempt.end is None)

    def of(self, rung: str, arm: str) -> tuple[Attempt, ...]:
        """Registered attempts at a rung and arm, as it is registered now."""
        of_it = (a for a in self.attempts if (a.rung, a.arm) == (rung, arm))
        return tuple(a for a in of_it if not a.exploratory and not a.outdated)

    @property
    def seen(self) -> str:
        """What has been seen, by what is on record: none, training or outcomes."""
        return "outcomes" if self.opened or self.reads else "training" if self.attempts else "none"

    def completed(self, rung: str, arm: str) -> Attempt | None:
        """The attempt that came to its end."""
        return next((a for a in reversed(self.of(rung, arm)) if a.finished), None)


def fold(entries: Iterable[Entry], where: str = "ledger.jsonl") -> State:
    """The state after all entries.

    Raises:
        IntegrityError: an event that may not follow there.
    """
    state = State()
    for entry in entries:
        try:
            state = advance(state, entry)
        except UsageError as error:
            raise IntegrityError(
                f"line {entry.seq + 1}: {entry.event!r} cannot follow: {error.what}",
                where=f"{where}, line {entry.seq + 1}: event",
                remedy="restore the file from git",
            ) from None
    return state


def allowed(state: str, event: str) -> bool:
    """Whether `event` may follow in a state."""
    return event in TRANSITIONS[state]


def advance(state: State, entry: Entry) -> State:
    """The state after one more entry.

    Raises:
        UsageError: it may not follow.
    """
    if not allowed(state.name, entry.event):
        raise UsageError(
            f"{EVENTS.get(entry.event, entry.event)}: this cannot be in the state {state.name}",
            remedy=f"possible now: {', '.join(TRANSITIONS[state.name]) or 'nothing'}",
        )
    words = entry.event == "amended" and entry.data["kind"] == "clerical"  # a corrected word leads nowhere
    name = None if words else TRANSITIONS[state.name][entry.event]
    state = _record(replace(state, name=name or state.name), entry)
    if entry.event == "read" and state.name in (ACTIVE, HALTED) and _complete(state):
        state = replace(state, name=COMPLETE)
    if entry.event == "attempt_recorded" and entry.data["how"] == STOPPED and not entry.data["exploratory"]:
        stop = {"event": "tripwire", **{key: entry.data[key] for key in ("attempt", "wires", "why")}}
        state = replace(state, name=HALTED, stops=(*state.stops, stop))
    return state


def _once(again: bool, what: str) -> None:
    if again:
        raise UsageError(what, remedy="what is recorded is recorded once")


def _complete(state: State) -> bool:
    return bool(state.primaries) and all(read in state.reads for read in state.primaries)


def _record(state: State, entry: Entry) -> State:
    data = entry.data
    match entry.event:
        case "registered":
            return replace(state, primaries=tuple(data["primaries"]), since=entry.utc)
        case "amended":
            hit = data["outdated"]
            attempts = tuple(replace(a, outdated=a.outdated or f"{a.rung}/{a.arm}" in hit) for a in state.attempts)
            kept = {name: each for name, each in state.published.items() if each["run"] not in hit}
            old = {name: (*state.outdated.get(name, ()), *hit) for name in state.opened}
            state = replace(state, attempts=attempts, published=kept, outdated=old)
            state = replace(state, amendments=data["number"], primaries=tuple(data["primaries"]))
            if data["kind"] == "clerical":
                return state
            attempts = tuple(replace(attempt, amended=True) for attempt in state.attempts)
            return replace(state, attempts=attempts, since=entry.utc, overridden=())
        case "objected":
            return replace(state, objections={**state.objections, entry.seq: data})
        case "answered":
            return replace(state, objections={k: v for k, v in state.objections.items() if k != data["objection"]})
        case "checked":
            return replace(state, checked={**state.checked, data["item"]: data["evidence"]})
        case "gate_passed" | "gate_refused":
            _once(data.get("gate") in state.gates, f"the gate {data.get('gate')} is judged already")
            return replace(state, gates={**state.gates, data["gate"]: data}) if data.get("gate") else state
        case "overridden":
            gates = *state.overridden, data["gate"]
            return replace(state, overridden=gates, once_overridden=(*state.once_overridden, data["gate"]))
        case "launched":
            _once(data["attempt"] != len(state.attempts) + 1, f"attempt {data['attempt']} is not the next one")
            attempt = Attempt(data["attempt"], entry.utc, data)
            return replace(state, attempts=(*state.attempts, attempt))
        case "attempt_recorded":
            _once(data["attempt"] != len(state.attempts) + 1, f"attempt {data['attempt']} is not the next one")
            attempt = Attempt(data["attempt"], entry.utc, data, end=data)
            return replace(state, attempts=(*state.attempts, attempt))
        case "attempt_ended":
            _once(all(a.number != data["attempt"] for a in state.running), f"attempt {data['attempt']} is not running")
            ended = tuple(replace(a, end=data) if a.number == data["attempt"] else a for a in state.attempts)
            return replace(state, attempts=ended)
        case "tripwire" | "budget":
            return replace(state, stops=(*state.stops, {"event": entry.event, **data}))
        case "look":
            _once(data["evidence"] in state.opened, f"{data['evidence']} was opened already")
            opened = (*state.opened, data["evidence"])
            handed_in = (*state.handed_in, *([data["evidence"]] if data.get("handed_in") else []))
            cost = (*state.other_cost, data)
            return replace(state, opened=opened, handed_in=handed_in, other_cost=cost)
        case "read":
            _once(data["read"] in state.reads, f"{data['read']} is read already")
            return replace(state, reads={**state.reads, data["read"]: data})
        case "rung":
            _once(data["rung"] in state.rungs, f"the boundary of {data['rung']} is judged already")
            return replace(state, rungs={**state.rungs, data["rung"]: data["decision"]})
        case "published":
            return replace(state, published={**state.published, data["rung"]: data})
        case "verdict":
            return replace(state, verdict=data)
        case "erratum":
            return replace(state, errata=(*state.errata, data))
        case "closed" | "withdrawn" | "superseded":
            return replace(state, closing={"event": entry.event, **data})
    return state
