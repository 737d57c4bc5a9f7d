"""Which held-out evaluations of a run are sealed: those that a registered read still rests on.

In: what a run's manifest says of its registration, and the registration as it stands. Out: a `Seal`. It is opened by
`vla-rl prereg read` and by nothing else; where the registration cannot be asked, everything that it might rest on stays
sealed. Left out: evidence, which is never sealed, because it is what was opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_rl.errors import VlaRlError
from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import BASELINE
from vla_rl.prereg.folder import Folder, Loaded
from vla_rl.prereg.registered import arms_of
from vla_rl.prereg.sections import Measurement
from vla_rl.seeds import parse_seeds


@dataclass(frozen=True)
class Seal:
    """What of a run must not be told.

    Attributes:
        why: in words; empty: nothing is sealed.
        opened: numbers of updates whose evaluation is open all the same.
    """

    why: str = ""
    opened: frozenset[int] = frozenset()

    def hides(self, step: int) -> bool:
        """Whether the evaluation after so many updates is sealed."""
        return bool(self.why) and step not in self.opened


def seal_of(registered: Mapping[str, Any], seeds: str | None, experiments: Path) -> Seal:
    """The seal of a run.

    Args:
        registered: as `manifest.json` has it; empty: a run of its own, of which nothing is sealed.
        seeds: that the run evaluates on, e.g. ``300-319``.
        experiments: where registrations are.
    """
    if not registered:
        return Seal()
    try:
        loaded = Folder(experiments, str(registered.get("id"))).load()
        if not _same_ledger(loaded, registered):
            return _closed(registered, f"the ledger in {experiments} is not the one that launched it")
        return by_reads(loaded, registered, seeds)
    except VlaRlError as error:
        return _closed(registered, f"its registration cannot be asked: {error.what}")


def _closed(registered: Mapping[str, Any], why: str) -> Seal:
    """Where nobody can be asked, what the launch said: a manifest that does not say counts as sealed."""
    return Seal() if registered.get("sealed") is False else Seal(why)


def _same_ledger(loaded: Loaded, registered: Mapping[str, Any]) -> bool:
    known = registered.get("ledger")
    if not isinstance(known, Mapping) or type(known.get("line")) is not int:
        return False
    at = known["line"] - 1
    return 0 <= at < len(loaded.entries) and loaded.entries[at].hash == known.get("hash")


def by_reads(loaded: Loaded, registered: Mapping[str, Any], seeds: str | None) -> Seal:
    """The seal by what is on record; arguments as of `seal_of`."""
    registration, rung, arm = loaded.registration, registered.get("rung"), registered.get("arm")
    ours = None if arm == BASELINE else arm
    looked = {(e.data["measurement"], e.data["arm"]) for e in loaded.entries if e.event == "look"}
    concerning = [m for m in registration.measurements if _concerns(registration, m, rung, arm, seeds)]
    pending = [m for m in concerning if not _opened(m, ours, looked)]
    if not pending:
        return Seal()
    opened = {
        step for m in concerning if _opened(m, ours, looked) and (step := _step(m, loaded, registered)) is not None
    }
    return Seal(f"not read yet: {', '.join(m.id for m in pending)}", frozenset(opened))


def _concerns(registration: Registration, m: Measurement, rung: Any, arm: Any, seeds: str | None) -> bool:
    """Whether what a run evaluates on the way is, or may be, what a measurement is about."""
    if m.kind != "evaluation" or (m.policy == "trained" and m.rung != rung):
        return False
    others = {each.id for each in registration.arms} - {each.id for each in arms_of(registration, m)}
    if m.policy == "trained" and arm in others:  # one that an amendment took away may have been any
        return False
    return m.played_by == "run" or bool(set(_seeds(m.seeds)) & set(_seeds(seeds)))


def _seeds(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(parse_seeds(text)) if text else ()
    except VlaRlError:
        return ()


def _opened(m: Measurement, arm: str | None, looked: set[tuple[str, str | None]]) -> bool:
    """Of a base that is measured once, whichever run has played it: it is one policy. Else of this arm."""
    once = m.policy == "base" and m.arm != "*"
    return any(name == m.id for name, _ in looked) if once else (m.id, arm) in looked


def _step(m: Measurement, loaded: Loaded, registered: Mapping[str, Any]) -> int | None:
    if m.policy == "base":
        return 0
    if m.step is not None:
        return m.step
    attempt = next((a for a in loaded.state.attempts if a.number == registered.get("attempt")), None)
    return (attempt.end or {}).get("step") if attempt else None
