"""From a draft and a composed configuration to the registration that is frozen: everything stated, nothing left open.

In: a `Draft`, a resolved configuration, pins, facts about the author. Out: the plain document of `registration.yaml`.
What a draft leaves away is filled in from the configuration here, once, so that no default can change it later. Left
out: composing (`config`), judging what was filled in (`lint`), writing it (`folder`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vla_rl.errors import ConfigError
from vla_rl.prereg import delta
from vla_rl.prereg.document import MAIN, ORDER, Body, Draft, arm_id, plain
from vla_rl.prereg.evidence import BASELINE
from vla_rl.prereg.rules import Rule
from vla_rl.prereg.rules.clustered import ClusterBootstrap
from vla_rl.prereg.sections import Arm, Measurement, Meta, Pins, Rung

# Where a run lies and how long a launch may take are not what is registered.
PLACE = ("run.dir", "run.resume", "run.max_wall_s")
MAX_ARMS = 1000


def document(draft: Draft, config: Mapping[str, Any], meta: Meta, pins: Pins) -> dict[str, Any]:
    """The registration as plain data, sections in reading order.

    Raises:
        ConfigError: a value that nothing fills in, or one that a frozen file cannot hold.
    """
    _check_place(config)
    tree = json.loads(json.dumps(config, allow_nan=False))
    body = complete(draft, tree)
    sections = {**plain(body), "meta": plain(meta), "pins": plain(pins), "config": tree}
    return {name: sections[name] for name in ORDER}


def complete(draft: Body, config: Mapping[str, Any]) -> Body:
    """The draft with nothing left open: arms of the levers with their ids, one rung if there is no ladder, and the
    seeds and temperatures of the configuration where a measurement names none."""
    ladder = draft.ladder or [Rung(MAIN)]
    measurements = [_measurement(m, config, ladder[-1].id) for m in draft.measurements]
    gates = [replace(gate, before=gate.before or ladder[0].id) for gate in draft.gates]
    arms = _arms(draft)
    reads = [replace(read, rule=_by_id(read.rule, arms)) for read in draft.reads]
    return replace(draft, ladder=ladder, measurements=measurements, arms=arms, gates=gates, reads=reads)


def _by_id(rule: Rule, arms: Sequence[Arm]) -> Rule:
    """A rule about arms, which a draft may call by their labels, as their ids do not exist yet."""
    if not isinstance(rule, ClusterBootstrap):
        return rule
    ids = {arm.label: arm.id for arm in arms}
    before, after = ([ids.get(name, name) for name in names] for names in (rule.before_arms, rule.after_arms))
    return replace(rule, before_arms=before, after_arms=after)


def _measurement(measurement: Measurement, config: Mapping[str, Any], last_rung: str) -> Measurement:
    rung = measurement.rung or last_rung
    if measurement.kind != "evaluation":
        return replace(measurement, rung=rung)
    held_out = config["eval"]
    seeds = measurement.seeds if measurement.seeds is not None else held_out["seeds"]
    temperature = measurement.temperature if measurement.temperature is not None else held_out["temperature"]
    step = 0 if measurement.policy == "base" and measurement.played_by == "run" else measurement.step
    return replace(measurement, seeds=seeds, temperature=temperature, rung=rung, step=step)


def _arms(draft: Body) -> list[Arm]:
    """The explicit arms, or the product of the levers; the baseline first."""
    listed = [replace(arm, id=arm_id(arm.set)) for arm in draft.arms]
    if not listed and draft.levers:
        count = 1
        for values in draft.levers.values():
            count *= len(values)
        if count > MAX_ARMS:
            raise ConfigError(f"the levers make {count} arms", where="levers", remedy=f"at most {MAX_ARMS}")
        names = list(draft.levers)
        for values in itertools.product(*draft.levers.values()):
            chosen = dict(zip(names, values, strict=True))
            listed.append(Arm(arm_id(chosen), _label(chosen), chosen))
    named = [arm if arm.label else replace(arm, label=_label(arm.set)) for arm in listed if arm.set]
    return [Arm(BASELINE, BASELINE, {}), *named]


def _label(values: Mapping[str, Any]) -> str:
    return " ".join(f"{path.rpartition('.')[2]}={json.dumps(value)}" for path, value in values.items())


def effective_config(config: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the leaves of a rung, an arm, ... set, one after the other.

    Raises:
        ConfigError: a leaf that it does not have.
    """
    tree = dict(config)
    for values in changes:
        tree = delta.apply(delta.set_values(tree, values, where="config"), tree)
    return tree


def unfrozen(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, text) of what means something else tomorrow: interpolations and missing values."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from unfrozen(item, f"{path}.{name}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from unfrozen(item, f"{path}[{i}]")
    elif isinstance(value, str) and ("${" in value or value == "???"):
        yield path, value


def _check_place(config: Mapping[str, Any]) -> None:
    """Refuse a place."""
    for path in PLACE:
        if delta.lookup(config, delta.read_path(path)) is not None:
            raise ConfigError(
                "where a run lies and how long a launch may take are not registered",
                where=path,
                remedy="leave it away; prereg launch chooses the directory",
            )
