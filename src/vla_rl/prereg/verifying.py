"""Everything derived again: digests, chain, state, git, evidence, reads, gates, boundaries, verdict.

In: a folder. Out: problems, each with file and field; none if everything that is recorded follows from what is stored.
Reads are judged again from their evidence under the registration that was in force when they were recorded. Left out:
this machine (`pins`), which only a launch asks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vla_rl.errors import VlaRlError
from vla_rl.prereg import anchor
from vla_rl.prereg.amendments import SEEN, Effective
from vla_rl.prereg.canonical import file_digest
from vla_rl.prereg.document import DRAFT_FILE, REPORT, Registration
from vla_rl.prereg.effects import outdated
from vla_rl.prereg.folder import Folder, Loaded
from vla_rl.prereg.history import History, Problem, problems, signature
from vla_rl.prereg.judging import boundary, evidence_files, gate_decision, judge, verdict_of
from vla_rl.prereg.ledger import Entry
from vla_rl.prereg.outcome import Outcome
from vla_rl.prereg.reported import last_report, report_files
from vla_rl.prereg.state import State, advance

# What rules and rendering may meet in evidence and configurations that nobody ever wrote with a command of ours.
UNDERIVABLE = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)


def verify(folder: Folder, history: History | None) -> list[Problem]:
    """Everything that does not match.

    Args:
        history: what git knows, see `History.of`; None outside of a checkout.
    """
    found = problems(folder, history)
    try:
        loaded = folder.load_as_written()
        remembered = history.remembered if history else {}
        anchor.check(folder.id, folder.ledger.path, folder.ledger.stored(), remembered)
        if loaded.registration.anchor.signed and (unsigned := signature(folder, history)):
            found.append(unsigned)
        for each in (_files, _derived, _report):
            found += each(folder, loaded)
    except VlaRlError as error:
        found.append(Problem(error.where or str(folder.path), error.what, error.remedy or "restore it from git"))
    except UNDERIVABLE as error:
        what = f"what is recorded cannot be derived again: {type(error).__name__}: {error}"
        found.append(Problem(str(getattr(error, "filename", None) or folder.path), what))
    return found


def _files(folder: Folder, loaded: Loaded) -> Iterator[Problem]:
    """The folder holds what the ledger knows of and nothing else, and the draft is the one it was frozen from."""
    expected = {folder.registration, folder.ledger.path, folder.path / REPORT}
    expected |= {folder.amendment(amendment.number) for amendment in loaded.effective.amendments}
    expected |= {folder.evidence(entry.data["evidence"]) for entry in loaded.entries if entry.event == "look"}
    expected |= {folder.path / name for name in report_files(loaded.entries)}
    draft = folder.path / DRAFT_FILE
    pinned = loaded.registration.pins.draft_sha256
    if draft.exists():
        expected.add(draft)
        if pinned != file_digest(draft.read_bytes()):
            yield Problem(f"{draft}: pins.draft_sha256", "it is not the draft that this was frozen from")
    for path in sorted(folder.path.rglob("*")):
        remedy = "remove it: what the ledger does not know of was never evidence"
        if path.is_symlink():
            yield Problem(str(path), "this is a link", "put the file itself there")
        elif not path.is_dir() and path not in expected:
            yield Problem(str(path), "the ledger does not know of this file", remedy)


def _derived(folder: Folder, loaded: Loaded) -> Iterator[Problem]:
    """What the ledger says was found, found again."""
    versions = loaded.versions
    evidence = evidence_files(folder, loaded.entries)
    opened: dict[Any, Any] = {}
    state, at = State(), 0
    for entry in loaded.entries:
        where = f"{folder.ledger.path}, line {entry.seq + 1}"
        at += entry.event == "amended"
        registration = versions[at].registration
        data = entry.data
        if entry.event == "amended":
            yield from _amended(versions[at - 1], versions[at], state, data, where)
        elif entry.event == "look":
            key = data["measurement"], data["arm"]
            if key not in evidence or evidence[key].name != data["evidence"]:
                yield Problem(f"{where}: data.measurement", "its evidence is of another measurement")
            else:
                opened[key] = evidence[key]
        elif entry.event == "read":
            yield from _read(registration, opened, entry, where)
            exploratory = data["read"] in versions[at].exploratory
            if data["exploratory"] != exploratory:
                yield Problem(f"{where}: data.exploratory", f"the read is {'' if exploratory else 'not '}exploratory")
        elif entry.event in ("gate_passed", "gate_refused") and data.get("gate"):
            yield from _gate(registration, opened, entry, where)
        elif entry.event == "rung":
            decision, _ = boundary(registration, data["rung"], state.reads)
            if decision != data["decision"]:
                yield Problem(f"{where}: data.decision", f"the reads say {decision}, not {data['decision']}")
        elif entry.event == "verdict":
            yield from _verdict(versions[at], state, data, where)
        state = advance(state, entry)


def _amended(
    before: Effective, after: Effective, state: State, data: Mapping[str, Any], where: str
) -> Iterator[Problem]:
    """What it says had been seen, what it settles, and which runs it makes others of."""
    amendment = after.amendments[-1]
    if SEEN.index(amendment.data_seen) < SEEN.index(state.seen):
        what = f"amendment {amendment.number} states that {amendment.data_seen} was seen, it was {state.seen}"
        yield Problem(f"{where}: data.number", what)
    for deferred in (d for d in before.registration.deferred if d.id == amendment.settles):
        read = state.reads.get(deferred.read)
        estimate = read["outcome"]["estimate"] if read else None
        if after.registration.constants.get(deferred.id) != estimate:
            yield Problem(f"{where}: data.number", f"{deferred.id} is not the estimate of {deferred.read}: {estimate}")
    for key, again in (
        ("outdated", outdated(before.registration, after.registration)),
        ("effects", amendment.effects),
        ("kind", amendment.kind),
        ("primaries", after.registration.primaries()),
    ):
        if data[key] != again:
            yield Problem(f"{where}: data.{key}", f"it is {again}, not {data[key]}")


def _read(registration: Registration, opened: Mapping[Any, Any], entry: Entry, where: str) -> Iterator[Problem]:
    again = judge(registration, opened, entry.data["read"])
    yield from _differences(again, entry.data["outcome"], f"{where}: data.outcome")


def _gate(registration: Registration, opened: Mapping[Any, Any], entry: Entry, where: str) -> Iterator[Problem]:
    again = judge(registration, opened, entry.data["gate"])
    yield from _differences(again, entry.data["outcome"], f"{where}: data.outcome")
    decision = gate_decision(again)
    passed = "gate_passed" if decision == "PASS" else "gate_refused"
    if decision != entry.data["decision"] or entry.event != passed:
        yield Problem(f"{where}: data.decision", f"the evidence says {decision}, not {entry.data['decision']}")


def _verdict(version: Effective, state: State, data: Mapping[str, Any], where: str) -> Iterator[Problem]:
    again = verdict_of(version, state).verdict
    if again != data["verdict"]:
        yield Problem(f"{where}: data.verdict", f"the reads lead to {again}, not to {data['verdict']}")


def _differences(again: Outcome, recorded: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """What was found, not how it is worded: numbers agree to nine digits, as another version of a library may round the
    last ones differently, and what is told beside the outcome (power, sentence) may be told better one day."""
    now = again.record()
    for key in ("status", "label", "n", "estimate", "interval", "level", "p"):
        if not _close(now[key], recorded.get(key)):
            yield Problem(f"{where}.{key}", f"the evidence says {now[key]!r}, not {recorded.get(key)!r}")


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, Sequence) and not isinstance(a, str):
        return isinstance(b, Sequence) and len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float | int) and not isinstance(b, bool):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return type(a) is type(b) and a == b


def _report(folder: Folder, loaded: Loaded) -> Iterator[Problem]:
    """The report and its files are those that were written when the ledger says so; they are not rendered again,
    because a later version may word and draw them otherwise."""
    remedy = f"vla-rl prereg report {folder.id}"
    report = last_report(loaded.entries)
    if report is None:
        if (folder.path / REPORT).exists():
            yield Problem(str(folder.path / REPORT), "no report was written", remedy)
        return
    for name, recorded in {REPORT: report["sha256"], **report_files(loaded.entries)}.items():
        path = folder.path / name
        if not path.exists():
            yield Problem(str(path), "the report is gone" if name == REPORT else "a file of the report is gone", remedy)
        elif file_digest(path.read_bytes()) != recorded:
            yield Problem(str(path), "it is not the report that was written", remedy)
