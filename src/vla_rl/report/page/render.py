"""A page as one HTML file: no script, no network, no other file.

In: a page. Out: bytes. Every text is escaped by the template; the pictures escape theirs; a content security policy
forbids scripts and fetching all the same, so that what slips through would lie there dead. Charts are drawn in the
colours of paper, and a style sheet gives them those of a dark page.
"""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from vla_rl import __version__
from vla_rl.report.page.model import Page, shown
from vla_rl.report.page.plots import Plot, draw
from vla_rl.report.svg import COLOURS, FAINT, GRID, INK, PAPER

MOST_ROWS, MOST_TEXT = 250, 120_000  # of a table and of a listing; a page has to open on a phone
MIMES = ("image/gif", "image/png", "image/webp", "video/mp4")
PROSE = 48  # letters of a cell beyond which a phone shows a row as a paragraph
# A colour of the light charts -> that of the dark page; bars of the funnel lie on the last one.
DARK = dict(
    zip(
        (*COLOURS, PAPER, INK, FAINT, GRID, "#eeeeee"),
        ("#4a9fe8", "#ff8a3d", "#2fc999", "#e7a3c7", "#f5c04a", "#a5dcff", "#f2f2f2",
         "#15181c", "#e8eaed", "#a3acb6", "#363d45", "#2b3138"),
        strict=True,
    )
)  # fmt: skip


def html(page: Page) -> bytes:
    """The file."""
    style = (Path(__file__).with_name("page.css")).read_text() + _dark_rules()
    return _template().render(page=page, style=Markup(style), version=__version__).encode()


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"shown": shown, "kind": lambda block: type(block).__name__, "svg": _svg, "uri": _uri,
                            "words": lambda name: str(name).replace("-", " ")}  # fmt: skip
    environment.globals |= {"most_rows": MOST_ROWS, "most_text": MOST_TEXT}
    environment.tests |= {
        "number": lambda cell: isinstance(cell, int | float) and not isinstance(cell, bool),
        "prose": lambda table: any(isinstance(cell, str) and len(cell) > PROSE for row in table.rows for cell in row),
    }
    return environment.get_template("page.html.j2")


def _svg(plot: Plot) -> Markup:
    """Ours: `report.svg` escapes every text that it writes."""
    return Markup(draw(plot).decode())


def _uri(data: bytes, mime: str) -> str:
    assert mime in MIMES
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _dark_rules() -> str:
    """What a chart looks like on a dark page: rules outrank the attributes that it is drawn with."""
    rules: list[Any] = [
        f'.picture svg [{attribute}="{light}"] {{ {attribute}: {dark}; }}'
        for light, dark in DARK.items()
        for attribute in ("fill", "stroke")
    ]
    return "@media screen and (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}\n"
