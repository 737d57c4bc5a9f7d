"""A registration and its draft: what the sections make up, read strictly and written back.

In: plain data of `registration.yaml`, or of the draft that it is frozen from. Out: `Registration` or `Draft`. Defaults
are those of a draft; what is frozen states everything. Rules are a closed set of kinds (`rules.RULES`). Left out: the
sections themselves (`sections`), and what they have to do with one another (`lint`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vla_rl.errors import ConfigError
from vla_rl.prereg.canonical import SCHEMA, SHORT, digest
from vla_rl.prereg.decode import decode_file
from vla_rl.prereg.evidence import BASELINE
from vla_rl.prereg.exclusions import Exclusion
from vla_rl.prereg.rules import RULES, Rule
from vla_rl.prereg.sections import (
    Activation,
    Allowance,
    AnchorRule,
    Arm,
    Budget,
    Claim,
    Deferred,
    Fallback,
    Gate,
    Looks,
    Measurement,
    Meta,
    Pins,
    Read,
    Rung,
    Watching,
)
from vla_rl.prereg.verdict import Falsifier

MAIN = "main"  # the only rung where no ladder is registered
REGISTRATION, DRAFT_FILE, REPORT = "registration.yaml", "draft.yaml", "REPORT.md"


@dataclass(frozen=True)
class Body:
    """What a draft and a registration have in common."""

    summary: str
    claim: Claim
    reads: list[Read]
    measurements: list[Measurement]
    levers: dict[str, list[Any]] = field(default_factory=dict)
    arms: list[Arm] = field(default_factory=list)
    constants: dict[str, float | int | None] = field(default_factory=dict)
    deferred: list[Deferred] = field(default_factory=list)
    falsifiers: list[Falsifier] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    allowances: list[Allowance] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    ladder: list[Rung] = field(default_factory=list)
    invariance: list[str] = field(default_factory=list)
    exclusions: list[Exclusion] = field(default_factory=list)
    looks: Looks = field(default_factory=Looks)
    activation: Activation = field(default_factory=Activation)
    watch: Watching = field(default_factory=Watching)
    anchor: AnchorRule = field(default_factory=AnchorRule)


@dataclass(frozen=True, kw_only=True)
class Draft(Body):
    """`draft.yaml`, what a person writes."""

    title: str
    author: str


@dataclass(frozen=True, kw_only=True)
class Registration(Body):
    """`registration.yaml`, with all amendments that are in force."""

    meta: Meta
    pins: Pins
    config: dict[str, Any]

    @property
    def id(self) -> str:
        return self.meta.id

    def rung(self, name: str | None) -> Rung:
        """By id; None is the first.

        Raises:
            ConfigError: there is none.
        """
        return self.ladder[0] if name is None else _find(self.ladder, name, "rung", "ladder")

    def arm(self, name: str | None) -> Arm:
        """By id or label; None is the baseline.

        Raises:
            ConfigError: there is none.
        """
        if name is None:
            name = BASELINE
        named = [arm for arm in self.arms if name in (arm.id, arm.label)]
        return named[0] if named else _find(self.arms, name, "arm", "arms")

    def measurement(self, name: str) -> Measurement:
        return _find(self.measurements, name, "measurement", "measurements")

    def read(self, name: str) -> Read:
        return _find(self.reads, name, "read", "reads")

    def primaries(self) -> list[str]:
        return [read.id for read in self.reads if read.role == "primary"]

    def rules(self) -> dict[str, Rule]:
        """Rules of reads and gates, by id."""
        return {item.id: item.rule for item in (*self.reads, *self.gates)}


ORDER = (
    "meta", "summary", "pins", "claim", "config", "levers", "arms", "constants", "deferred", "measurements", "reads",
    "falsifiers", "fallbacks", "allowances", "gates", "budget", "ladder", "invariance", "exclusions", "looks",
    "activation", "watch", "anchor",
)  # fmt: skip


def read_draft(value: Any, where: str) -> Draft:
    """A draft from plain data.

    Raises:
        ConfigError: a key or value that a draft cannot have.
    """
    return _located(Draft, value, where)


def read_registration(value: Any, where: str) -> Registration:
    """A registration from plain data.

    Raises:
        ConfigError: a key or value that a registration cannot have, or another version of this format.
    """
    meta = value.get("meta") if isinstance(value, Mapping) else None
    version = meta.get("schema") if isinstance(meta, Mapping) else None
    if type(version) is not int or version != SCHEMA:
        raise ConfigError(
            f"this registration has format {version!r}, this version reads {SCHEMA}",
            where=f"{where}: meta.schema",
            remedy="use the version of vla_rl that it names in meta.tool_version",
        )
    return _located(Registration, value, where)


def plain(instance: Any) -> Any:
    """A dataclass as plain data, with the kind of each rule; `decode` gives it back."""
    if dataclasses.is_dataclass(instance) and not isinstance(instance, type):
        own = {field.name: plain(getattr(instance, field.name)) for field in dataclasses.fields(instance)}
        kind = next((kind for kind, rule in RULES.items() if type(instance) is rule), None)
        return own if kind is None else {"kind": kind, **own}
    if isinstance(instance, Mapping):
        return {name: plain(item) for name, item in instance.items()}
    if isinstance(instance, list | tuple):
        return [plain(item) for item in instance]
    return instance


def arm_id(values: Mapping[str, Any]) -> str:
    """Digest of a variation: the same changes have the same id in every registration."""
    return digest("arm", dict(values))[:SHORT] if values else BASELINE


def _located(schema: type, value: Any, where: str) -> Any:
    return decode_file(schema, value, where, _choose)


def _choose(schema: type, value: Mapping[str, Any], where: str) -> type:
    if schema is not Rule:
        return schema
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in RULES:
        raise ConfigError(f"{kind!r} is no kind of rule", where=f"{where}.kind", remedy=f"kinds: {', '.join(RULES)}")
    return RULES[kind]


def _find(items: Sequence[Any], name: str, what: str, where: str) -> Any:
    for item in items:
        if item.id == name:
            return item
    known = ", ".join(item.id for item in items) or "none"
    raise ConfigError(f"there is no {what} {name!r}", where=where, remedy=f"registered: {known}")
