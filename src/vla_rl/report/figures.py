"""The figures of a registration's report: which there are, what is under them, in which order they are told.

In: a registration as it stands and the evidence that its ledger knows of. Out: files by name, and the Markdown that
shows them. The same evidence gives the same bytes. Left out: films, which are played (`beforeafter`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vla_rl.prereg.folder import Loaded
from vla_rl.prereg.reported import DIRECTORY
from vla_rl.report import curves, funnel, intervals
from vla_rl.report.opened import Found, opened


@dataclass(frozen=True)
class Figures:
    """What was drawn.

    Attributes:
        files: content by path from the folder of the registration.
        funnel: rows of the table.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    funnel: Sequence[funnel.Row] = ()

    def show(self, name: str, alt: str) -> Iterator[str]:
        """Markdown lines of a figure, if there is one of that name."""
        path = f"{DIRECTORY}/{name}.svg"
        if path in self.files:
            yield from ("", f"![{alt}]({path})")


def draw(loaded: Loaded, found: Found) -> Figures:
    """Every figure for which there is something to draw."""
    registration, files = loaded.registration, {}
    seen = opened(registration, found)
    trained, evaluated = curves.training(registration, seen), curves.held_out(registration, seen)
    if trained or evaluated:
        files["curves"] = curves.figure(trained, evaluated, registration.id)
    if known := intervals.rows(loaded, seen):
        recorded = sum(read.id in loaded.state.reads for read in registration.reads)
        files["intervals"] = intervals.figure(known, registration.id, recorded)
    if told := funnel.rows(seen):
        files["funnel"] = funnel.figure(told, registration.id)
    return Figures({f"{DIRECTORY}/{name}.svg": data for name, data in files.items()}, told)
