"""A page as Markdown and as CSV: the same numbers without pictures.

In: a page. Out: text. In Markdown no text of somebody can become a tag, a link or the end of a table; in CSV a cell
that a spreadsheet would take for a formula gets an apostrophe in front.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from vla_rl.report.page.model import Block, Cell, Charts, Code, Facts, Films, Page, Points, Table, Text, shown
from vla_rl.report.tables import one_line

MOST_ROWS = 60  # of a table in Markdown
_MARKS = re.compile(r"([\\`*_\[\]#~])")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def markdown(page: Page) -> str:
    """The report for a page of text, e.g. a pull request."""
    parts = [f"# {plain(page.title)}", f"{plain(page.kind)}; {plain(page.subtitle)}"]
    label = f"**{plain(page.headline.label)}** " if page.headline.label else ""
    parts.append(f"{label}{plain(page.headline.text)}")
    if page.headline.more:
        parts.append("\n".join(f"- {plain(line)}" for line in page.headline.more))
    for section in page.sections:
        parts.append(f"## {plain(section.title)}")
        parts += [text for block in section.blocks for text in _block(block)]
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """In one line, without markup."""
    return one_line(_MARKS.sub(r"\\\1", text))


def as_csv(table: Table) -> str:
    """All rows, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(heading) for heading in table.headings])
    writer.writerows([_cell(cell) for cell in row] for row in table.rows)
    return text.getvalue()


def csv_files(page: Page) -> dict[str, str]:
    """A file for each table and chart, by name."""
    return {f"{table.name}.csv": as_csv(table) for table in page.tables()}


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text():
            yield f"> {plain(block.text)}" if block.quoted else plain(block.text)
        case Points():
            yield "\n".join(f"- {plain(item)}" for item in block.items)
        case Facts():
            yield "\n".join(f"- {plain(name)}: {plain(value)}" for name, value in block.pairs)
        case Table():
            yield from _table(block)
        case Charts():
            for chart in block.charts:
                yield f"### {plain(chart.title)}"
                yield from _table(chart.table)
                if chart.note:
                    yield plain(chart.note)
        case Films():
            yield "\n".join(f"- {plain(film.caption)}" for film in block.films)
        case Code():
            yield f"{plain(block.title)}: in the HTML report."


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield plain(table.caption)
    rows = [table.headings, ["---"] * len(table.headings), *table.rows[:MOST_ROWS]]
    yield "\n".join(f"| {' | '.join(plain(shown(c)) if c != '---' else '---' for c in row)} |" for row in rows)
    if len(table.rows) > MOST_ROWS:
        yield f"The first {MOST_ROWS} of {len(table.rows)} rows."


def _cell(cell: Cell) -> Cell:
    """A number as it is; a text that begins like a formula is made a text for spreadsheets, too."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
