"""What a report is made of, before anybody decides how it looks.

In: nothing. Out: frozen blocks. HTML, Markdown, CSV and the figures of a paper are drawn from the same page, so that
they cannot tell different things. Text is plain text here: escaping belongs to whoever writes it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from vla_rl.report.page.plots import Forest, Plot, Stages

Cell = str | int | float | bool | None
Tone = Literal["plain", "good", "bad", "open", "warning"]


@dataclass(frozen=True)
class Table:
    """Rows of values; numbers stay numbers until they are written out.

    Attributes:
        name: of its CSV file, letters, digits, ``-`` and ``_``.
        caption: what it shows; empty where a heading says it.
        folded: shown only when a reader asks for it.
    """

    name: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Facts:
    """Names with their values, in words."""

    pairs: Sequence[tuple[str, str]]

    @property
    def long(self) -> bool:
        """Whether a value is a sentence, so that pairs do not fit side by side."""
        return any(len(value) > 70 for _, value in self.pairs)


@dataclass(frozen=True)
class Text:
    """A paragraph; `quoted` if it is somebody's own words."""

    text: str
    tone: Tone = "plain"
    quoted: bool = False


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Chart:
    """A picture, what is under it, and its numbers for those who do not see it.

    Attributes:
        title: what it shows.
        note: how to read it: units, n, what the intervals are.
        wide: needs the whole width of a page.
    """

    name: str
    title: str
    plot: Plot
    table: Table
    note: str = ""
    wide: bool = False

    @property
    def titled(self) -> bool:
        """Whether the picture has a title of its own."""
        return isinstance(self.plot, Forest | Stages)


@dataclass(frozen=True)
class Charts:
    """Charts that belong side by side where there is room."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Code:
    """Text that is shown as it is, folded."""

    title: str
    text: str


@dataclass(frozen=True)
class Film:
    """A film, or where it is if it had no room.

    Attributes:
        caption: what it shows and how it ends, in words.
        mime: ``image/gif`` or ``video/mp4``, …; with `data` None it was left out.
        still: a PNG of its last picture, for a film that cannot be paused by itself.
    """

    caption: str
    mime: str
    data: bytes | None
    still: bytes | None = None
    left_out: str = ""


@dataclass(frozen=True)
class Films:
    """Films in order."""

    films: Sequence[Film]


Block = Table | Facts | Text | Points | Charts | Code | Films


@dataclass(frozen=True)
class Section:
    """A part of the page; `id` is an anchor, letters and ``-``."""

    id: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Headline:
    """What a reader should take away if nothing else.

    Attributes:
        label: one or two words, e.g. a verdict; empty if there is none.
        text: one sentence, with its interval.
        more: what it rests on, and what it does not say.
    """

    text: str
    label: str = ""
    tone: Tone = "plain"
    more: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        kind: ``training run`` or ``registration``.
        subtitle: where it is from.
    """

    title: str
    kind: str
    subtitle: str
    headline: Headline
    sections: Sequence[Section]

    def blocks(self) -> Iterator[Block]:
        """Of all sections, in order."""
        for section in self.sections:
            yield from section.blocks

    def charts(self) -> list[Chart]:
        """All of them."""
        return [chart for block in self.blocks() if isinstance(block, Charts) for chart in block.charts]

    def tables(self) -> list[Table]:
        """All of them, those of the charts included."""
        found: list[Table] = []
        for block in self.blocks():
            if isinstance(block, Table):
                found.append(block)
            elif isinstance(block, Charts):
                found += [chart.table for chart in block.charts]
        return found


def gathered(sections: Sequence[Section]) -> list[Section]:
    """The sections, those that only say why they are empty made into one, where the first of them was."""
    empty = [s for s in sections if s.blocks and all(isinstance(b, Text) and b.tone == "open" for b in s.blocks)]
    if len(empty) < 2:
        return list(sections)
    lines = [f"{s.title}: {' '.join(b.text for b in s.blocks if isinstance(b, Text))}" for s in empty]
    one = Section("not-told", "What is not told", [Points(lines)])
    return [one if s is empty[0] else s for s in sections if s is empty[0] or s not in empty]


def shown(value: Cell) -> str:
    """A value as people read it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
