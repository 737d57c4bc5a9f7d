"""The verdict on a claim, by one fixed order of precedence.

In: the claim, outcomes of its reads with their roles, its falsifiers, what made the run invalid or halted it. Out:
`Verdict` and its sentence. Pure: no file, no clock, no choice. The order:

1. INVALID: a gate or an exclusion invalidates the run, or evidence that counts may not be judged.
2. REFUTED: a falsifier fired.
3. INCONCLUSIVE: the run was halted, or a primary read is missing.
4. REFUTED: a primary read fails.
5. INCONCLUSIVE: a primary read shows neither, or what it shows does not survive the family's adjustment; a primary,
   guardrail or falsifier read is exploratory, or of a run that is not the registered one any more; a guardrail does not
   pass; a falsifier was not read; the reads do not cover the claim's unit.
6. SUPPORTED.

An exploratory read neither supports nor refutes, but it stands in the way: a read cannot be amended out of the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from vla_rl.prereg.outcome import Outcome
from vla_rl.stats.holm import holm

Role = Literal["primary", "secondary", "guardrail", "record"]
Word = Literal["SUPPORTED", "REFUTED", "INCONCLUSIVE", "INVALID"]
WORDS: tuple[Word, ...] = get_args(Word)


@dataclass(frozen=True)
class Falsifier:
    """A read that refutes the claim whatever else passes.

    Attributes:
        id: its name.
        read: id of the read.
        fires_on: outcome that refutes.
        text: what it means.
    """

    id: str
    read: str
    fires_on: Literal["PASS", "FAIL"]
    text: str


@dataclass(frozen=True)
class Claimed:
    """What the verdict's sentence is about.

    Attributes:
        hypothesis: one sentence.
        unit: what the claim generalises over: episodes of one checkpoint, training seeds, or nothing but the data that
            an instrument was checked on.
        protocol, head: of the evaluation.
        family: size (alpha) at which the primary reads must hold as a family, adjusted by Holm; None: each by itself.
        scenes: how many environment seeds its primary reads are evaluated on; None where that is not known.
        handed_in: what it rests on that was not played here, in words; empty where everything was.
    """

    hypothesis: str
    unit: Literal["episode", "training_seed", "instrument"] = "episode"
    protocol: str | None = None
    head: str | None = None
    family: float | None = None
    scenes: int | None = None
    handed_in: str = ""


@dataclass(frozen=True)
class Judged:
    """A read with its outcome.

    Attributes:
        id: of the read.
        role: primary and guardrail reads decide; the others are told.
        outcome: what it found.
        exploratory: an amendment changed it after outcomes were seen.
        outdated: an amendment has since made another run of the one that it is about.
    """

    id: str
    role: Role
    outcome: Outcome
    exploratory: bool = False
    outdated: bool = False


@dataclass(frozen=True)
class Verdict:
    """The verdict.

    Attributes:
        verdict: one word.
        sentence: what it says, of what and over what.
        reasons: everything that led to it, most important first; empty if SUPPORTED.
        adjusted: p-values of primary reads after Holm's adjustment, if there is a family.
    """

    verdict: Word
    sentence: str
    reasons: tuple[str, ...] = ()
    adjusted: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "reasons": list(self.reasons), "adjusted": dict(self.adjusted)}


def judge_claim(
    claim: Claimed,
    reads: Sequence[Judged],
    falsifiers: Sequence[Falsifier] = (),
    *,
    faults: Sequence[str] = (),
    halted: str | None = None,
) -> Verdict:
    """Judge.

    Args:
        claim: what is claimed.
        reads: every registered read.
        falsifiers: every registered falsifier.
        faults: why the run is invalid: a gate that did not hold, an armed wire that fired, too many exclusions.
        halted: why the run ended before its plan; None if it did not.
    """
    by_id = {read.id: read for read in reads}
    primaries = [read for read in reads if read.role == "primary"]
    counting = [read for read in primaries if not read.exploratory]
    adjusted = _adjusted(claim, counting)
    fired = [f for f in falsifiers if _fires(f, by_id.get(f.read))]
    decisive = {*(read.id for read in reads if read.role in ("primary", "guardrail")), *(f.read for f in falsifiers)}
    unjudgeable = [
        f"{read.id}: {read.outcome.sentence}"
        for read in reads
        if read.id in decisive and not read.exploratory and read.outcome.status == "INVALID"
    ]
    missing = [f"{read.id}: {read.outcome.sentence}" for read in counting if read.outcome.status == "MISSING"]
    steps: tuple[tuple[Word, list[str]], ...] = (
        ("INVALID", [*faults, *unjudgeable]),
        ("REFUTED", [f"the falsifier {f.id} fired ({f.text}): {by_id[f.read].outcome.sentence}" for f in fired]),
        ("INCONCLUSIVE", [f"the run was halted: {halted}"] if halted is not None else []),
        ("INCONCLUSIVE", missing or ([] if counting else ["no primary read counts"])),
        ("REFUTED", [f"{read.id}: {read.outcome.sentence}" for read in counting if read.outcome.status == "FAIL"]),
        ("INCONCLUSIVE", _in_the_way(claim, reads, falsifiers, adjusted)),
    )
    supported: tuple[Word, list[str]] = ("SUPPORTED", [])
    word, reasons = next((step for step in steps if step[1]), supported)
    return Verdict(word, _sentence(word, claim, counting, reasons), tuple(reasons), adjusted)


def _fires(falsifier: Falsifier, read: Judged | None) -> bool:
    return read is not None and not read.exploratory and read.outcome.status == falsifier.fires_on


def _adjusted(claim: Claimed, counting: Sequence[Judged]) -> dict[str, float]:
    return {} if claim.family is None else holm({r.id: r.outcome.p for r in counting if r.outcome.p is not None})


def _in_the_way(
    claim: Claimed, reads: Sequence[Judged], falsifiers: Sequence[Falsifier], adjusted: Mapping[str, float]
) -> list[str]:
    """Why a claim whose primary reads are there, and do not fail, is not supported."""
    found = []
    for read in (read for read in reads if read.role in ("primary", "guardrail")):
        if read.exploratory:
            found.append(f"the {read.role} read {read.id} was changed after outcomes were seen")
        elif read.outcome.status != "PASS":
            found.append(f"the {read.role} read {read.id} is {read.outcome.status}: {read.outcome.sentence}")
        elif read.outdated:
            found.append(f"the {read.role} read {read.id} is of a run that an amendment has since made another of")
        elif read.role == "primary" and claim.family is not None:
            p = adjusted.get(read.id)
            if p is None:
                found.append(f"{read.id} has no p-value that could be adjusted for its family")
            elif p > claim.family:
                found.append(f"{read.id} has p = {p:.4g} after Holm's adjustment, above {claim.family:g}")
    by_id = {read.id: read for read in reads}
    for falsifier in falsifiers:
        read = by_id.get(falsifier.read)
        if read is None or read.outcome.status == "MISSING":
            found.append(f"the falsifier {falsifier.id} was not read")
        elif read.exploratory:
            found.append(f"the read of the falsifier {falsifier.id} was changed after outcomes were seen")
        elif read.outdated and read.role not in ("primary", "guardrail"):
            found.append(f"the read of the falsifier {falsifier.id} is of a run that is another now")
    if claim.unit == "training_seed" and _training_seeds(reads) < 2:
        found.append("the claim is about training seeds, and its primary reads cover one")
    return found


def _training_seeds(reads: Sequence[Judged]) -> int:
    """Fewest training seeds that a primary read covers."""
    covered = [r.outcome.details.get("training_seeds", 1) for r in reads if r.role == "primary" and not r.exploratory]
    return min(covered, default=0)


def _sentence(word: Word, claim: Claimed, counting: Sequence[Judged], reasons: Sequence[str]) -> str:
    hypothesis = claim.hypothesis.strip().rstrip(".")
    if word == "INVALID":
        return f"INVALID, nothing is said about: {hypothesis}. {reasons[0]}"
    told = f"{word} {_scope(claim, counting)}: {hypothesis}."
    told = f"{told} {reasons[0][0].upper()}{reasons[0][1:]}" if reasons else told
    return f"{told.rstrip('.')}. {claim.handed_in}" if claim.handed_in else told


def _scope(claim: Claimed, counting: Sequence[Judged]) -> str:
    """What the verdict is about, no wider than the unit of analysis."""
    under = ", ".join(
        part for part in (claim.protocol, f"{claim.head} head" if claim.head is not None else None) if part is not None
    )
    setting = f" ({under})" if under else ""
    if claim.unit == "training_seed":
        return f"over {_training_seeds(counting)} training seeds{setting}"
    if claim.unit == "instrument":
        return f"for this instrument on what it was checked on{setting}"
    scenes = "its" if claim.scenes is None else f"these {claim.scenes}"
    return f"for this checkpoint on {scenes} scenes{setting}"
