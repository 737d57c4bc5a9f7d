"""The linter: what is wrong with a registration before anything was run.

In: a registration. Out: findings, each with a place and a remedy; none if it can be launched as it is. Every check is
about something that has made a real experiment worthless: a wire that cannot fire, a baseline of another policy, seeds
that were trained on. Rules judge themselves (`Rule.impossible`); here is what only the whole document can show. Nothing
is read from disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vla_rl.config.schedule import evaluation_steps, training_seeds
from vla_rl.errors import ConfigError, VlaRlError
from vla_rl.prereg import delta
from vla_rl.prereg.document import BASELINE, Arm, Measurement, Registration, Rung, arm_id
from vla_rl.prereg.freezing import effective_config
from vla_rl.prereg.rules import Context, Planned
from vla_rl.seeds import check_fresh, check_use, parse_seeds

WIRES_IN_A_ROW = ("collapse", "knockaway", "setback")


@dataclass(frozen=True)
class Finding:
    """Something that must be put right.

    Attributes:
        where: path in the document.
        what: in words.
        remedy: what to do.
    """

    where: str
    what: str
    remedy: str = "correct it before it is frozen"


def findings(registration: Registration) -> list[Finding]:
    """Everything that is wrong, in reading order."""
    found = [*_names(registration), *_references(registration)]
    if found:  # what follows looks names up
        return found
    found = [*_variations(registration)]
    if found:
        return found
    checks: tuple[Callable[[Registration], Iterator[Finding]], ...] = (
        _claim, _measurements, _seeds, _rules, _wires, _budget, _targets,
    )  # fmt: skip
    return [finding for check in checks for finding in check(registration)]


def config_of(registration: Registration, rung: str | None, arm: str | None) -> dict[str, Any]:
    """The configuration that an arm runs with on a rung."""
    return effective_config(registration.config, registration.rung(rung).set, registration.arm(arm).set)


def arms_of(registration: Registration, measurement: Measurement) -> list[Arm]:
    """Whose runs a measurement is made of; a base policy has no arms."""
    if measurement.kind == "evaluation" and measurement.policy == "base":
        return [registration.arm(None)]
    return registration.arms if measurement.arm == "*" else [registration.arm(measurement.arm)]


def context(registration: Registration, **more: Any) -> Context:
    """What is registered, as rules see it; `more`: evidence, outcomes, the arm that is judged."""
    planned = {m.id: _planned(registration, m) for m in registration.measurements}
    return Context(
        planned=planned,
        constants=registration.constants,
        direction="decrease" if registration.claim.direction == "decrease" else "increase",
        smallest_effect=registration.claim.smallest_effect,
        rules={read.id: read.rule for read in registration.reads},
        **more,
    )


def evidence_arm(arm: Arm) -> str | None:
    """How evidence names an arm: the baseline has no name."""
    return None if arm.id == BASELINE else arm.id


def _planned(registration: Registration, measurement: Measurement) -> Planned:
    arms = tuple(evidence_arm(arm) for arm in arms_of(registration, measurement))
    if measurement.kind == "evaluation":
        return Planned("evaluation", seeds=parse_seeds(measurement.seeds or ""), arms=arms)
    if measurement.kind == "series":
        config = config_of(registration, measurement.rung, None)
        wave = config["geometry"]["seeds"] * config["geometry"]["draws"]
        return Planned("series", steps=config["run"]["steps"], episodes=wave, arms=arms)
    return Planned("recorded", arms=arms)


# --------------------------------------------------------------------------------------------------------- the document
def _names(r: Registration) -> Iterator[Finding]:
    groups: dict[str, Iterable[Any]] = {
        "reads and gates": (*r.reads, *r.gates), "measurements": r.measurements, "ladder": r.ladder,
        "falsifiers": r.falsifiers, "fallbacks": r.fallbacks, "allowances": r.allowances, "exclusions": r.exclusions,
        "activation.checklist": r.activation.checklist, "deferred": r.deferred, "arms": r.arms,
    }  # fmt: skip
    for where, items in groups.items():
        for name, times in Counter(item.id for item in items).items():
            if times > 1:
                yield Finding(where, f"the id {name!r} is given to {times} of them", "give each its own")
            if not name or any(character in name for character in '[]"/@ \n'):
                yield Finding(where, f"{name!r} is no id", "use letters, digits, - and _")
    for label, times in Counter(arm.label for arm in r.arms).items():
        if times > 1:
            yield Finding("arms", f"{times} arms are called {label!r}", "give each its own label")
    if not r.primaries():
        yield Finding("reads", "no read is primary: nothing would decide", "give one of them role: primary")


def _references(r: Registration) -> Iterator[Finding]:
    reads, rungs, measured = (
        {read.id for read in r.reads},
        [rung.id for rung in r.ladder],
        {m.id for m in r.measurements},
    )
    needed: list[tuple[str, str, str, Iterable[str]]] = []
    for name, rule in r.rules().items():
        needed += [(f"{name}.rule", "measurement", each, measured) for each in rule.measurements()]
        needed += [(f"{name}.rule", "read", each, reads) for each in rule.reads()]
        needed += [(f"{name}.rule", "constant", each, r.constants) for each in rule.constants()]
    needed += [(f"falsifiers[{f.id}].read", "read", f.read, reads) for f in r.falsifiers]
    needed += [(f"gates[{g.id}].before", "rung", g.before, rungs) for g in r.gates]
    needed += [(f"deferred[{d.id}]", "constant", d.id, r.constants) for d in r.deferred]
    needed += [(f"deferred[{d.id}].read", "read", d.read, reads) for d in r.deferred]
    needed += [(f"deferred[{d.id}].by", "rung", d.by, rungs) for d in r.deferred]
    needed += [
        (f"exclusions[{e.id}]", "measurement", e.measurement, {m.id for m in r.measurements}) for e in r.exclusions
    ]
    needed += [(f"budget.expected.{name}", "rung", name, rungs) for name in r.budget.expected]
    for i, rung in enumerate(r.ladder):
        needed += [(f"ladder[{rung.id}].proceed_if", "read", each, reads) for each in rung.proceed_if]
        needed.append((f"ladder[{rung.id}].starts_from", "earlier rung", rung.starts_from, ["base", *rungs[:i]]))
    arms = {name for arm in r.arms for name in (arm.id, arm.label)}
    for m in r.measurements:
        needed.append((f"measurements[{m.id}].rung", "rung", m.rung or "", rungs))
        if m.arm not in (None, "*"):
            needed.append((f"measurements[{m.id}].arm", "arm", m.arm or "", arms))
    for where, what, name, known in needed:
        if name not in known:
            yield Finding(where, f"there is no {what} {name!r}", f"registered: {', '.join(known) or 'none'}")
    for constant, value in r.constants.items():
        if value is None and all(d.id != constant for d in r.deferred):
            yield Finding(
                f"constants.{constant}", "it has no value and is not deferred", "set it, or add it to deferred"
            )


def _variations(r: Registration) -> Iterator[Finding]:
    """Everything that names keys of the configuration names some that are there."""
    named: list[tuple[str, Mapping[str, Any]]] = [(f"arms[{arm.label}].set", arm.set) for arm in r.arms]
    named += [(f"ladder[{rung.id}].set", rung.set) for rung in r.ladder]
    named += [(f"fallbacks[{f.id}].set", f.set or {}) for f in r.fallbacks]
    named += [("levers", {path: value}) for path, values in r.levers.items() for value in values]
    for where, values in named:
        try:
            effective_config(r.config, values)
        except VlaRlError as error:
            yield Finding(where, error.what, error.remedy or "name a key of config")
            return
    for path in r.invariance:
        try:
            delta.lookup(r.config, delta.read_path(path))
        except VlaRlError as error:
            yield Finding("invariance", error.what, "name a key of config")
    for arm in r.arms:
        if arm.id != arm_id(arm.set):
            yield Finding(f"arms[{arm.label}].id", f"its id is {arm_id(arm.set)}, the digest of what it sets")
        for path, value in arm.set.items():
            if r.levers and not any(_equal(value, each) for each in r.levers.get(path, ())):
                yield Finding(
                    f"arms[{arm.label}].set", f"{path}={value!r} is no registered value of a lever", "add it to levers"
                )
    moved = {path for _, values in named for path in values}
    for path in r.invariance:
        if path in moved:
            yield Finding(
                "invariance", f"{path} is varied, so it cannot be without effect", "take it out of one of the two"
            )


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


# -------------------------------------------------------------------------------------------------------------- the run
def _claim(r: Registration) -> Iterator[Finding]:
    head = r.config["policy"].get("serve_head")
    if r.claim.head != head:
        yield Finding("claim.head", f"the run trains the head {head!r}, the claim is about {r.claim.head!r}")
    protocol = r.config["sim"].get("protocol")
    if r.claim.protocol != protocol:
        yield Finding("claim.protocol", f"the run plays {protocol!r}, the claim is about {r.claim.protocol!r}")
    if r.claim.direction == "none" and r.claim.smallest_effect is not None:
        yield Finding("claim.smallest_effect", "a claim without a direction has no smallest effect")


def _measurements(r: Registration) -> Iterator[Finding]:
    for m in r.measurements:
        where = f"measurements[{m.id}]"
        if m.kind != "evaluation":
            continue
        other = [name for name in ("head", "look") if getattr(m, name) not in (None, getattr(r.claim, name))]
        if m.played_by == "run":
            if other:
                what = f"the run trains and renders {r.claim.head}/{r.claim.look}, this asks for another {other[0]}"
                yield Finding(f"{where}.{other[0]}", what, "played_by: read")
            yield from _played_by_run(r, m, where)
        if other and m.id in _decisive(r):
            what = f"a primary read, a gate or a falsifier rests on another {other[0]} than the claim's"
            yield Finding(f"{where}.{other[0]}", what, "measure what is trained, or make the read a guardrail")


def _played_by_run(r: Registration, m: Measurement, where: str) -> Iterator[Finding]:
    for arm in arms_of(r, m):
        config = config_of(r, m.rung, arm.id)
        held_out, steps = config["eval"], config["run"]["steps"]
        if parse_seeds(m.seeds or "") != parse_seeds(held_out["seeds"]):
            yield Finding(f"{where}.seeds", f"the run evaluates {held_out['seeds']}, not {m.seeds}", "played_by: read")
        if m.temperature != held_out["temperature"]:
            what = f"the run evaluates at temperature {held_out['temperature']}, not {m.temperature}"
            yield Finding(f"{where}.temperature", what, "played_by: read")
        played = evaluation_steps(steps, held_out["every"], held_out["at_steps"])
        if m.step is not None and m.step not in played:
            what = f"the run evaluates after {', '.join(map(str, sorted(played)))} updates, not after {m.step}"
            yield Finding(f"{where}.step", what, "set eval.every or eval.at_steps")
        if m.policy == "base" and m.step != 0:
            yield Finding(f"{where}.step", "the base policy is the one before the first update", "step: 0")


def _decisive(r: Registration) -> set[str]:
    """Measurements that primary reads, gates and falsifiers rest on, also through other reads."""
    rules = r.rules()
    todo = [*r.primaries(), *(g.id for g in r.gates), *(f.read for f in r.falsifiers)]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += rules[name].reads()
    return {m for name in seen for m in rules[name].measurements()}


def _seeds(r: Registration) -> Iterator[Finding]:
    trained = {
        seed: f"rung {rung.id}, arm {arm.label or arm.id}"
        for rung in r.ladder
        for arm in r.arms
        for seed in _stream(config_of(r, rung.id, arm.id))
    }
    primary = {m for read in r.reads if read.role == "primary" for m in read.rule.measurements()}
    for m in r.measurements:
        if m.kind != "evaluation":
            continue
        where = f"measurements[{m.id}].seeds"
        try:
            seeds = parse_seeds(m.seeds or "")
            check_use(seeds, "eval", where=where)
            if m.id in primary:
                check_fresh(seeds, r.claim.protocol, where=where)
        except ConfigError as error:
            yield Finding(where, error.what, error.remedy or "choose other seeds")
            continue
        if shared := sorted(set(seeds) & trained.keys()):
            what = f"{len(shared)} seeds are trained on, first {shared[0]} ({trained[shared[0]]})"
            yield Finding(where, what, "move geometry.train_seed_base or the measurement")


def _stream(config: Mapping[str, Any]) -> range:
    geometry = config["geometry"]
    return training_seeds(geometry["train_seed_base"], geometry["seeds"], geometry["refill"], config["run"]["steps"])


def _rules(r: Registration) -> Iterator[Finding]:
    judged = context(r)
    roles = {read.id: read.role for read in r.reads}
    for name, rule in r.rules().items():
        where = f"reads[{name}].rule" if name in roles else f"gates[{name}].rule"
        for why in rule.impossible(judged):
            yield Finding(where, why, "change the rule, or what it is measured on")
        if rule.RECORD_ONLY and roles.get(name, "primary") in ("primary", "guardrail"):
            yield Finding(where, f"{rule.KIND} only records: it decides nothing", "role: record")
    if cycle := _cycle(r):
        yield Finding("reads", f"these reads need one another: {' -> '.join(cycle)}", "break the circle")
    for i, rung in enumerate(r.ladder):
        later = {each.id for each in r.ladder[i + 1 :]}
        for name in rung.proceed_if:
            for m in (r.measurement(m) for m in _needs(r, name)):
                if m.rung in later and m.kind != "recorded":
                    what = f"the read {name} needs {m.id}, which is measured on the later rung {m.rung}"
                    yield Finding(f"ladder[{rung.id}].proceed_if", what, "measure it on this rung")


def _needs(r: Registration, read: str) -> set[str]:
    rule = r.read(read).rule
    return {*rule.measurements(), *(m for inner in rule.reads() for m in _needs(r, inner))}


def _cycle(r: Registration) -> list[str] | None:
    rules = {read.id: read.rule for read in r.reads}

    def walk(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        return next((found for inner in rules[name].reads() if (found := walk(inner, [*path, name]))), None)

    return next((found for name in rules if (found := walk(name, []))), None)


def _wires(r: Registration) -> Iterator[Finding]:
    for rung in r.ladder:
        config = config_of(r, rung.id, None)
        steps, wires = config["run"]["steps"], config["tripwires"]
        captured = wires["knockaway_baseline"] is None
        needed = {wire: wires[f"{wire}_waves"] + (wire == "knockaway" and captured) for wire in WIRES_IN_A_ROW}
        needed["divergence"] = wires["divergence_waves"]
        for wire, waves in needed.items():
            if wires[wire] == "armed" and waves > steps:
                what = f"the armed wire {wire} needs {waves} waves, and the rung {rung.id} has {steps}: it cannot fire"
                yield Finding(f"config.tripwires.{wire}", what, f"ladder[{rung.id}].set: {{tripwires.{wire}: record}}")


def _budget(r: Registration) -> Iterator[Finding]:
    pools = {unit: getattr(r.budget, unit) for unit in ("gpu_h", "wall_h") if getattr(r.budget, unit) is not None}
    if not pools:
        yield Finding("budget", "there is no limit", "give gpu_h or wall_h")
    for unit, pool in pools.items():
        total = 0.0
        for rung in r.ladder:
            cost = r.budget.expected.get(rung.id)
            hours = getattr(cost, unit) if cost else None
            if hours is None:
                what = f"nobody has said what the rung {rung.id} should cost"
                yield Finding(f"budget.expected.{rung.id}.{unit}", what, "vla-rl plan forecasts it")
                continue
            total += hours * len(r.arms)
        if total > pool:
            what = f"the plan needs {total:g} {unit} ({len(r.arms)} arms), the pool holds {pool:g}"
            yield Finding(f"budget.{unit}", what, "a larger pool, or fewer arms, rungs or steps")


def _targets(r: Registration) -> Iterator[Finding]:
    allowed = ("vla_rl", *r.config.get("plugins", []))

    def walk(value: Any, path: str) -> Iterator[Finding]:
        if isinstance(value, Mapping):
            target = value.get("_target_")
            if target is not None and not any(str(target).startswith(f"{name}.") for name in allowed):
                yield Finding(
                    f"{path}._target_", f"{target!r} is outside the allowed packages", "list it under plugins"
                )
            for name, item in value.items():
                yield from walk(item, f"{path}.{name}")

    yield from walk(r.config, "config")


def rung_before(r: Registration, rung: Rung) -> Rung | None:
    """The rung whose boundary has to be passed first."""
    at = r.ladder.index(rung)
    return r.ladder[at - 1] if at else None
