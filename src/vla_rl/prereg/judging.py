"""Outcomes of reads and gates, from the registration in force and the evidence in its folder.

In: an effective registration, evidence. Out: outcomes, gate decisions, the decision at a rung's boundary. Pure: the
same registration and evidence give the same outcomes on every machine. Left out: how evidence comes about.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from vla_rl.errors import IntegrityError
from vla_rl.prereg.amendments import Effective
from vla_rl.prereg.canonical import file_digest
from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import BASELINE, Evidence, parse
from vla_rl.prereg.exclusions import exclude
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.ledger import Entry
from vla_rl.prereg.outcome import Outcome, Unjudged
from vla_rl.prereg.parts import FIELD, changed
from vla_rl.prereg.registered import context
from vla_rl.prereg.rules import measured_for
from vla_rl.prereg.state import HALTED, State
from vla_rl.prereg.verdict import Claimed, Judged, Verdict, judge_claim

PROCEED, STOP = "PROCEED", "STOP"
PASS, BAND, ABORT = "PASS", "BAND", "ABORT"
Found = Mapping[tuple[str, str | None], Evidence]


def evidence_files(folder: Folder, entries: Iterable[Entry]) -> dict[tuple[str, str | None], Evidence]:
    """The evidence that the ledger knows of, whose files are what was recorded.

    Raises:
        IntegrityError: a file is not; names it and the field.
    """
    found = {}
    for entry in (entry for entry in entries if entry.event == "look"):
        path = folder.evidence(entry.data["evidence"])
        try:
            data = path.read_bytes()
        except OSError as error:
            raise IntegrityError(
                f"the file cannot be read: {error.strerror}", where=str(path), remedy="restore it from git"
            ) from None
        if file_digest(data) != entry.data["sha256"]:
            raise IntegrityError(
                "the evidence is not what was recorded",
                where=f"{path}: {_changed(data, entry.data['fields'])}",
                remedy="restore it from git; evidence is written once",
            )
        evidence = parse(json.loads(data), str(path))
        found[evidence.measurement, evidence.arm] = evidence
    return found


def judge(registration: Registration, found: Found, name: str) -> Outcome:
    """The outcome of a read or gate, those that it needs judged first."""
    outcomes: dict[str, Outcome] = {}
    rules = registration.rules()
    excluded = {key: exclude(evidence, registration.exclusions) for key, evidence in found.items()}

    def one(name: str) -> Outcome:
        if name not in outcomes:
            for needed in rules[name].reads():
                one(needed)
            outcomes[name] = rules[name].judge(context(registration, evidence=excluded, outcomes=outcomes))
        return outcomes[name]

    return one(name)


def incomplete(registration: Registration, evidence: Evidence) -> str | None:
    """What evidence lacks of that which is registered of its measurement, in words; None if it is whole."""
    key = evidence.measurement, evidence.arm
    try:
        context(registration, evidence={key: exclude(evidence, registration.exclusions)}).of(*key)
    except Unjudged as unjudged:
        return unjudged.why if unjudged.status == "MISSING" else None
    return None


def gate_decision(outcome: Outcome) -> str:
    """PASS, BAND or ABORT: the band of that name; of any other rule only PASS passes."""
    if outcome.label in (PASS, BAND, ABORT):
        return outcome.label
    return PASS if outcome.status == "PASS" else ABORT


def outdated_evidence(registration: Registration, state: State, names: Iterable[str]) -> list[str]:
    """Those pieces of evidence that are of a run which an amendment has made another of since they were opened."""
    measured = {m.id: m for m in registration.measurements}
    found = []
    for name in names:
        measurement, _, arm = name.partition("@")
        m = measured.get(measurement)
        of_a_run = m is not None and m.kind != "recorded" and (m.policy == "trained" or m.played_by == "run")
        if m is not None and of_a_run and f"{m.rung}/{arm or BASELINE}" in state.outdated.get(name, ()):
            found.append(name)
    return found


def outdated_reads(registration: Registration, state: State) -> set[str]:
    """Reads on record that rest on such evidence: what they found is not about what is registered now."""
    return {name for name, read in state.reads.items() if outdated_evidence(registration, state, read["evidence"])}


def boundary_now(registration: Registration, state: State, rung: str) -> tuple[str | None, list[str]]:
    """As `boundary`, by the reads that are about what is registered now."""
    old = outdated_reads(registration, state)
    return boundary(registration, rung, {name: read for name, read in state.reads.items() if name not in old})


def boundary(
    registration: Registration, rung: str, reads: Mapping[str, Mapping[str, Any]]
) -> tuple[str | None, list[str]]:
    """The decision at the end of a rung, and the reads that made it so (or that are still missing)."""
    wanted = registration.rung(rung).proceed_if
    missing = [name for name in wanted if name not in reads]
    stopping = [name for name in wanted if name in reads and reads[name]["outcome"]["status"] != "PASS"]
    if stopping:
        return STOP, stopping
    return (None, missing) if missing else (PROCEED, list(wanted))


def verdict_of(effective: Effective, state: State) -> Verdict:
    """The verdict that the recorded reads lead to."""
    registration = effective.registration
    claim = registration.claim
    old = outdated_reads(registration, state)
    reads = [
        Judged(
            read.id, read.role, _recorded(state.reads.get(read.id), read.id), read.id in effective.exploratory,
            read.id in old,
        )
        for read in registration.reads
    ]  # fmt: skip
    faults = [
        f"the gate {name} said {data['decision']}"
        for name, data in state.gates.items()
        if data["decision"] == ABORT or (data["decision"] == BAND and name not in state.once_overridden)
    ]
    halted = state.stops[-1]["why"] if state.name == HALTED and state.stops else _stopped_at(registration, state)
    claimed = Claimed(
        claim.hypothesis, unit=claim.unit, scenes=_scenes(registration), protocol=claim.protocol, head=claim.head,
        family=claim.family, handed_in=handed_in(registration, state),
    )  # fmt: skip
    return judge_claim(claimed, reads, registration.falsifiers, faults=faults, halted=halted)


def _stopped_at(registration: Registration, state: State) -> str | None:
    """A boundary that keeps a primary read from ever being taken."""
    if all(read in state.reads for read in registration.primaries()):
        return None
    stopped = [rung for rung, decision in state.rungs.items() if decision == STOP]
    if not stopped:
        return None
    if all(rung.id != stopped[0] for rung in registration.ladder):  # an amendment took it away, not what it said
        return f"the boundary of {stopped[0]} says STOP"
    _, reads = boundary(registration, stopped[0], state.reads)
    return f"the boundary of {stopped[0]} says STOP ({', '.join(reads)})"


def handed_in(registration: Registration, state: State) -> str:
    """What was not played here of that which the reads on record rest on, in words; empty if everything was."""
    told = []
    noted = {read.id for read in registration.reads if read.role == "record"}
    judged = {**{name: data for name, data in state.reads.items() if name not in noted}, **state.gates}
    used = {name for data in judged.values() for name in data["evidence"]}
    if names := [name for name in state.handed_in if name in used]:
        told.append(f"Handed in and not played here: {', '.join(names)}.")
    if made := sum(attempt.elsewhere is not None for attempt in state.attempts):
        told.append(f"Made by other software: {made} of {len(state.attempts)} attempts.")
    return " ".join(told)


def verdict_record(effective: Effective, state: State) -> dict[str, Any]:
    """The verdict that the recorded reads lead to, as the ledger has it: with what it rests on."""
    rests_on = {name: read["outcome"]["status"] for name, read in state.reads.items()}
    return {**verdict_of(effective, state).record(), "rests_on": rests_on}


def verdict_stands(effective: Effective, state: State) -> bool:
    """Whether the verdict on record is the one that the reads lead to now; how it is worded does not matter."""
    now = verdict_record(effective, state)
    return state.verdict is not None and all(state.verdict[key] == now[key] for key in ("verdict", "rests_on"))


def _scenes(registration: Registration) -> int | None:
    """How many scenes the primary reads are evaluated on, if it is one number."""
    planned = context(registration).planned
    names = measured_for(registration.rules(), *registration.primaries())
    sizes = {planned[name].n for name in names if planned[name].kind == "evaluation"}
    return sizes.pop() if len(sizes) == 1 else None


def _recorded(read: Mapping[str, Any] | None, name: str) -> Outcome:
    return Outcome("MISSING", f"{name} was not read") if read is None else Outcome.from_record(read["outcome"])


def _changed(data: bytes, recorded: Mapping[str, str]) -> str:
    """Which parts of evidence differ from what was recorded, in words."""
    try:
        differing = changed(json.loads(data), recorded, FIELD)
    except Exception:
        return "it is no JSON any more"
    return ", ".join(differing[:5]) or "blanks; no value differs"
