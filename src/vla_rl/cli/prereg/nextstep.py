"""What can be done next with a registration, in one command and one reason."""

from __future__ import annotations

from vla_rl.prereg import state
from vla_rl.prereg.budget import account
from vla_rl.prereg.folder import Loaded
from vla_rl.prereg.judging import BAND, PASS, STOP, verdict_stands
from vla_rl.prereg.registered import arms_of


def next_step(loaded: Loaded) -> tuple[str, str]:
    """(command, why); an empty command if there is nothing left to do."""
    now, id = loaded.state, loaded.registration.id
    if now.name in state.ENDS:
        return "", f"it is {now.name}"
    if now.name == state.REGISTERED:
        return _registered(loaded)
    if alive := [attempt for attempt in now.running if attempt.alive]:
        return "vla-rl status", f"attempt {alive[0].number} is running"
    if gone := [attempt for attempt in now.running if not attempt.exploratory]:
        command = f"{_command(loaded, gone[0].rung, gone[0].arm)} --resume"
        return command, f"the process of attempt {gone[0].number} is gone; the next command records its end"
    if now.name == state.COMPLETE:
        return _ending(loaded, "every primary read is there")
    if now.name == state.HALTED:
        why = now.stops[-1]["why"] if now.stops else "it was halted"
        return f"vla-rl prereg amend {id} ...", f"halted: {why}; amend it, or verdict and close"
    return _active(loaded)


def _registered(loaded: Loaded) -> tuple[str, str]:
    now, id = loaded.state, loaded.registration.id
    for number, objection in now.objections.items():
        return f"vla-rl prereg object {id} --answer {number} --text ...", f"{objection['by']} objects"
    todo = [item.id for item in loaded.registration.activation.checklist if item.id not in now.checked]
    done = "".join(f" --done {name}=..." for name in todo)
    return f"vla-rl prereg activate {id}{done}", "it is frozen and not active yet"


def _active(loaded: Loaded) -> tuple[str, str]:
    now, registration = loaded.state, loaded.registration
    id = registration.id
    for rung in registration.ladder:
        waiting = any(now.completed(rung.id, arm.id) is None for arm in registration.arms)
        for gate in (g for g in registration.gates if g.before == rung.id and waiting):
            judged = now.gates.get(gate.id)
            if judged is None:
                return f"vla-rl prereg read {id} {gate.id}", f"the gate before {rung.id} is not judged"
            if judged["decision"] == BAND and gate.id not in now.overridden and gate.override:
                return f"vla-rl prereg override {id} {gate.id} --reason ...", f"{gate.id} says BAND"
            if judged["decision"] != PASS and gate.id not in now.overridden:
                return _ending(loaded, f"the gate {gate.id} says {judged['decision']}")
        for deferred in (d for d in registration.deferred if d.by == rung.id and waiting):
            if registration.constants.get(deferred.id) is None:
                why = f"{rung.id} waits for the constant {deferred.id}"
                settle = f"vla-rl prereg amend {id} --settle {deferred.id} --kind operational --data-seen outcomes ..."
                return (settle if deferred.read in now.reads else f"vla-rl prereg read {id} {deferred.read}"), why
        for arm in registration.arms:
            if now.completed(rung.id, arm.id) is None:
                return _launch(loaded, rung.id, arm.id, arm.label)
        for read in rung.proceed_if:
            if read not in now.reads:
                return f"vla-rl prereg read {id} {read}", f"the boundary of {rung.id} needs it"
        if now.rungs.get(rung.id) == STOP:
            return _ending(loaded, f"the boundary of {rung.id} says STOP")
    for read in registration.reads:
        if read.id not in now.reads:
            return f"vla-rl prereg read {id} {read.id}", f"the {read.role} read {read.id} is open"
    return _ending(loaded, "everything is read")


def _launch(loaded: Loaded, rung: str, arm: str, label: str) -> tuple[str, str]:
    registration, command = loaded.registration, _command(loaded, rung, arm)
    earlier = loaded.state.of(rung, arm)
    if short := account(registration, loaded.state).shortfall(rung):
        return _ending(loaded, f"no launch is affordable: {short}")
    if earlier:
        why = f"attempt {earlier[-1].number} ended: {(earlier[-1].end or {}).get('how')}"
        if not earlier[-1].elsewhere:
            return f"{command} --resume", why
        # Nothing of it is here to go on from.
        return command if earlier[-1].amended else f"vla-rl prereg amend {registration.id} ...", why
    return command, f"{rung}, {label or arm} has not been run"


def _command(loaded: Loaded, rung: str, arm: str) -> str:
    registration = loaded.registration
    command = f"vla-rl prereg launch {registration.id}"
    if len(registration.ladder) > 1:
        command += f" --rung {rung}"
    if len(registration.arms) > 1:
        command += f" --arm '{registration.arm(arm).label}'"
    return command


def _ending(loaded: Loaded, why: str) -> tuple[str, str]:
    now, registration = loaded.state, loaded.registration
    secondary = [read.id for read in registration.reads if read.id not in now.reads and _can_be_read(loaded, read.id)]
    if secondary:
        return f"vla-rl prereg read {registration.id} {secondary[0]}", f"{why}; this read is still open"
    if not verdict_stands(loaded.effective, now):
        return f"vla-rl prereg verdict {registration.id}", why
    return f"vla-rl prereg close {registration.id}", "the verdict is on record"


def _can_be_read(loaded: Loaded, read: str) -> bool:
    registration = loaded.registration
    rule = registration.read(read).rule
    needed = [registration.measurement(m) for m in rule.measurements()]
    return all(
        m.kind != "recorded" and loaded.state.completed(m.rung or "", arm.id) is not None
        for m in needed
        for arm in arms_of(registration, m)
    ) and all(name in loaded.state.reads for name in rule.reads())
