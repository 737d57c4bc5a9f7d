"""Amendments: numbered changes of a registration, what they may change, and which reads they cost.

In: the effective registration so far, operations, and what had been seen when they were written. Out: an `Amendment`
and the registration with it. A change of a read after its outcomes were seen is legal and makes that read exploratory
for good; nobody decides that, it follows from the operations. Left out: files (`folder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from vla_rl.errors import ConfigError, UsageError
from vla_rl.prereg.canonical import digest, same
from vla_rl.prereg.decode import decode_file
from vla_rl.prereg.delta import Key, Op, apply, overlaps, read_path, write_path
from vla_rl.prereg.document import Registration, read_registration
from vla_rl.prereg.effects import exploratory_reads
from vla_rl.prereg.registered import arms_of

KINDS = ("clerical", "operational", "scientific")
SEEN = ("none", "training", "outcomes")
CLOSED = ("meta", "claim.hypothesis", "claim.direction")
# What a clerical amendment may touch: words.
_WORDS = {"summary", "title", "text", "question", "label"}


@dataclass(frozen=True)
class Amendment:
    """`amendments/NN.yaml`.

    Attributes:
        number: from 1.
        registration: id.
        parent, result: digests of the effective registration before and after.
        kind: clerical (words), operational (how it is run) or scientific.
        reason: why.
        data_seen: what had been seen: nothing, training curves, or outcomes of reads.
        allowance, fallback: registered ones that it makes use of.
        settles: a deferred constant whose value it sets.
        ops: changes, as stored.
        effects: reads that it makes exploratory.
    """

    number: int
    registration: str
    parent: str
    result: str
    author: str
    created_utc: str
    kind: Literal["clerical", "operational", "scientific"]
    reason: str
    data_seen: Literal["none", "training", "outcomes"]
    ops: list[dict[str, Any]]
    effects: list[str] = field(default_factory=list)
    allowance: str | None = None
    fallback: str | None = None
    settles: str | None = None

    def operations(self) -> list[Op]:
        return [Op.read(op) for op in self.ops]


@dataclass(frozen=True)
class Effective:
    """A registration with its amendments.

    Attributes:
        plain: the document.
        registration: the same, typed.
        amendments: in order.
        exploratory: reads that confirm nothing any more, with the number of the amendment that made them so.
    """

    plain: Mapping[str, Any]
    registration: Registration
    amendments: tuple[Amendment, ...] = ()
    exploratory: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Of the document as it is in force."""
        return digest("registration", dict(self.plain))

    @cached_property
    def config_digest(self) -> str:
        """Of its configuration alone: words that change do not orphan a checkpoint."""
        return digest("config", self.registration.config)

    def used(self, allowance: str) -> int:
        """How often an allowance has been made use of."""
        return sum(amendment.allowance == allowance for amendment in self.amendments)


def start(document: Mapping[str, Any], where: str) -> Effective:
    """The registration as it was frozen.

    Raises:
        ConfigError: it is none.
    """
    return Effective(dict(document), read_registration(document, where))


def extend(before: Effective, amendment: Amendment, where: str) -> Effective:
    """The registration with one more amendment; everything that it states of itself is derived again.

    Raises:
        ConfigError: it does not follow, or what it states is not so.
    """
    if amendment.registration != before.registration.id or amendment.number != len(before.amendments) + 1:
        raise ConfigError(
            f"it is amendment {amendment.number} of {amendment.registration}, not number "
            f"{len(before.amendments) + 1} of {before.registration.id}",
            where=f"{where}: number, registration",
        )
    if amendment.parent != before.digest:
        raise ConfigError("it was made for another state of the registration", where=f"{where}: parent")
    after, effects = _amended(before, amendment, where)
    if amendment.result != after.digest:
        raise ConfigError("its changes do not lead to the digest that it states", where=f"{where}: result")
    if effects != amendment.effects:
        raise ConfigError(f"it states the effects {amendment.effects}, they are {effects}", where=f"{where}: effects")
    exploratory = {**dict.fromkeys(effects, amendment.number), **before.exploratory}
    return Effective(after.plain, after.registration, (*before.amendments, amendment), exploratory)


def propose(before: Effective, ops: Sequence[Op], **facts: Any) -> Amendment:
    """The next amendment, with its digests and effects.

    Args:
        facts: `author`, `created_utc`, `kind`, `reason`, `data_seen`, and what else it makes use of.

    Raises:
        ConfigError: the changes do not fit, or they lead to no registration.
        UsageError: a closed path, or something that the kind may not change.
    """
    if not ops:
        raise UsageError("the amendment changes nothing", where="--set", remedy="name a value that differs")
    draft = Amendment(
        number=len(before.amendments) + 1,
        registration=before.registration.id,
        parent=before.digest,
        result="",
        ops=[op.plain() for op in ops],
        **facts,
    )
    after, effects = _amended(before, draft, "amendment")
    return replace(draft, result=after.digest, effects=effects)


def _amended(before: Effective, amendment: Amendment, where: str) -> tuple[Effective, list[str]]:
    """What the operations of an amendment lead to, and the reads that they cost.

    Raises:
        ConfigError: the operations do not fit, or they lead to no registration.
        UsageError: something that no amendment may change, or none of its kind, or none that is made so late.
    """
    ops = amendment.operations()
    check_policy(before, amendment, ops)
    after = start(apply(ops, before.plain), where)
    _check_arms(before.registration, after.registration)
    if amendment.data_seen == "outcomes":
        _check_excuses(before.registration, after.registration)
    return after, exploratory_reads(before, after.registration, ops, amendment)


def read_amendment(value: Any, where: str) -> Amendment:
    """An amendment from plain data.

    Raises:
        ConfigError: it is none.
    """
    return decode_file(Amendment, value, where)


def check_policy(before: Effective, amendment: Amendment, ops: Sequence[Op]) -> None:
    """Refuse what no amendment may change, and what this kind of amendment may not.

    Raises:
        UsageError: naming the path.
    """
    for op in ops:
        text = write_path(op.path)
        for closed in CLOSED:
            if overlaps(op.path, read_path(closed)):
                raise UsageError(
                    f"{text} is closed for good",
                    where=text,
                    remedy="another hypothesis is another registration: vla-rl prereg new, then supersede this one",
                )
        last = op.path[-1]
        if amendment.kind == "clerical" and not (isinstance(last, Key) and last.name in _WORDS and op.op == "set"):
            raise UsageError(
                f"a clerical amendment changes words, and {text} is none", where=text, remedy="--kind operational"
            )
    _check_allowance(before, amendment, ops)
    _check_fallback(before, amendment, ops)
    _check_settlement(before, amendment, ops)


def _check_arms(before: Registration, after: Registration) -> None:
    """A measurement is of the arm that it names: a label that goes over to another arm does not take it along."""
    for was in before.measurements:
        now = next((m for m in after.measurements if m.id == was.id), None)
        if now is None or now.arm != was.arm or was.arm in (None, "*"):
            continue
        if [arm.id for arm in arms_of(before, was)] != [arm.id for arm in arms_of(after, now)]:
            raise UsageError(
                f"{was.arm} would be another arm than the one that {was.id} is of",
                where=f"measurements[{was.id}].arm",
                remedy=f"leave the label, or set measurements[{was.id}].arm, which has its price",
            )


def _check_excuses(before: Registration, after: Registration) -> None:
    """What lets a run be changed without a price was chosen before outcomes were seen, or it is none."""
    chosen = _excuses(before)
    for where, name, content in _excuses(after):
        if not any(same([where, name, content], list(each)) for each in chosen):
            raise UsageError(
                f"{name}: what excuses a change is not widened after outcomes were seen",
                where=where,
                remedy="make the change itself; it makes exploratory what it touches",
            )


def _excuses(registration: Registration) -> list[tuple[str, str, Any]]:
    return [
        *(("invariance", path, None) for path in registration.invariance),
        *(("allowances", each.id, [each.times, each.paths]) for each in registration.allowances),
        *(("fallbacks", each.id, each.set) for each in registration.fallbacks),
    ]


def _check_allowance(before: Effective, amendment: Amendment, ops: Sequence[Op]) -> None:
    if amendment.allowance is None:
        return
    registered = {allowance.id: allowance for allowance in before.registration.allowances}
    allowance = registered.get(amendment.allowance)
    if allowance is None:
        raise UsageError(
            f"no allowance {amendment.allowance!r} is registered",
            where="allowances",
            remedy=f"registered: {', '.join(registered) or 'none'}",
        )
    if before.used(allowance.id) >= allowance.times:
        raise UsageError(
            f"the allowance {allowance.id} is for {allowance.times} times, and it is used up", where="allowances"
        )
    granted = [read_path(path) for path in allowance.paths]
    for op in ops:
        if not any(op.path[: len(path)] == path for path in granted):
            raise UsageError(
                f"the allowance {allowance.id} does not cover {write_path(op.path)}",
                where="allowances",
                remedy=f"it covers {', '.join(allowance.paths)}",
            )


def _check_fallback(before: Effective, amendment: Amendment, ops: Sequence[Op]) -> None:
    if amendment.fallback is None:
        return
    registered = {fallback.id: fallback for fallback in before.registration.fallbacks}
    fallback = registered.get(amendment.fallback)
    if fallback is None or fallback.set is None:
        what = "is only as a new registration" if fallback else "is not registered"
        raise UsageError(f"the fallback {amendment.fallback!r} {what}", where="fallbacks")
    stated = {f"config.{path}": value for path, value in fallback.set.items()}
    made = {write_path(op.path): op.after for op in ops}
    if not same(made, stated):
        raise UsageError(
            f"the fallback {fallback.id} sets {stated}, this amendment {made}",
            where="fallbacks",
            remedy="leave --set away: --fallback alone sets what was registered",
        )


def _check_settlement(before: Effective, amendment: Amendment, ops: Sequence[Op]) -> None:
    settled = (Key("constants"), Key(amendment.settles)) if amendment.settles else None
    for op in ops:
        if settled is not None and op.path != settled:
            raise UsageError("settling a constant changes nothing else", where=write_path(op.path))
    if settled is None:
        return
    if all(deferred.id != amendment.settles for deferred in before.registration.deferred):
        raise UsageError(f"the constant {amendment.settles} is not deferred", where="deferred")
    if before.registration.constants.get(amendment.settles or "") is not None:
        raise UsageError(f"the constant {amendment.settles} is set already", where="constants")
