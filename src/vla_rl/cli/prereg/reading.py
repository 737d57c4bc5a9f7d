"""`vla-rl prereg read`: open the data of a read or gate once, and judge it by its rule.

Data is opened once, and what was read is recorded: asked again, the command shows what is on record, derived anew from
the same evidence. There is nothing to repeat until it passes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.attempts import bury
from vla_rl.cli.prereg.collecting import Collected, collect, is_handed_in
from vla_rl.cli.prereg.common import folder, hours, parser
from vla_rl.cli.prereg.handing import HandedIn
from vla_rl.errors import EXIT_OK, IntegrityError, LaunchRefused, UsageError
from vla_rl.prereg import state
from vla_rl.prereg.canonical import file_digest
from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.folder import Folder, Loaded, not_now
from vla_rl.prereg.judging import PASS, Found, boundary_now, evidence_files, gate_decision, incomplete, judge
from vla_rl.prereg.outcome import Outcome
from vla_rl.prereg.parts import FIELD, parts
from vla_rl.prereg.registered import arms_of, evidence_arm
from vla_rl.prereg.rules import measured_for
from vla_rl.prereg.sections import Arm, Claim, Gate, Measurement, Read
from vla_rl.report.progress import ProgressView


def read(argv: Sequence[str]) -> int:
    """Collect what is missing, judge, record, show."""
    made = parser(
        "read",
        "Compute a registered read (or gate): its data is opened once, and the outcome is recorded with the evidence\n"
        "it rests on. Evaluations that the read needs are played now. Asked again, it shows what is on record.",
        ("read E001-quickstart primary", "read E003 preflight", "read E004 spend --from numbers.json"),
    )
    made.add_argument("name", metavar="READ", help="id of a read or gate")
    made.add_argument(
        "--from", dest="files", action="append", default=[], type=Path, metavar="FILE",
        help="JSON with the numbers of a recorded measurement, or of a run that other software made; repeatable",
    )  # fmt: skip
    hours(made, "what it has cost to come by what is handed in")
    args = made.parse_args(list(argv))
    target = folder(args.id)
    with target.ledger.locked():
        bury(target)
        loaded = target.load()
    item = _item(loaded, args.name)
    recorded = _recorded(loaded, item)
    if recorded is None:
        if not state.allowed(loaded.state.name, "look"):
            raise not_now(loaded.state, "look", args.id)
        given = HandedIn(tuple(args.files), args.wall_h or 0.0, args.gpu_h or 0.0)
        with ProgressView() as view:
            _open(target, loaded, item, view, given)
        recorded = _judge(target, item)
    else:
        if args.wall_h or args.gpu_h:
            raise UsageError(
                f"{args.name} is on record with what it has cost: these hours would not be counted",
                where="--wall-h, --gpu-h", remedy="leave them away",
            )  # fmt: skip
        _check_recorded(target, loaded, args.name, recorded)
        with target.ledger.locked():  # of a read that was killed before it judged the boundary
            _judge_boundaries(target)
    _show(target, item, recorded, as_json=args.json)
    return EXIT_OK


def _item(loaded: Loaded, name: str) -> Read | Gate:
    items: dict[str, Read | Gate] = {item.id: item for item in (*loaded.registration.reads, *loaded.registration.gates)}
    if name not in items:
        raise UsageError(f"there is no read or gate {name!r}", remedy=f"registered: {', '.join(items)}")
    return items[name]


def _recorded(loaded: Loaded, item: Read | Gate) -> dict[str, Any] | None:
    found = loaded.state.reads.get(item.id) if isinstance(item, Read) else loaded.state.gates.get(item.id)
    return dict(found) if found is not None else None


def _check_recorded(target: Folder, loaded: Loaded, name: str, recorded: dict[str, Any]) -> None:
    by = {"read": "read", "gate_passed": "gate", "gate_refused": "gate"}
    entry = next(e for e in loaded.entries if name == e.data.get(by.get(e.event, "")))
    in_force = sum(e.event == "amended" for e in loaded.entries[: entry.seq])
    again = judge(loaded.versions[in_force].registration, evidence_files(target, loaded.entries), name)
    if again.status != recorded["outcome"]["status"]:
        raise IntegrityError(
            f"{name} is on record as {recorded['outcome']['status']}, its evidence says {again.status}",
            where=str(target.ledger.path),
            remedy=f"vla-rl prereg verify {target.id} names what was changed",
        )


def _needed(loaded: Loaded, name: str) -> list[tuple[Measurement, Arm]]:
    """Measurements and arms that a read rests on, also through other reads."""
    registration = loaded.registration
    measurements = [registration.measurement(m) for m in measured_for(registration.rules(), name)]
    return [(m, arm) for m in measurements for arm in arms_of(registration, m)]


def _open(target: Folder, loaded: Loaded, item: Read | Gate, view: ProgressView, given: HandedIn) -> None:
    """Evidence for whatever the read needs and the folder does not hold yet; what it cost is counted once."""
    known = evidence_files(target, loaded.entries)
    missing = [(m, arm) for m, arm in _needed(loaded, item.id) if (m.id, evidence_arm(arm)) not in known]
    alone = sum(is_handed_in(loaded, m, arm) for m, arm in missing) == 1
    if (given.files or given.wall_h or given.gpu_h) and not any(is_handed_in(loaded, m, arm) for m, arm in missing):
        raise UsageError(f"nothing has to be handed in for {item.id}", where="--from", remedy="leave it away")
    for measurement, arm in missing:
        known = evidence_files(target, loaded.entries)
        collected = collect(target, loaded, measurement, arm, view, given, alone=alone)
        if collected.handed_in:
            given = HandedIn(given.files)
            _check_whole(loaded.registration, item, known, collected, last=(measurement, arm) == missing[-1])
        _same_world(known, collected, loaded)
        with target.ledger.locked():
            _look(target, collected)
            loaded = target.load()


def _check_whole(
    registration: Registration, item: Read | Gate, known: Found, collected: Collected, *, last: bool
) -> None:
    """What is handed in is opened once, so a file that lacks something of it is refused before it is."""
    found = {**known, (collected.evidence.measurement, collected.evidence.arm): collected.evidence}
    lacking = incomplete(registration, collected.evidence)
    if lacking is None and last and (outcome := judge(registration, found, item.id)).status == "MISSING":
        lacking = outcome.sentence
    if lacking is not None:
        raise LaunchRefused(
            f"{item.id} could not be judged by what is handed in: {lacking}",
            where=f"measurements[{collected.evidence.measurement}]",
            remedy="supply what lacks; the file was not opened",
        )  # fmt: skip


def _same_world(known: Any, collected: Collected, loaded: Loaded) -> None:
    """Evaluations of one registration are of one scene, unless another look or protocol was registered."""
    own = loaded.registration.measurement(collected.evidence.measurement)
    claim = loaded.registration.claim
    if _elsewhere(own, claim) or collected.evidence.scene_hash is None:
        return
    for other in known.values():
        registered = next((m for m in loaded.registration.measurements if m.id == other.measurement), None)
        if registered is None or _elsewhere(registered, claim):  # it is not registered any more, or it is elsewhere
            continue
        if other.scene_hash not in (None, collected.evidence.scene_hash):
            raise LaunchRefused(
                f"{own.id} was played in another scene than {other.measurement}: nothing can be compared",
                where=f"measurements[{own.id}]: scene_hash {collected.evidence.scene_hash} and {other.scene_hash}",
                remedy="play it with the versions that are pinned",
            )


def _elsewhere(measurement: Measurement, claim: Claim) -> bool:
    return measurement.look not in (None, claim.look) or measurement.protocol not in (None, claim.protocol)


def _look(target: Folder, collected: Collected) -> None:
    record = collected.evidence.record()
    data = (json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()
    evidence = collected.evidence
    target.write(
        "look",
        {
            "measurement": evidence.measurement, "arm": evidence.arm, "evidence": evidence.name,
            "sha256": file_digest(data), "fields": parts(record, FIELD),
            "wall_h": round(collected.wall_h, 6), "gpu_h": round(collected.gpu_h, 6), "handed_in": collected.handed_in,
        },
        effective=target.load().effective,
        files={target.evidence(evidence.name): data},
    )  # fmt: skip


def _check_current(loaded: Loaded, evidence: Sequence[Evidence | None]) -> None:
    """Evidence of a run that an amendment has made another of says nothing about what is registered now."""
    old = {attempt.number for attempt in loaded.state.attempts if attempt.outdated}
    for each in evidence:
        if each is not None and each.source.get("attempt") in old:
            raise LaunchRefused(
                f"the evidence {each.name} is of attempt {each.source['attempt']}, and an amendment has since changed "
                "what is run",
                where=f"measurements[{each.measurement}]",
                remedy="it was opened once; register another measurement for the new run",
            )


def _judge(target: Folder, item: Read | Gate) -> dict[str, Any]:
    with target.ledger.locked():
        loaded = target.load()
        found = evidence_files(target, loaded.entries)
        _check_current(loaded, [found.get((m.id, evidence_arm(arm))) for m, arm in _needed(loaded, item.id)])
        outcome = judge(loaded.registration, found, item.id)
        if outcome.status == "MISSING":
            raise LaunchRefused(f"{item.id} cannot be judged yet: {outcome.sentence}", where=f"reads[{item.id}]")
        rests_on = [found[m.id, evidence_arm(arm)].name for m, arm in _needed(loaded, item.id)]
        if isinstance(item, Gate):
            decision = gate_decision(outcome)
            data = {"gate": item.id, "decision": decision, "outcome": outcome.record(), "evidence": rests_on}
            target.write("gate_passed" if decision == PASS else "gate_refused", data, effective=loaded.effective)
            return data
        exploratory = item.id in loaded.effective.exploratory
        data = {"read": item.id, "outcome": outcome.record(), "evidence": rests_on, "exploratory": exploratory}
        target.write("read", data, effective=loaded.effective)
        _judge_boundaries(target)
        return data


def _judge_boundaries(target: Folder) -> None:
    """Rungs whose last boundary read this was."""
    loaded = target.load()
    for rung in loaded.registration.ladder:
        open_still = rung.id not in loaded.state.rungs and state.allowed(loaded.state.name, "rung")
        if rung.proceed_if and open_still:
            decision, reads = boundary_now(loaded.registration, loaded.state, rung.id)
            if decision is not None:
                data = {"rung": rung.id, "decision": decision, "reads": reads}
                target.write("rung", data, effective=loaded.effective)


def _show(target: Folder, item: Read | Gate, recorded: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"id": target.id, **recorded})
        return
    outcome = Outcome.from_record(recorded["outcome"])
    if isinstance(item, Gate):
        print(f"gate {item.id}: {recorded['decision']}\n  {item.text}\n  {outcome.line()}")
        return
    exploratory = " (exploratory: it was changed after outcomes were seen)" if recorded["exploratory"] else ""
    print(f"{item.role} read {item.id}{exploratory}\n  {item.question}\n  {outcome.line()}")
    loaded = target.load()
    now = loaded.state
    for rung in loaded.registration.ladder:
        if item.id in rung.proceed_if and rung.id in now.rungs:
            print(f"  boundary of {rung.id}: {now.rungs[rung.id]}")
            for name in (name for name in rung.proceed_if if name in now.reads):
                print(f"    {name}: {Outcome.from_record(now.reads[name]['outcome']).line()}")
    if now.name == state.COMPLETE:
        print(f"every primary read is there: vla-rl prereg verdict {target.id}")
