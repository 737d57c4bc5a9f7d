"""The linter's checks of what would be run: the claim and the run, measurements, seeds, rules, wires, budget.

In: a registration whose names and variations hold (`lint`). Out: findings.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from vla_rl.config.differences import differences
from vla_rl.config.schedule import evaluation_steps, training_seeds
from vla_rl.errors import ConfigError
from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import BASELINE
from vla_rl.prereg.metrics import misspelt
from vla_rl.prereg.registered import arms_of, config_of, context, metrics_of_the_claim
from vla_rl.prereg.rules import measured_for, reached
from vla_rl.prereg.rules.base import Rule
from vla_rl.prereg.rules.clustered import ClusterBootstrap
from vla_rl.prereg.rules.compound import AllOf, AnyOf
from vla_rl.prereg.rules.counts import BinomialTail
from vla_rl.prereg.sections import Measurement
from vla_rl.seeds import check_fresh, check_use, parse_seeds

FLOW = "flow"  # `vla_rl.policy.heads`, which lies below this layer
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


# -------------------------------------------------------------------------------------------------------------- the run
def _claim(r: Registration) -> Iterator[Finding]:
    head = r.config["policy"].get("serve_head")
    if r.claim.head != head:
        yield Finding("claim.head", f"the run trains the head {head!r}, the claim is about {r.claim.head!r}")
    if head == FLOW:
        what = "a run trains the token head, and its waves are drawn from it"
        yield Finding("config.policy.serve_head", what, "ar; a measurement may be of the other head (head: flow)")
    protocol = r.config["sim"].get("protocol")
    if r.claim.protocol != protocol:
        yield Finding("claim.protocol", f"the run plays {protocol!r}, the claim is about {r.claim.protocol!r}")
    if r.claim.direction == "none" and r.claim.smallest_effect is not None:
        yield Finding("claim.smallest_effect", "a claim without a direction has no smallest effect")
    metrics, rules = sorted(metrics_of_the_claim(r)), r.rules()
    asking = [name for name in reached(rules, *r.primaries()) if rules[name].measured_by_the_claim()]
    if r.claim.smallest_effect is not None and len(metrics) > 1 and asking:
        what = f"it is in the unit of the primary reads, and they look at {' and '.join(metrics)}"
        yield Finding("claim.smallest_effect", what, f"give {', '.join(asking)} an effect of their own")


def _guards(r: Registration) -> Iterator[Finding]:
    """No change in the other direction is no evidence of one in the claim's, and what is guarded is held against what
    it was itself before."""
    for name in r.primaries():
        if r.claim.direction != "none" and _passes_by_guards(r.rules(), name):
            what = f"a guard (requires: not_against) cannot carry a claim with the direction {r.claim.direction}"
            yield Finding(f"reads[{name}].rule", what, "make it a guardrail beside a primary read")
    anchors = {deferred.id: deferred.read for deferred in r.deferred}
    for name, rule in r.rules().items():
        if isinstance(rule, BinomialTail) and _is_guard(rule) and rule.rate in anchors:
            if differing := _differing(r, rule, r.read(anchors[str(rule.rate)]).rule):
                what = f"its anchor {rule.rate} is of another {' and '.join(differing)} than what is guarded"
                yield Finding(f"reads[{name}].rule", what, "read the anchor on the same scenes, in the same way")


def _is_guard(rule: Rule) -> bool:
    return getattr(rule, "requires", "beyond") != "beyond"


def _passes_by_guards(rules: Mapping[str, Rule], name: str, within: tuple[str, ...] = ()) -> bool:
    """Whether a read can pass although nothing but guards has; `within`: reads that led to it."""
    rule = rules.get(name)
    if rule is None or name in within:
        return False
    if isinstance(rule, AllOf):
        parts = [_passes_by_guards(rules, part, (*within, name)) for part in rule.of]
        return any(parts) if isinstance(rule, AnyOf) else all(parts)
    return _is_guard(rule)


def _differing(r: Registration, guard: BinomialTail, anchor: Any) -> list[str]:
    """In what the two look at other things; nothing if the anchor is no share of episodes that we play."""
    measurements = {m.id: m for m in r.measurements}
    after, before = measurements.get(guard.measurement), measurements.get(getattr(anchor, "measurement", ""))
    if after is None or before is None or after.kind != "evaluation" or before.kind != "evaluation":
        return []
    found = [
        key
        for key in ("seeds", "temperature", "head", "protocol", "look")
        if getattr(after, key) != getattr(before, key)
    ]
    return found + ["metric"] * (guard.metric != getattr(anchor, "metric", guard.metric))


def _unit(r: Registration) -> Iterator[Finding]:
    """A claim about training rests on reads over training seeds, which differ in nothing else."""
    if r.claim.unit == "training_seed":
        for name in r.primaries():
            if not isinstance(rule := r.read(name).rule, ClusterBootstrap):
                what = f"the claim is about training seeds, and {rule.KIND} says nothing of them"
                yield Finding(f"reads[{name}].rule", what, "use cluster_bootstrap, or claim.unit: episode")
    judged = context(r)
    for name, rule in r.rules().items():
        if isinstance(rule, ClusterBootstrap) and not rule.impossible(judged):
            where = f"reads[{name}].rule" if name in {read.id for read in r.reads} else f"gates[{name}].rule"
            yield from _training_seeds(r, rule, rule.arms(judged), where)


def _training_seeds(
    r: Registration, rule: ClusterBootstrap, pairs: Sequence[tuple[str | None, str | None]], where: str
) -> Iterator[Finding]:
    seeds = []
    for side, measurement in enumerate((rule.before, rule.after)):
        m = r.measurement(measurement)
        if m.kind == "evaluation" and m.policy == "base":
            continue
        arms = [pair[side] or BASELINE for pair in pairs]
        configs = [config_of(r, m.rung, arm) for arm in arms]
        seeds.append([config["run"]["seed"] for config in configs])
        for arm, config in zip(arms[1:], configs[1:], strict=True):
            more = [key for key in differences(configs[0], config) if key != "run.seed"]
            if more:
                what = f"{r.arm(arms[0]).label} and {r.arm(arm).label} differ in {more[0]}, not only in their run.seed"
                yield Finding(where, what, "name arms that are training seeds of one and the same run")
                return
    if any(len(set(each)) < len(each) for each in seeds) or len({tuple(each) for each in seeds}) > 1:
        told = " and ".join(", ".join(map(str, each)) for each in seeds)
        yield Finding(where, f"the runs that are paired have the training seeds {told}", "pair distinct, equal ones")


def _measurements(r: Registration) -> Iterator[Finding]:
    for m in r.measurements:
        where = f"measurements[{m.id}]"
        if m.kind == "series" and m.step is not None:
            steps = min(config_of(r, m.rung, arm.id)["run"]["steps"] for arm in arms_of(r, m))
            if not 1 <= m.step <= steps:
                yield Finding(f"{where}.step", f"a run of {steps} has no row {m.step}", f"1 to {steps}, or null")
        if m.kind == "series":
            continue
        other = [
            name for name in ("head", "look", "protocol") if getattr(m, name) not in (None, getattr(r.claim, name))
        ]
        if m.kind == "evaluation" and (m.head or r.claim.head) == FLOW and m.temperature:
            what = f"the flow head knows no temperature {m.temperature:g}"
            yield Finding(f"{where}.temperature", what, "temperature: 0.0")
        if m.kind == "evaluation" and m.played_by == "run":
            if other:
                own = "/".join(map(str, (r.claim.head, r.claim.protocol, r.claim.look)))
                what = f"the run trains and plays {own}, this asks for another {other[0]}"
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
    return set(measured_for(r.rules(), *r.primaries(), *(g.id for g in r.gates), *(f.read for f in r.falsifiers)))


def _seeds(r: Registration) -> Iterator[Finding]:
    trained = {
        seed: f"rung {rung.id}, arm {arm.label or arm.id}"
        for rung in r.ladder
        for arm in r.arms
        for seed in _stream(config_of(r, rung.id, arm.id))
    }
    primary = measured_for(r.rules(), *r.primaries())
    for m in r.measurements:
        if m.kind == "series" or (m.kind == "recorded" and m.seeds is None):
            continue
        where = f"measurements[{m.id}].seeds"
        try:
            seeds = parse_seeds(m.seeds or "")
            check_use(seeds, "eval", where=where)
            if m.id in primary:
                check_fresh(seeds, m.protocol or r.claim.protocol, where=where)
        except ConfigError as error:
            yield Finding(where, error.what, error.remedy or "choose other seeds")
            continue
        if shared := sorted(set(seeds) & trained.keys()):
            what = f"{len(shared)} seeds are trained on, first {shared[0]} ({trained[shared[0]]})"
            yield Finding(where, what, "move geometry.train_seed_base or the measurement")


def _stream(config: Mapping[str, Any]) -> range:
    geometry = config["geometry"]
    return training_seeds(geometry["train_seed_base"], geometry["seeds"], geometry["refill"], config["run"]["steps"])


def _demonstrations(r: Registration) -> Iterator[Finding]:
    """What an arm learns from is registered: a directory may hold anything by the time it is launched."""
    for rung, arm in itertools.product(r.ladder, r.arms):
        experience = config_of(r, rung.id, arm.id).get("experience") or {}  # older registrations have none
        if experience.get("demos") is not None and experience.get("recipe_sha256") is None:
            what = f"{arm.label or arm.id} learns from {experience['demos']}, and nothing says what must be in there"
            remedy = "set experience.recipe_sha256 as well; vla-rl demos prints it"
            yield Finding("config.experience.recipe_sha256", what, remedy)
            return


def _rules(r: Registration) -> Iterator[Finding]:
    judged = context(r)
    roles = {read.id: read.role for read in r.reads}
    for name, rule in r.rules().items():
        where = f"reads[{name}].rule" if name in roles else f"gates[{name}].rule"
        for why in rule.impossible(judged):
            yield Finding(where, why, "change the rule, or what it is measured on")
        many = [m for m in rule.measurements() if len(judged.planned[m].arms) > 1]
        if many and not isinstance(rule, ClusterBootstrap):
            what = f"{many[0]} is made for {len(judged.planned[many[0]].arms)} arms, and {rule.KIND} judges one run"
            yield Finding(where, what, "name one arm in the measurement, or use cluster_bootstrap")
        if rule.RECORD_ONLY and roles.get(name, "primary") in ("primary", "guardrail"):
            yield Finding(where, f"{rule.KIND} only records: it decides nothing", "role: record")


def _order(r: Registration) -> Iterator[Finding]:
    """What has to be judged before a rung can be judged before it."""
    order = {rung.id: i for i, rung in enumerate(r.ladder)}
    rules = r.rules()
    asked = [(f"gates[{g.id}].rule", g.id, order[g.before]) for g in r.gates]
    asked += [(f"deferred[{d.id}].read", d.read, order[d.by]) for d in r.deferred]
    asked += [
        (f"ladder[{rung.id}].proceed_if", name, order[rung.id] + 1) for rung in r.ladder for name in rung.proceed_if
    ]
    for where, name, at in asked:
        for m in sorted(measured_for(rules, name)):
            measured = r.measurement(m)
            made_by_a_run = measured.kind == "series" or (
                measured.kind == "evaluation" and (measured.policy == "trained" or measured.played_by == "run")
            )
            if made_by_a_run and order[measured.rung or ""] >= at:
                what = f"{name} needs {m}, which is measured on {measured.rung}, and that comes later"
                yield Finding(where, what, "measure it on an earlier rung")


def _wires(r: Registration) -> Iterator[Finding]:
    for rung, arm in itertools.product(r.ladder, r.arms):
        config = config_of(r, rung.id, arm.id)
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


def _looks(r: Registration) -> Iterator[Finding]:
    """Decisions on the same scenes after several numbers of updates are several looks."""
    looks: dict[tuple[str, int], set[tuple[str | None, int]]] = {}  # by arm and scene: where it is looked at
    for m in (r.measurement(name) for name in sorted(_decisive(r))):
        if m.kind == "evaluation" and m.policy == "trained":
            for arm in arms_of(r, m):
                after = m.step if m.step is not None else config_of(r, m.rung, arm.id)["run"]["steps"]
                for seed in parse_seeds(m.seeds or ""):
                    looks.setdefault((arm.id, seed), set()).add((m.rung, after))
    most = max(map(len, looks.values()), default=0)
    if most > r.looks.max:
        seeds = {seed for (_, seed), looked in looks.items() if len(looked) == most}
        told = f"the {len(seeds)} seeds from {min(seeds)} on"
        what = f"decisions rest on {most} looks at {told}, and {r.looks.max} is registered"
        yield Finding("looks.max", what, "register them, with sizes (alpha, level) that allow for so many")


def _family(r: Registration) -> Iterator[Finding]:
    if r.claim.family is None:
        return
    if not 0 < r.claim.family < 1:
        yield Finding("claim.family", f"{r.claim.family:g} is no size of a test", "0.05, or null for no adjustment")
    for name in r.primaries():
        rule, guard = r.read(name).rule, _is_guard(r.read(name).rule)
        if guard or not hasattr(rule, "alpha"):
            what = f"primary reads are adjusted for one another, and {'a guard' if guard else rule.KIND} has no p-value"
            yield Finding(f"reads[{name}].rule", what, "use mcnemar, sign_test or binomial_tail, or claim.family: null")


def _metrics(r: Registration) -> Iterator[Finding]:
    for name, metric, known in misspelt(r):
        close = get_close_matches(metric, known, n=1)
        remedy = f"did you mean {close[0]}?" if close else "docs/metrics.md and docs/training.md list them"
        yield Finding(f"{name}.rule.metric", f"no run writes {metric!r}", remedy)


CHECKS: tuple[Callable[[Registration], Iterator[Finding]], ...] = (
    _claim, _guards, _unit, _measurements, _seeds, _demonstrations, _rules, _order, _wires, _budget, _looks, _family,
    _metrics,
)  # fmt: skip
