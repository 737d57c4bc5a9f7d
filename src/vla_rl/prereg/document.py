"""What a registration holds, typed: the sections, in reading order.

In: plain data of `registration.yaml`, or of the draft that it is frozen from. Out: frozen dataclasses. Defaults are
those of a draft; what is frozen states everything. Rules are a closed set of kinds (`rules.RULES`). Left out: what the
sections have to do with one another (`lint`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vla_rl.errors import ConfigError
from vla_rl.prereg.canonical import SCHEMA, SHORT, digest
from vla_rl.prereg.decode import decode_file
from vla_rl.prereg.evidence import BASELINE
from vla_rl.prereg.exclusions import Exclusion
from vla_rl.prereg.rules import RULES, Rule
from vla_rl.prereg.verdict import Falsifier
from vla_rl.prereg.watch import Probe

MAIN = "main"  # the only rung where no ladder is registered
REGISTRATION, DRAFT_FILE, REPORT = "registration.yaml", "draft.yaml", "REPORT.md"


@dataclass(frozen=True)
class ComposedFrom:
    """What the configuration was composed from; for information, it is never composed again."""

    primary: str
    overrides: list[str]


@dataclass(frozen=True)
class Meta:
    """Who, when, with what."""

    schema: int
    id: str
    title: str
    author: str
    created_utc: str
    tool_version: str
    composed_from: ComposedFrom


@dataclass(frozen=True)
class CodePins:
    """Trees as git names them, over the bytes on the disk; the commit is where to look, the trees are what counts."""

    package_tree: str
    conf_tree: str
    lock_sha256: str | None
    base_commit: str | None
    plugins: dict[str, str]


@dataclass(frozen=True)
class FilePins:
    """A checkpoint or an action codec: its name, its commit on a hub, and SHA-256 of every file."""

    name: str
    revision: str | None
    files: dict[str, str]


@dataclass(frozen=True)
class EnvironmentPins:
    """What else decides what runs: variables that matter, and start-up hooks of the interpreter by content."""

    variables: dict[str, str | None]
    hooks: dict[str, str]


@dataclass(frozen=True)
class Pins:
    """Everything that a number may depend on."""

    code: CodePins
    checkpoint: FilePins | None
    codec: FilePins | None
    robot: FilePins
    packages: dict[str, str | None]
    environment: EnvironmentPins
    command: list[str]
    draft_sha256: str | None


@dataclass(frozen=True)
class Claim:
    """What is claimed, about what, and what would be worth knowing.

    Attributes:
        hypothesis: one sentence.
        direction: of the effect.
        smallest_effect: that would matter, in the unit of the primary reads; power is computed for it.
        unit: what varies at random: episodes of one checkpoint, or training runs with their own seeds; instrument:
            nothing does, and the claim is about what was compared.
        population: tasks and scenes that the claim is about, in words.
        head: policy head that is trained, e.g. ``ar``.
        protocol: of the simulator.
        look: option of the group `sim/look`.
        data_seen: what the authors had seen when they wrote this.
        family: size (alpha, such as 0.05) at which the primary reads must hold as a family, adjusted for one another
            by Holm; null where there is one, or where each must pass by itself.
    """

    hypothesis: str
    direction: Literal["increase", "decrease", "none"]
    smallest_effect: float | None
    unit: Literal["episode", "training_seed", "instrument"]
    population: str
    head: str
    protocol: str
    look: str
    data_seen: str
    family: float | None = None


@dataclass(frozen=True)
class Arm:
    """A registered variation.

    Attributes:
        id: ``baseline``, or the first hex digits of the digest of `set`; filled in when frozen.
        label: a name for people.
        set: leaf of the configuration -> value.
    """

    id: str = ""
    label: str = ""
    set: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Deferred:
    """A constant that is not known yet: the read that it will come from, and the rung before which it must be set."""

    id: str
    read: str
    by: str


@dataclass(frozen=True)
class Measurement:
    """Data that reads are computed from.

    Attributes:
        id: name.
        kind: evaluation (episodes on seeds), series (rows of `train.jsonl`) or recorded (handed in as a file).
        policy: of an evaluation: the one before training, or the trained one.
        played_by: of an evaluation: the training run itself, or `prereg read`.
        step: updates after which; null: the last. Of a series: its rows up to this one; null: all.
        seeds: e.g. ``300-319``; null in a draft: those of the configuration. Of a recorded one the scenes that it has
            to cover; null: not known.
        temperature: of an evaluation; null in a draft: that of the configuration.
        arm: whose run: an arm's id or label, ``*`` for every arm, null for the baseline.
        rung: whose run; null in a draft: the last.
        head, look: policy head and option of `sim/look`, where they are not the claim's: of an evaluation that
            `prereg read` plays, or of what is handed in.
    """

    id: str
    kind: Literal["evaluation", "series", "recorded"] = "evaluation"
    policy: Literal["base", "trained"] = "trained"
    played_by: Literal["run", "read"] = "run"
    step: int | None = None
    seeds: str | None = None
    temperature: float | None = None
    arm: str | None = None
    rung: str | None = None
    head: str | None = None
    look: str | None = None


@dataclass(frozen=True)
class Read:
    """A question that is answered by rule.

    Attributes:
        role: primary reads decide; guardrails must hold; secondary ones inform; record only notes.
        never_pool: its numbers must not be pooled with another read's.
    """

    id: str
    role: Literal["primary", "secondary", "guardrail", "record"]
    question: str
    rule: Rule
    never_pool: bool = False


@dataclass(frozen=True)
class Gate:
    """Evidence without which a rung may not begin.

    Attributes:
        before: rung; empty in a draft: the first.
        rule: PASS, BAND or ABORT by `bands`; another rule's PASS passes and anything else aborts.
        override: whether a BAND may be overridden, with a reason that is recorded. An ABORT never may.
    """

    id: str
    text: str
    rule: Rule
    before: str = ""
    override: bool = False


@dataclass(frozen=True)
class Fallback:
    """A retreat that was thought of beforehand: values to set, or (null) only as a new registration."""

    id: str
    text: str
    set: dict[str, Any] | None = None


@dataclass(frozen=True)
class Allowance:
    """Changes that are allowed so many times without making a read exploratory."""

    id: str
    text: str
    times: int
    paths: list[str]


@dataclass(frozen=True)
class Cost:
    """GPU-hours and hours; null where it is not counted."""

    gpu_h: float | None = None
    wall_h: float | None = None


@dataclass(frozen=True)
class Budget:
    """One pool for all rungs, arms, retries and evaluations; `expected`: what a launch of each rung should cost."""

    gpu_h: float | None = None
    wall_h: float | None = None
    expected: dict[str, Cost] = field(default_factory=dict)


@dataclass(frozen=True)
class Rung:
    """A stage of the run.

    Attributes:
        set: leaves of the configuration in which it differs.
        starts_from: ``base``, or the rung whose last checkpoint it goes on from.
        proceed_if: reads that must PASS at its boundary, or the next rung is not launched.
    """

    id: str
    set: dict[str, Any] = field(default_factory=dict)
    starts_from: str = "base"
    proceed_if: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Looks:
    """After how many numbers of updates decisions may look at trained policies on the same scene."""

    max: int = 1


@dataclass(frozen=True)
class CheckItem:
    """Something that has to be done before the registration is active."""

    id: str
    text: str


@dataclass(frozen=True)
class Activation:
    """Checklist, and hours in which anybody may object."""

    checklist: list[CheckItem] = field(default_factory=list)
    objection_h: float = 0.0


@dataclass(frozen=True)
class AnchorRule:
    """Whether the commit that brought the registration must carry a good signature."""

    signed: bool = False


@dataclass(frozen=True)
class Watching:
    """What somebody who looks after a run should see at once; nothing here ends it.

    Attributes:
        cadence_s: how often somebody means to look.
        stale_s: seconds without a sign of life from which on the run counts as stale.
        vram_max_gib: largest memory of any step.
        probe: a key of `train.jsonl` that must not be below a value from some step on.
    """

    cadence_s: float = 1800.0
    stale_s: float = 1800.0
    vram_max_gib: float | None = None
    probe: Probe | None = None


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
