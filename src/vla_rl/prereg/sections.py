"""The sections of a registration, typed, in reading order.

In: nothing. Out: frozen dataclasses with the defaults of a draft. Left out: the document that they make up, and how it
is read (`document`); what they have to do with one another (`lint`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vla_rl.prereg.rules import Rule
from vla_rl.prereg.watch import Probe


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
        head, look, protocol: policy head, option of `sim/look` and protocol, where they are not the claim's: of an
            evaluation that `prereg read` plays, or of what is handed in.
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
    protocol: str | None = None


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
