"""What an amendment costs: reads that confirm nothing any more, and runs that are no longer those that are registered.

In: the registration before and after, the operations between them. Out: ids. Nobody decides this: it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vla_rl.errors import ConfigError
from vla_rl.prereg.delta import Key, Op, Path, Record, diff, overlaps, read_path
from vla_rl.prereg.document import Registration
from vla_rl.prereg.registered import config_of
from vla_rl.prereg.sections import Rung

if TYPE_CHECKING:
    from vla_rl.prereg.amendments import Amendment, Effective


# What an evaluation of the base policy is made of, whatever is trained.
_BASE = tuple(read_path(path) for path in ("config.policy", "config.sim", "pins.checkpoint", "pins.codec"))


def exploratory_reads(before: Effective, after: Registration, ops: Sequence[Op], amendment: Amendment) -> list[str]:
    """Reads that confirm nothing any more once `ops` are in force, sorted.

    After outcomes were seen: every read that is new or whose question, rule, data, constants or exclusions changed;
    every primary read if the claim changed, or if something that could have spoken against it no longer can; and,
    unless a registered allowance or fallback covers it, every read of a trained policy if what is run changed, and
    every read of a base policy if another policy or another world takes the place of the one that was registered.
    """
    if amendment.data_seen != "outcomes" or amendment.kind == "clerical" or amendment.settles:
        return []
    hit: set[str] = set()
    covered = amendment.allowance is not None or amendment.fallback is not None
    if _decisive(before.registration) - _decisive(after) or any(op.path[0] == Key("claim") for op in ops):
        hit |= set(after.primaries())
    for read in after.reads:
        own = [*_touching(before.registration, read.id), *_touching(after, read.id)]
        if any(overlaps(op.path, path) for op in ops for path in own):
            hit.add(read.id)
        measured = [m for m in after.measurements if m.id in read.rule.measurements() and m.kind != "recorded"]
        changes = [op for op in ops if not covered and _changes_the_run(op, after)]
        if any(m.kind == "series" or m.policy == "trained" for m in measured) and changes:
            hit.add(read.id)
        if measured and any(overlaps(op.path, path) for op in changes for path in _BASE):
            hit.add(read.id)
    known = {read.id for read in before.registration.reads}
    hit |= {read.id for read in after.reads if read.id not in known}
    # A read of reads is as exploratory as they are.
    while True:
        more = {read.id for read in after.reads if hit & set(read.rule.reads())} - hit
        if not more:
            return sorted(hit)
        hit |= more


def _decisive(registration: Registration) -> set[tuple[str, ...]]:
    """What can speak against the claim: primary and guardrail reads, and falsifiers."""
    reads = {(read.id,) for read in registration.reads if read.role in ("primary", "guardrail")}
    return reads | {(f.id, f.read, f.fires_on) for f in registration.falsifiers}


def _touching(registration: Registration, read_id: str) -> list[Path]:
    """Everything that a read's outcome is defined by; nothing if there is no such read."""
    read = next((read for read in registration.reads if read.id == read_id), None)
    if read is None:
        return []
    needed = read.rule.measurements()
    paths: list[Path] = [(Key("reads"), Record(read_id))]
    paths += [(Key("measurements"), Record(name)) for name in needed]
    paths += [(Key("constants"), Key(name)) for name in read.rule.constants()]
    paths += [(Key("exclusions"), Record(e.id)) for e in registration.exclusions if e.measurement in needed]
    paths += [(Key("falsifiers"), Record(f.id)) for f in registration.falsifiers if f.read == read_id]
    return [*paths, read_path("claim.smallest_effect"), read_path("looks")]


def _changes_the_run(op: Op, registration: Registration) -> bool:
    if any(overlaps(op.path, (Key("config"), *read_path(path))) for path in registration.invariance):
        return False
    return op.path[0] in (Key("config"), Key("ladder"), Key("arms"), Key("levers"), Key("pins"))


def outdated(before: Registration, after: Registration) -> list[str]:
    """Runs, as rung/arm, that an amendment makes another of: a run that was made before is none of it any more. So is
    one that went on from such a run. What the invariance list names (as it stood before) makes no difference."""
    changed = []
    for rung in before.ladder:  # a rung starts from an earlier one
        for arm in before.arms:
            if f"{rung.starts_from}/{arm.id}" in changed or _is_another(before, after, rung, arm.id):
                changed.append(f"{rung.id}/{arm.id}")
    return changed


def _is_another(before: Registration, after: Registration, rung: Rung, arm: str) -> bool:
    try:
        now, start = config_of(after, rung.id, arm), after.rung(rung.id).starts_from
    except ConfigError:  # it is gone
        return True
    ops = diff({"config": config_of(before, rung.id, arm)}, {"config": now})
    return start != rung.starts_from or any(_changes_the_run(op, before) for op in ops)
