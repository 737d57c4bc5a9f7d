"""The linter: what is wrong with a registration before anything was run.

In: a registration. Out: findings, each with a place and a remedy; none if it can be launched as it is. Every check is
about something that has made a real experiment worthless: a wire that cannot fire, a baseline of another policy, seeds
that were trained on. Rules judge themselves (`Rule.impossible`); here is what only the whole document can show: its
names and variations; what would be run is in `lint_run`. Nothing is read from disk.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vla_rl.config.targets import allowed, targets
from vla_rl.errors import VlaRlError
from vla_rl.prereg import delta
from vla_rl.prereg.canonical import same
from vla_rl.prereg.document import Registration, arm_id, plain
from vla_rl.prereg.freezing import PLACE, effective_config, unfrozen
from vla_rl.prereg.lint_run import CHECKS, Finding

# Taken from the registered configuration when pins are taken: what an arm or a rung sets there would not be pinned.
PINNED = ("policy.checkpoint", "policy.revision", "policy.fast_tokenizer", "policy.fast_revision", "plugins")
_ID = re.compile(r"\w[\w.-]*")


def findings(registration: Registration) -> list[Finding]:
    """Everything that is wrong, in reading order."""
    found = [*_names(registration), *_references(registration)]
    if found:  # what follows looks names up
        return found
    found = [*_values(registration), *_variations(registration)]
    if found:
        return found
    found = [*_targets(registration)]
    for check in CHECKS:
        try:
            found += check(registration)
        except VlaRlError as error:  # of the configuration, when it is asked what it would do
            found.append(Finding(error.where or "config", error.what, error.remedy or "correct it before it is frozen"))
    return list(dict.fromkeys(found))


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
            if not _ID.fullmatch(name):
                yield Finding(where, f"{name!r} is no id", "use letters, digits, - and _")
    for label, times in Counter(arm.label for arm in r.arms).items():
        if times > 1:
            yield Finding("arms", f"{times} arms are called {label!r}", "give each its own label")
    if any(rung.id == "base" for rung in r.ladder):
        yield Finding("ladder", "base is what a rung starts from that starts from no other", "call the rung otherwise")
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


def _named_values(r: Registration) -> list[tuple[str, Mapping[str, Any]]]:
    """Everything that sets leaves of the configuration, and where it stands."""
    named: list[tuple[str, Mapping[str, Any]]] = [(f"arms[{arm.label}].set", arm.set) for arm in r.arms]
    named += [(f"ladder[{rung.id}].set", rung.set) for rung in r.ladder]
    named += [(f"fallbacks[{f.id}].set", f.set or {}) for f in r.fallbacks]
    return named + [("levers", {path: value}) for path, values in r.levers.items() for value in values]


def _values(r: Registration) -> Iterator[Finding]:
    """Nothing is looked up later, and nothing is brought in beside the pins."""
    looks: list[tuple[str, Any]] = [("claim.look", r.claim.look)]
    looks += [(f"measurements[{m.id}].look", m.look) for m in r.measurements]
    for where, value in [("config", r.config), *_named_values(r), *looks]:
        for path, text in unfrozen(value, where):
            yield Finding(path, f"{text!r} is not a value", "write what it stands for")
    for where, look in looks:
        if look is not None and not re.fullmatch(r"[\w-]+", look):
            yield Finding(where, f"{look!r} is no option of sim/look")
    for where, values in _named_values(r):
        for path in values:
            if path in PLACE:
                yield Finding(where, f"{path} is not registered: prereg launch chooses it", "take it out")
            if path in PINNED and not where.startswith("fallbacks"):
                what = f"{path} is pinned for the whole registration"
                yield Finding(where, what, "another policy needs a registration of its own")


def _variations(r: Registration) -> Iterator[Finding]:
    """Everything that names keys of the configuration names some that are there."""
    named = _named_values(r)
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
    document = plain(r)
    for allowance in r.allowances:
        for path in allowance.paths:
            try:
                delta.lookup(document, delta.read_path(path))
            except VlaRlError as error:
                yield Finding(f"allowances[{allowance.id}].paths", error.what, "name a path of the registration")
    for arm in r.arms:
        if arm.id != arm_id(arm.set):
            yield Finding(f"arms[{arm.label}].id", f"its id is {arm_id(arm.set)}, the digest of what it sets")
        for path, value in arm.set.items():
            if r.levers and not any(same(value, each) for each in r.levers.get(path, ())):
                yield Finding(
                    f"arms[{arm.label}].set", f"{path}={value!r} is no registered value of a lever", "add it to levers"
                )
    moved = {path for _, values in named for path in values}
    for path in r.invariance:
        if path in moved:
            yield Finding(
                "invariance", f"{path} is varied, so it cannot be without effect", "take it out of one of the two"
            )


def _targets(r: Registration) -> Iterator[Finding]:
    for where, values in [("config", r.config), *_named_values(r)]:
        for path, target in targets(values, where):
            if not allowed(target, r.config.get("plugins", [])):
                yield Finding(path, f"{target!r} is outside the allowed packages", "list its package under plugins")
