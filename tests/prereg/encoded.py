"""Encoded registrations, judged again with one number of their evidence moved.

A published decision that was only written down would not notice. What is judged is what is stored: the registration
with its amendments and `evidence/*.json`, by the same function as `vla-rl prereg read`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.folder import Folder, Loaded
from vla_rl.prereg.judging import evidence_files, gate_decision, judge
from vla_rl.prereg.outcome import Outcome

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
Found = Mapping[tuple[str, str | None], Evidence]
Move = Callable[[Evidence], Evidence]


@dataclass(frozen=True)
class Encoded:
    """A registration as it lies in `experiments/`, with its evidence."""

    loaded: Loaded
    evidence: Found

    @property
    def registration(self) -> Registration:
        return self.loaded.registration

    def outcome(self, name: str, moves: Mapping[str, Move] | None = None) -> Outcome:
        """A read or gate, judged anew.

        Args:
            moves: by measurement, what is changed in its evidence beforehand.
        """
        found = dict(self.evidence)
        for measurement, move in (moves or {}).items():
            keys = [key for key in found if key[0] == measurement]
            assert len(keys) == 1, f"{measurement} has {len(keys)} pieces of evidence"
            found[keys[0]] = move(found[keys[0]])
        return judge(self.registration, found, name)

    def decision(self, name: str, moves: Mapping[str, Move] | None = None) -> str:
        """What follows from it: a gate's PASS, BAND or ABORT; of a read its status; of one that decides nothing its
        number."""
        outcome = self.outcome(name, moves)
        if name in {gate.id for gate in self.registration.gates}:
            return gate_decision(outcome)
        rule = self.registration.read(name).rule
        return f"{outcome.estimate:g}" if rule.RECORD_ONLY and outcome.estimate is not None else outcome.status

    def recorded(self, name: str) -> str | None:
        """As `decision`, as the ledger has it; None: it was never read."""
        state = self.loaded.state
        if name in state.gates:
            return state.gates[name]["decision"]
        if name not in state.reads:
            return None
        outcome = Outcome.from_record(state.reads[name]["outcome"])
        rule = self.registration.read(name).rule
        return f"{outcome.estimate:g}" if rule.RECORD_ONLY and outcome.estimate is not None else outcome.status


@cache
def encoded(id: str) -> Encoded:
    """Read once; everything is checked against the ledger on the way."""
    folder = Folder(EXPERIMENTS, id)
    loaded = folder.load_as_written()
    return Encoded(loaded, evidence_files(folder, loaded.entries))


# ---------------------------------------------------------------------------------------------------- moving one number
def row(step: int, key: str, value: float | None) -> Move:
    """Another value of a key in a row of a series."""
    return lambda e: replace(e, rows=tuple({**r, key: value} if r["step"] == step else r for r in e.rows))


def count(metric: str, k: int, n: int | None = None) -> Move:
    """Another count."""
    return lambda e: replace(e, counts={**e.counts, metric: (k, e.counts[metric][1] if n is None else n)})


def number(name: str, value: float) -> Move:
    """Another recorded number."""
    return lambda e: replace(e, numbers={**e.numbers, name: value})


def episode(seed: int, key: str, value: Any) -> Move:
    """Another value of a metric of one episode."""
    return lambda e: replace(e, episodes=tuple({**r, key: value} if r["seed"] == seed else r for r in e.episodes))


def played(measurement: str, seeds: Sequence[int], **metrics: float) -> Evidence:
    """Evidence of a measurement that was never played, the same in every episode."""
    return Evidence(measurement, None, "episodes", episodes=tuple({"seed": seed, **metrics} for seed in seeds))
