"""The state machine: its whole table, written down a second time, and nothing beside it."""

import dataclasses
from itertools import product

import pytest

from vla_rl.errors import IntegrityError, UsageError
from vla_rl.prereg.events import DATA, check
from vla_rl.prereg.ledger import Entry
from vla_rl.prereg.state import (
    ACTIVE,
    CLOSED,
    COMPLETE,
    DRAFT,
    ENDS,
    EVENTS,
    HALTED,
    REGISTERED,
    STATES,
    SUPERSEDED,
    TRANSITIONS,
    WITHDRAWN,
    State,
    advance,
    allowed,
    fold,
)

OUTCOME = {
    "status": "PASS", "sentence": "s", "label": None, "n": 6, "estimate": 1.0, "interval": [0.5, 1.5], "level": 0.95,
    "p": None, "effect": None, "power": None, "details": {},
}  # fmt: skip
PROCESS = {"node": "n", "boot": "b", "pid": 1, "started": 1}
# One example of what each event tells.
TOLD = {
    "registered": {"sha256": "0", "sections": {}, "primaries": ["p"], "objection_h": 0.0},
    "amended": {"number": 1, "kind": "scientific", "sha256": "0", "sections": {}, "primaries": ["p"], "effects": [],
                "outdated": []},
    "objected": {"by": "a", "text": "t"},
    "answered": {"by": "a", "text": "t", "objection": 1},
    "checked": {"item": "i", "evidence": "e", "by": "a"},
    "activated": {"by": "a"},
    "gate_passed": {"gate": "g", "decision": "PASS", "outcome": OUTCOME, "evidence": []},
    "gate_refused": {"gate": None, "refusals": []},
    "overridden": {"gate": "g", "reason": "r", "by": "a"},
    "launched": {"attempt": 1, "rung": "main", "arm": "baseline", "run": "r", "resume": False, "exploratory": False,
                 "set": {}, "process": PROCESS, "on_gpu": False},
    "attempt_ended": {"attempt": 1, "how": "finished", "why": "", "wall_h": 0.1, "gpu_h": 0.0, "files": {}, "step": 1,
                      "policy_digest": None, "base_digest": None},
    "attempt_recorded": {"attempt": 2, "rung": "main", "arm": "baseline", "exploratory": False, "how": "failed",
                         "why": "w", "source": "a report", "wires": [], "wall_h": 0.1, "gpu_h": None, "step": None},
    "tripwire": {"attempt": 1, "wires": ["collapse"], "why": "w"},
    "budget": {"attempt": 1, "wires": ["budget.wall_h"], "why": "w"},
    "look": {"measurement": "m", "arm": None, "evidence": "m", "sha256": "0", "fields": {}, "wall_h": 0, "gpu_h": 0},
    "read": {"read": "s", "outcome": OUTCOME, "evidence": [], "exploratory": False},
    "rung": {"rung": "R0", "decision": "PROCEED", "reads": ["s"]},
    "published": {"rung": "R0", "run": "R0/baseline", "directory": "d", "receipt": {}, "files": {}},
    "verdict": {"verdict": "SUPPORTED", "sentence": "s", "reasons": [], "adjusted": {}, "rests_on": {"p": "PASS"}},
    "erratum": {"text": "t", "disputes": False, "by": "a"},
    "reported": {"sha256": "0"},
    "closed": {"verdict": "SUPPORTED", "banked": [], "inherits": [], "by": "a"},
    "withdrawn": {"reason": "r"},
    "superseded": {"by": "E2", "reason": "r"},
}  # fmt: skip
NOTES = "erratum reported"
WORK = "gate_passed overridden attempt_ended look read rung published verdict"
# state: {where it leads: events}, from the description of the life of a registration.
TABLE = {
    DRAFT: {REGISTERED: "registered"},
    REGISTERED: {REGISTERED: f"objected answered gate_refused amended checked {NOTES}", ACTIVE: "activated",
                 WITHDRAWN: "withdrawn", SUPERSEDED: "superseded"},
    ACTIVE: {ACTIVE: f"objected answered gate_refused amended launched attempt_recorded {WORK} {NOTES}",
             HALTED: "tripwire budget",
             CLOSED: "closed", WITHDRAWN: "withdrawn", SUPERSEDED: "superseded"},
    HALTED: {HALTED: f"objected answered gate_refused tripwire budget {WORK} {NOTES}", ACTIVE: "amended",
             CLOSED: "closed", WITHDRAWN: "withdrawn", SUPERSEDED: "superseded"},
    COMPLETE: {COMPLETE: f"gate_refused attempt_ended look read rung published verdict {NOTES}", CLOSED: "closed"},
    CLOSED: {CLOSED: NOTES},
    WITHDRAWN: {WITHDRAWN: NOTES},
    SUPERSEDED: {SUPERSEDED: NOTES},
}  # fmt: skip


def entry(event, data=None, seq=0):
    return Entry(seq, "2026-01-01T00:00:00+00:00", event, "r", "c", TOLD[event] if data is None else data)


def state(name):
    """In a state, with an attempt that runs, so that events about it have something to be about."""
    running = advance(State(name=ACTIVE, primaries=("p",)), entry("launched"))
    return dataclasses.replace(running, name=name)


def test_the_table_is_exhausted():
    """Every state and every event: allowed or refused, and where it leads."""
    leads = {(s, e): to for s, row in TABLE.items() for to, events in row.items() for e in events.split()}
    assert set(TABLE) == set(STATES) == set(TRANSITIONS) and set(TOLD) == set(EVENTS) == set(DATA)
    for name, event in product(STATES, EVENTS):
        assert allowed(name, event) == ((name, event) in leads), (name, event)
        data = {**TOLD[event], "attempt": 2} if event == "launched" else TOLD[event]
        if (name, event) in leads:
            assert advance(state(name), entry(event, data)).name == leads[name, event], (name, event)
        else:
            with pytest.raises(UsageError, match=f"cannot be in the state {name}"):
                advance(state(name), entry(event, data))


def test_a_halted_registration_goes_on_by_an_amendment_and_by_nothing_else():
    assert [e for e in EVENTS if allowed(HALTED, e) and TRANSITIONS[HALTED][e] == ACTIVE] == ["amended"]
    assert not allowed(HALTED, "launched")


def test_a_recorded_attempt_halts_if_it_was_stopped_and_counts():
    stopped = {**TOLD["attempt_recorded"], "how": "stopped", "wires": ["clip"]}
    now = advance(state(ACTIVE), entry("attempt_recorded", stopped))
    assert now.name == HALTED and now.stops[-1]["why"] == "w" and now.attempts[-1].elsewhere == "a report"
    assert advance(state(ACTIVE), entry("attempt_recorded", {**stopped, "exploratory": True})).name == ACTIVE
    assert now.attempts[-1].hours == 0.1 and not now.attempts[-1].finished


def test_a_complete_registration_takes_no_amendment_and_no_launch():
    assert not any(allowed(COMPLETE, event) for event in ("amended", "launched", "activated", "withdrawn"))


def test_what_has_ended_stays_so():
    for end in ENDS:
        assert {TRANSITIONS[end][event] for event in TRANSITIONS[end]} == {None}


def test_the_last_primary_read_completes_it_from_wherever_reads_are_made():
    read = {**TOLD["read"], "read": "p"}
    for name in (ACTIVE, HALTED):
        assert advance(state(name), entry("read", read)).name == COMPLETE
        assert advance(state(name), entry("read")).name == name, "another read does not"
    two = dataclasses.replace(state(ACTIVE), primaries=("p", "q"))
    one = advance(two, entry("read", read))
    assert one.name == ACTIVE and advance(one, entry("read", {**read, "read": "q"})).name == COMPLETE
    assert advance(dataclasses.replace(two, primaries=()), entry("read", read)).name == ACTIVE


def test_what_happens_once_is_recorded_once():
    def once(*events, start=ACTIVE):
        now = state(start)
        for event, data in events[:-1]:
            now = advance(now, entry(event, data))
        with pytest.raises(UsageError):
            advance(now, entry(*events[-1]))

    twice = ("read", "look", "gate_passed", "rung", "attempt_ended")
    for event in twice:
        once((event, TOLD[event]), (event, TOLD[event]))
    once(("gate_passed", TOLD["gate_passed"]), ("gate_refused", {**TOLD["gate_passed"], "decision": "ABORT"}))
    once(("launched", {**TOLD["launched"], "attempt": 3}))
    once(("launched", TOLD["launched"]))
    once(("attempt_ended", {**TOLD["attempt_ended"], "attempt": 2}))
    refusal = TOLD["gate_refused"]
    assert (
        advance(advance(state(ACTIVE), entry("gate_refused", refusal)), entry("gate_refused", refusal)).name == ACTIVE
    )


def test_a_ledger_with_an_event_that_cannot_follow_is_broken_and_the_line_is_named():
    good = [entry("registered"), entry("activated", seq=1), entry("launched", seq=2)]
    assert fold(good).name == ACTIVE
    for name, event in product(("registered", "activated"), EVENTS):
        upto = [e for e in good if e.event in ("registered", name)]
        bad = [*upto, entry(event, seq=len(upto))]
        if not allowed(fold(upto).name, event) or event in ("attempt_ended", "attempt_recorded"):
            with pytest.raises(IntegrityError) as error:
                fold(bad, "L")
            assert error.value.where == f"L, line {len(bad)}: event"
    for event in ("invented", "", "launched "):
        with pytest.raises(IntegrityError, match="cannot follow"):
            fold([entry("registered"), Entry(1, "2026-01-01T00:00:00+00:00", event, "r", "c", {})])
    with pytest.raises(IntegrityError):
        fold(good[1:])


@pytest.mark.parametrize("event", DATA)
def test_an_event_that_lacks_something_or_has_it_of_another_type_names_the_field(event):
    told = TOLD[event]
    check(event, {**told, "more": 1}, "L, line 1")
    for key in DATA[event]:
        with pytest.raises(IntegrityError) as error:
            check(event, {k: v for k, v in told.items() if k != key}, "L, line 1")
        assert error.value.where == f"L, line 1: data.{key}"
        with pytest.raises(IntegrityError) as error:
            check(event, {**told, key: [0.5]}, "L, line 1")
        assert error.value.where.startswith(f"L, line 1: data.{key}")
    if "outcome" in told:
        for key in OUTCOME:
            with pytest.raises(IntegrityError) as error:
                check(event, {**told, "outcome": {**OUTCOME, key: object()}}, "L, line 1")
            assert error.value.where == f"L, line 1: data.outcome.{key}"


def test_a_clerical_amendment_does_not_open_the_objection_window_again():
    now = advance(State(), entry("registered"))
    later = dataclasses.replace(entry("amended"), utc="2027-01-01T00:00:00+00:00")
    clerical = dataclasses.replace(later, data={**TOLD["amended"], "kind": "clerical"})
    assert advance(now, clerical).since == now.since and advance(now, later).since == later.utc


def test_an_amendment_takes_an_override_back():
    now = advance(state(ACTIVE), entry("overridden"))
    assert now.overridden == ("g",) and advance(now, entry("amended")).overridden == ()
