"""What a registration says of one rung, arm or measurement: the questions that everybody asks of it.

In: a registration. Out: the configuration of a run, the arms of a measurement, the context that rules are judged in.
Nothing is read from disk.
"""

from __future__ import annotations

from typing import Any

from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import BASELINE
from vla_rl.prereg.freezing import effective_config
from vla_rl.prereg.rules import Context, Planned, reached
from vla_rl.prereg.sections import Arm, Measurement, Rung
from vla_rl.seeds import parse_seeds


def config_of(registration: Registration, rung: str | None, arm: str | None) -> dict[str, Any]:
    """The configuration that an arm runs with on a rung."""
    return effective_config(registration.config, registration.rung(rung).set, registration.arm(arm).set)


def label_of(registration: Registration, arm: str) -> str:
    """What people call an arm; one that an amendment took away, by its id."""
    return next((each.label for each in registration.arms if each.id == arm), arm)


def arms_of(registration: Registration, measurement: Measurement) -> list[Arm]:
    """Whose runs a measurement is made of; a base policy is that of the baseline, unless an arm is named."""
    if measurement.kind == "evaluation" and measurement.policy == "base" and measurement.arm is None:
        return [registration.arm(None)]
    return registration.arms if measurement.arm == "*" else [registration.arm(measurement.arm)]


def context(registration: Registration, **more: Any) -> Context:
    """What is registered, as rules see it; `more`: evidence, outcomes, the arm that is judged."""
    planned = {m.id: _planned(registration, m) for m in registration.measurements}
    return Context(
        planned=planned,
        constants=registration.constants,
        direction=None if registration.claim.direction == "none" else registration.claim.direction,
        smallest_effect=registration.claim.smallest_effect,
        effect_of=frozenset(metrics_of_the_claim(registration)),
        rules={read.id: read.rule for read in registration.reads},
        **more,
    )


def metrics_of_the_claim(registration: Registration) -> set[str]:
    """What its smallest effect is about: the metric of its primary reads; of several, those of reads that name no
    effect of their own."""
    rules = registration.rules()
    deciding = [vars(rules[name]) for name in reached(rules, *registration.primaries()) if not rules[name].RECORD_ONLY]
    looking = [rule for rule in deciding if "metric" in rule]
    metrics = {rule["metric"] for rule in looking}
    return metrics if len(metrics) == 1 else {rule["metric"] for rule in looking if rule.get("effect") is None}


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
        steps = config["run"]["steps"] if measurement.step is None else measurement.step
        return Planned("series", steps=steps, episodes=wave, arms=arms)
    return Planned("recorded", seeds=parse_seeds(measurement.seeds) if measurement.seeds else (), arms=arms)


def rung_before(r: Registration, rung: Rung) -> Rung | None:
    """The rung whose boundary has to be passed first."""
    at = r.ladder.index(rung)
    return r.ladder[at - 1] if at else None
