"""A small writer of SVG charts: shapes, text, scales, ticks, one panel with axes.

In: numbers in their own units. Out: bytes that are the same for the same input, with two decimals of a pixel, no date
and no font of one machine. The colours are those of Okabe and Ito, which people with any colour vision tell apart; a
chart gives every line a marker of its own too. The paper is drawn, so that a dark page changes nothing. What is drawn
for a reader carries a class and, where it stands for a number, that number in a `<title>`.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("circle", "square", "triangle", "diamond")
PAPER, INK, FAINT, GRID = "#ffffff", "#222222", "#666666", "#dddddd"
SMALL_PX, CHAR_PX = 11, 6.0  # of text; width of one of its letters, generously
Point = tuple[float, float]
_NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def colour(i: int) -> str:
    """Of the i-th line of a chart."""
    return COLOURS[i % len(COLOURS)]


def marker(i: int) -> str:
    """Of the i-th line of a chart: another one also where the colours begin anew."""
    return MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high`, laid evenly on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten, some `about` of them."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each for m in (1, 2, 5, 10) if (each := m * power) >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def spanned(values: Iterable[float], *, share: float = 0.08) -> tuple[float, float]:
    """A range that holds all values with some air at both ends, and is never empty."""
    found = list(values)
    low, high = min(found), max(found)
    air = share * (high - low) or max(abs(high), 1.0) * share
    return low - air, high + air


def short(value: float) -> str:
    """A number as a tick or label shows it."""
    return f"{0.0 if abs(value) < 1e-12 else value:.6g}"


def wrapped(text: str, width_px: float) -> list[str]:
    """Lines of small text that fit into a width."""
    lines = [""]
    for word in text.split(" "):  # not at a space that holds together what belongs together
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and len(longer) * CHAR_PX > width_px:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def fitted(text: str, width_px: float, *, px: int = SMALL_PX) -> str:
    """The text, or its beginning, in a width."""
    room = int(width_px / (CHAR_PX * px / SMALL_PX))
    return text if len(text) <= room else f"{text[: room - 1]}…"


@dataclass
class Svg:
    """A picture that is being drawn, in pixels from the upper left corner.

    Args:
        title, description: for those who do not see it.
    """

    width: float
    height: float
    title: str
    description: str
    _parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, *, px: int = SMALL_PX, anchor: str = "start", fill: str = INK,
        bold: bool = False, cls: str = "", up: bool = False,
    ) -> None:  # fmt: skip
        """`anchor`: start, middle or end; `up`: written upwards."""
        turned = f' transform="rotate(-90 {_n(x)} {_n(y)})"' if up else ""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text{_class(cls)} x="{_n(x)}" y="{_n(y)}" font-size="{px}" text-anchor="{anchor}" fill="{fill}"'
            f"{weight}{turned}>{_escaped(text)}</text>"
        )

    def line(
        self, points: Sequence[Point], stroke: str = INK, *, width: float = 1.0, dash: str = "", cls: str = "",
        tip: str = "",
    ) -> None:  # fmt: skip
        """Two points or more; `dash`: e.g. ``"4 3"``; `tip`: what it stands for."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._shape(
            "polyline", cls, f'points="{_points(points)}" fill="none" stroke="{stroke}" stroke-width="{_n(width)}"'
            f'{dashed} stroke-linejoin="round"', tip,
        )  # fmt: skip

    def area(self, points: Sequence[Point], fill: str, *, opacity: float = 0.2, cls: str = "") -> None:
        """A closed surface without a border."""
        self._shape("polygon", cls, f'points="{_points(points)}" fill="{fill}" fill-opacity="{_n(opacity)}"')

    def rect(self, x: float, y: float, width: float, height: float, fill: str, *, cls: str = "", tip: str = "") -> None:
        size = f'width="{_n(width)}" height="{_n(height)}"'
        self._shape("rect", cls, f'x="{_n(x)}" y="{_n(y)}" {size} fill="{fill}"', tip)

    def mark(self, at: Point, shape: str, fill: str, *, size: float = 4.0, cls: str = "", tip: str = "") -> None:
        """One of `MARKERS`, with a rim of paper so that it stands out from lines."""
        x, y = at
        rim = f'fill="{fill}" stroke="{PAPER}" stroke-width="0.8"'
        if shape == "circle":
            self._shape("circle", cls, f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(size)}" {rim}', tip)
            return
        corners = {
            "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            "triangle": [(0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)],
            "diamond": [(0.0, -1.25), (1.1, 0.0), (0.0, 1.25), (-1.1, 0.0)],
        }[shape]
        at_px = [(x + size * dx, y + size * dy) for dx, dy in corners]
        self._shape("polygon", cls, f'points="{_points(at_px)}" {rim}', tip)

    def bytes(self) -> bytes:
        """The file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(self.width)}" height="{_n(self.height)}" '
            f'viewBox="0 0 {_n(self.width)} {_n(self.height)}" role="img" '
            f'font-family="Helvetica, Arial, sans-serif">\n<title>{_escaped(self.title)}</title>\n'
            f"<desc>{_escaped(self.description)}</desc>\n"
            f'<rect width="{_n(self.width)}" height="{_n(self.height)}" fill="{PAPER}"/>\n'
        )
        return (head + "\n".join(self._parts) + "\n</svg>\n").encode()

    def _shape(self, name: str, cls: str, attributes: str, tip: str = "") -> None:
        inside = f"><title>{_escaped(tip)}</title></{name}>" if tip else "/>"
        self._parts.append(f"<{name}{_class(cls)} {attributes}{inside}")


@dataclass(frozen=True)
class Panel:
    """A frame with axes; `x` and `y` lead from values to pixels."""

    x: Scale
    y: Scale

    @classmethod
    def draw(
        cls, svg: Svg, box: tuple[float, float, float, float], x_range: Point, y_range: Point, *,
        x_label: str = "", y_label: str = "", y_ticks: Sequence[float] | None = None,
        x_ticks: Sequence[tuple[float, str]] | None = None,
    ) -> Panel:  # fmt: skip
        """Draw frame, grid, ticks and labels.

        Args:
            box: left, top, right and bottom of the frame.
            y_ticks: where lines lie across; () for none.
            x_ticks: where lines lie upwards and what is written below; () for none.
        """
        left, top, right, bottom = box
        panel = cls(Scale(*x_range, left, right), Scale(*y_range, bottom, top))
        for value, name in [(value, short(value)) for value in ticks(*x_range)] if x_ticks is None else x_ticks:
            at = panel.x(value)
            svg.line([(at, top), (at, bottom)], GRID, width=0.7)
            svg.text(at, bottom + 15, name, anchor="middle", fill=FAINT, cls="x-tick")
        for value in ticks(*y_range) if y_ticks is None else y_ticks:
            at = panel.y(value)
            svg.line([(left, at), (right, at)], GRID, width=0.7)
            svg.text(left - 6, at + 4, short(value), anchor="end", fill=FAINT, cls="y-tick")
        svg.line([(left, top), (left, bottom), (right, bottom)], FAINT)
        svg.text((left + right) / 2, bottom + 32, x_label, anchor="middle")
        if y_label:
            svg.text(left - 38, (top + bottom) / 2, y_label, anchor="middle", up=True)
        return panel


def caption(svg: Svg, top: float, text: str, *, left: float = 16.0) -> None:
    """Small text below everything, over as many lines as it takes; see `caption_height`."""
    for i, line in enumerate(wrapped(text, svg.width - 2 * left)):
        svg.text(left, top + 15 * i, line, fill=FAINT)


def caption_height(text: str, width: float, *, left: float = 16.0) -> float:
    """What `caption` takes in a picture of a width."""
    return 15.0 * len(wrapped(text, width - 2 * left))


def _escaped(text: str) -> str:
    return html.escape(_NO_XML.sub("\ufffd", text))


def _class(cls: str) -> str:
    return f' class="{cls}"' if cls else ""


def _n(value: float) -> str:
    """Two decimals at most, and never a negative nothing."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
