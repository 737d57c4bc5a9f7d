"""What has to hold before a registered run may start: every refusal, not the first.

In: a registration as it stands, this machine, what is asked for. Out: refusals, each with its remedy; none if the
launch is the registered one. The same function is called by the command and again by the process that trains, as its
first statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_rl.config.demonstrations import recorded_digest
from vla_rl.errors import VlaRlError
from vla_rl.prereg import delta, pins, state
from vla_rl.prereg.budget import account
from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import BASELINE
from vla_rl.prereg.folder import Folder, Loaded, root_of
from vla_rl.prereg.freezing import unfrozen
from vla_rl.prereg.history import History, problems, signature, uncommitted
from vla_rl.prereg.judging import BAND, PASS, PROCEED, boundary_now, outdated_evidence, outdated_reads
from vla_rl.prereg.lint import findings
from vla_rl.prereg.pins import Difference, Place
from vla_rl.prereg.registered import config_of, rung_before
from vla_rl.prereg.runfiles import changed, copied

FREE = ("run.max_wall_s",)  # how long a launch may take is never registered
JUDGED = ("gate_passed", "gate_refused")
SERVED = ("checkpoint", "revision", "fast_tokenizer", "fast_revision")  # whose policy; its head is the claim's


@dataclass(frozen=True)
class Request:
    """What is to be launched.

    Attributes:
        rung, arm: ids.
        set: leaves of the configuration to set beside: of the invariance list, or the run is exploratory.
        resume: go on with the attempt that stopped.
        exploratory: the run proves nothing, and may differ.
    """

    rung: str
    arm: str
    set: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    exploratory: bool = False


def refusals(folder: Folder, loaded: Loaded, request: Request, place: Place) -> list[Difference]:
    """Everything that stands against this launch."""
    whole = standing(folder, loaded, place, exploratory=request.exploratory)
    return [*whole, *against(folder, loaded, request)]


def standing(folder: Folder, loaded: Loaded, place: Place, *, exploratory: bool = False) -> list[Difference]:
    """What stands against every launch of the registration here: the same for all rungs and arms, so that whoever
    launches several asks once. Everything that is pinned is read."""
    registration = loaded.registration
    found = [*_history(folder, registration), *_state(loaded)]
    if not exploratory:
        found += [Difference(f.what, f.where, f.remedy) for f in findings(registration)]
    return found + pins.unlike(registration.pins, place)


def against(folder: Folder, loaded: Loaded, request: Request) -> list[Difference]:
    """What stands against this launch beside what stands against every one."""
    registration = loaded.registration
    found = [*_attempts(loaded, request), *_ladder(loaded, request)]
    found += [*_files(folder, loaded, request), *_values(registration, request)]
    if not request.exploratory:
        found += _gates(loaded, request)
        found += _deferred(registration, request)
    try:
        config = config_of(registration, request.rung, request.arm)
        found += pins.unpinned(registration.pins, config)
        if not request.exploratory:
            found += _demonstrations({**(config.get("experience") or {}), **_section(request.set, "experience")})
    except VlaRlError as error:
        found.append(Difference(error.what, error.where or "config", error.remedy or "amend it"))
    if short := account(registration, loaded.state).shortfall(request.rung):
        what = f"the budget does not hold another launch: {short}"
        found.append(Difference(what, "budget", f"vla-rl prereg close {registration.id}, or an amendment"))
    return found


def out_of_order(loaded: Loaded, request: Request) -> list[Difference]:
    """What the registration itself has against an attempt, wherever it was made: gates, ladder, constants, and another
    attempt that counts."""
    if request.exploratory:
        return []
    before = [each for each in _ladder(loaded, request) if not each.where.endswith("starts_from")]
    return [*_attempts(loaded, request), *before, *_gates(loaded, request), *_deferred(loaded.registration, request)]


def _history(folder: Folder, registration: Registration) -> list[Difference]:
    history = History.of(folder.path)
    if history is None:
        return [Difference("the folder is in no git checkout", str(folder.path), "git is what anchors a registration")]
    found = [Difference(p.what, p.where, p.remedy) for p in problems(folder, history)]
    if names := uncommitted(folder, history):
        what = f"not committed as it is: {', '.join(names)}"
        found.append(Difference(what, str(folder.path), f"git add {folder.path} && git commit -m 'Freeze {folder.id}'"))
    if registration.anchor.signed and (unsigned := signature(folder, history)):
        found.append(Difference(unsigned.what, unsigned.where, unsigned.remedy))
    return found


def _state(loaded: Loaded) -> list[Difference]:
    now, id = loaded.state, loaded.registration.id
    if now.name == state.REGISTERED:
        return [Difference(f"{id} is not active yet", "state", f"vla-rl prereg activate {id}")]
    if now.name == state.HALTED:
        why = now.stops[-1].get("why", "a wire or its budget") if now.stops else "a wire or its budget"
        return [Difference(f"{id} is halted: {why}", "state", "only an amendment goes on from here, or close it")]
    if not state.allowed(now.name, "launched"):
        return [Difference(f"{id} is {now.name}", "state", "another run needs another registration")]
    return []


def _attempts(loaded: Loaded, request: Request) -> list[Difference]:
    """Of a registration whose state allows launches: what was launched of this rung and arm."""
    now, id, found = loaded.state, loaded.registration.id, []
    if not state.allowed(now.name, "launched"):
        return []
    for attempt in now.running:
        if (attempt.rung, attempt.arm) == (request.rung, request.arm):
            process = attempt.data["process"]
            where = f"attempt {attempt.number}, process {process['pid']} of machine {process['node']}"
            if attempt.alive:
                found.append(Difference("this rung and arm is running", where, "wait for it, or stop it first"))
    if request.exploratory:
        return found
    if done := now.completed(request.rung, request.arm):
        what = f"this rung and arm has its run: attempt {done.number}"
        found.append(Difference(what, done.place, f"vla-rl prereg read {id} READ; a second run would be a choice"))
    earlier = now.of(request.rung, request.arm)
    fresh = not request.resume and earlier and not earlier[-1].amended
    if fresh and not earlier[-1].finished:
        what = f"attempt {earlier[-1].number} of it can go on; a fresh start would be a choice between runs"
        remedy = "amend first, with the reason"
        found.append(Difference(what, earlier[-1].place, remedy if earlier[-1].elsewhere else f"--resume, or {remedy}"))
    if request.resume and not now.of(request.rung, request.arm):
        found.append(Difference("there is no attempt to go on with", "--resume", "leave --resume away"))
    return found


def _ladder(loaded: Loaded, request: Request) -> list[Difference]:
    registration, now = loaded.registration, loaded.state
    rung = registration.rung(request.rung)
    before, launch = rung_before(registration, rung), f"vla-rl prereg launch {registration.id} --rung"
    found = []
    if before is not None and not request.exploratory:
        decision, (again, reads) = now.rungs.get(before.id), boundary_now(registration, now, before.id)
        decision = again if decision == PROCEED else decision  # a STOP is for good
        old = [name for name in before.proceed_if if name in outdated_reads(registration, now)]
        if decision is None and old:
            what = f"the boundary of {before.id} needs {', '.join(old)} of the run as it is registered now"
            remedy = "amend: add a measurement and a read of the new run, and put that read into proceed_if"
            found.append(Difference(what, f"ladder[{before.id}]", remedy))
        elif decision is None and before.proceed_if:
            what = f"the boundary of {before.id} is not judged: it needs {', '.join(reads)}"
            found.append(Difference(what, f"ladder[{before.id}]", f"vla-rl prereg read {registration.id} {reads[0]}"))
        elif decision not in (None, PROCEED):  # for good: no amendment takes it back
            what = f"the boundary of {before.id} says {decision}"
            found.append(Difference(what, f"ladder[{before.id}]", f"vla-rl prereg close {registration.id}"))
        elif now.completed(before.id, request.arm) is None:
            what = f"{before.id} has not been run"
            found.append(Difference(what, f"ladder[{before.id}]", f"{launch} {before.id}"))
    known = published_name(rung.starts_from, request.arm) in now.published
    if rung.starts_from != "base" and not known and now.completed(rung.starts_from, request.arm) is None:
        what = f"the checkpoint of {rung.starts_from} that {rung.id} starts from is not there"
        found.append(Difference(what, f"ladder[{rung.id}].starts_from", f"{launch} {rung.starts_from}"))
    made = now.completed(rung.starts_from, request.arm)
    if made is not None and made.elsewhere and not known:
        what = f"other software made {rung.starts_from}, and its checkpoint is not here"
        remedy = "start from a base: amend ladder and policy.checkpoint"
        found.append(Difference(what, f"ladder[{rung.id}].starts_from", remedy))
    return found


def _files(folder: Folder, loaded: Loaded, request: Request) -> list[Difference]:
    """What the run goes on from is what was left there."""
    root, rung = root_of(folder), loaded.registration.rung(request.rung)
    attempts, found = loaded.state.of(request.rung, request.arm), []
    if request.resume and request.exploratory:
        what = "an exploratory run begins anew: going on with the registered one would change it"
        found.append(Difference(what, "--resume", "leave --resume or --exploratory away"))
    elif request.resume and attempts and attempts[-1].elsewhere:
        what = f"attempt {attempts[-1].number} was made by other software, and nothing of it is here"
        found.append(Difference(what, attempts[-1].place, "leave --resume away"))
    elif request.resume and attempts and (end := attempts[-1].end) is not None:
        run = root / attempts[-1].data["run"]
        what = f"it is not what attempt {attempts[-1].number} left"
        found += [Difference(what, f"{run / name}", "restore it, or leave --resume away") for name in changed(run, end)]
    published = loaded.state.published.get(published_name(rung.starts_from, request.arm))
    if published is not None and (name := copied(root, published)):
        what = f"the checkpoint of {rung.starts_from} is not the one that was published"
        found.append(Difference(what, str(root / published["directory"] / name), "restore it"))
    return found


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Those of some leaves that lie in a section, by the rest of their path."""
    return {path.removeprefix(f"{name}."): value for path, value in values.items() if path.startswith(f"{name}.")}


def _demonstrations(experience: Mapping[str, Any]) -> list[Difference]:
    """What the run learns from, if it plays no waves, is there and what was registered."""
    directory, wanted = experience.get("demos"), experience.get("recipe_sha256")
    if directory is None or (found := recorded_digest(Path(directory))) == wanted:
        return []
    what = f"there are no demonstrations in {directory}" if found is None else f"the recipe of {directory} is {found}"
    remedy = "record those of the registered recipe there with vla-rl demos, which prints its digest"
    return [Difference(f"{what}; registered is {wanted}", "config.experience.recipe_sha256", remedy)]


def published_name(rung: str, arm: str) -> str:
    """Under which name a rung's checkpoint of an arm is published."""
    return rung if arm == BASELINE else f"{rung}@{arm}"


def _values(registration: Registration, request: Request) -> list[Difference]:
    found = []
    for path, value in request.set.items():
        try:
            delta.set_values(registration.config, {path: value}, where="--set")
        except VlaRlError as error:
            found.append(Difference(error.what, "--set", error.remedy or "name a key of config"))
            continue
        if any(unfrozen(value, path)):
            found.append(Difference(f"{value!r} is not a value", "--set", "write what it stands for"))
        if path not in (*registration.invariance, *FREE) and not request.exploratory:
            what = f"{path} may change what the run computes"
            remedy = "register it as a lever, amend it, or launch with --exploratory: such a run proves nothing"
            found.append(Difference(what, "--set", remedy))
    return found


def _gates(loaded: Loaded, request: Request) -> list[Difference]:
    found = []
    for gate in loaded.registration.gates:
        if gate.before != request.rung:
            continue
        judged, id = loaded.state.gates.get(gate.id), loaded.registration.id
        decision = judged["decision"] if judged else None
        about = _judged_on(loaded, gate.id) if judged else None
        where, read = f"gates[{gate.id}]", f"vla-rl prereg read {id} {gate.id}"
        if decision is None:
            found.append(Difference(f"the gate {gate.id} is not judged", where, read))
        elif decision == BAND and gate.id not in loaded.state.overridden:
            remedy = (
                f"vla-rl prereg override {id} {gate.id} --reason ..." if gate.override else "no override is registered"
            )
            found.append(Difference(f"the gate {gate.id} says BAND", where, remedy))
        elif decision not in (PASS, BAND):
            found.append(Difference(f"the gate {gate.id} says {decision}", where, f"close {id}; no override exists"))
        elif about is not None:
            remedy = "amend: register a gate and a measurement of what is to be run now, and remove this one"
            found.append(Difference(f"the gate {gate.id} was judged on {about}", where, remedy))
    return found


def _judged_on(loaded: Loaded, gate: str) -> str | None:
    """What a gate was judged on, in words, if that is not what would be launched now."""
    entry = next(e for e in reversed(loaded.entries) if e.event in JUDGED and e.data.get("gate") == gate)
    then = loaded.versions[sum(e.event == "amended" for e in loaded.entries[: entry.seq])].registration
    now = loaded.registration
    if old := outdated_evidence(now, loaded.state, entry.data["evidence"]):
        return f"a run that an amendment has since made another of ({', '.join(old)})"
    for key in SERVED:
        if (policy := then.config["policy"].get(key)) != now.config["policy"].get(key):
            return f"{key} {policy}, and the run uses {now.config['policy'].get(key)}"
    for was, is_now in ((then.pins.checkpoint, now.pins.checkpoint), (then.pins.codec, now.pins.codec)):
        # One that was not there yet is the same by its name.
        if was and is_now and not pins.named_only(was) and was.files != is_now.files:
            return f"other files of {was.name} than are pinned now"
    return None


def _deferred(registration: Registration, request: Request) -> list[Difference]:
    rungs = [rung.id for rung in registration.ladder]
    due = [d for d in registration.deferred if rungs.index(d.by) <= rungs.index(request.rung)]
    return [
        Difference(
            f"the constant {d.id} had to be set before {d.by}",
            f"deferred[{d.id}]",
            f"vla-rl prereg read {registration.id} {d.read}, then amend {registration.id} --settle {d.id}",
        )
        for d in due
        if registration.constants.get(d.id) is None
    ]
