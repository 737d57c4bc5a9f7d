"""Contact sheet of an evaluation: start, middle and end of every episode, labelled with seed and outcome.

In: three small pictures and a label for each episode. Out: a PNG. What is shown was seen in the evaluation; nothing is
rendered here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLUMNS = 4
GAP_PX, SEAM_PX, LABEL_PX, TITLE_PX, FONT_PX = 10, 2, 15, 24, 12
PAPER, INK, GOOD, BAD = (250, 250, 248), (30, 30, 30), (0, 110, 60), (170, 30, 30)


@dataclass(frozen=True)
class Strip:
    """One episode: three uint8 pictures of one size (start, middle, end), its label and whether it succeeded."""

    pictures: tuple[np.ndarray, np.ndarray, np.ndarray]
    label: str
    success: bool


def contact_sheet(strips: Sequence[Strip], title: str) -> Image.Image:
    """All strips in a grid of up to four columns, in reading order; at least one."""
    side = strips[0].pictures[0].shape[0]
    width, height = 3 * side + 2 * SEAM_PX + GAP_PX, side + LABEL_PX + GAP_PX
    columns = min(COLUMNS, len(strips))
    rows = -(-len(strips) // columns)
    sheet = Image.new("RGB", (columns * width + GAP_PX, rows * height + TITLE_PX + GAP_PX), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(FONT_PX)
    draw.text((GAP_PX, 6), title, INK, ImageFont.load_default(FONT_PX + 1))
    for i, strip in enumerate(strips):
        left, top = GAP_PX + i % columns * width, TITLE_PX + i // columns * height
        draw.text((left, top), strip.label, GOOD if strip.success else BAD, font)
        for j, picture in enumerate(strip.pictures):
            sheet.paste(Image.fromarray(picture), (left + j * (side + SEAM_PX), top + LABEL_PX))
    return sheet


def save_sheet(path: Path, strips: Sequence[Strip], title: str) -> None:
    """`contact_sheet` as a PNG file; appears whole or not at all."""
    temporary = path.with_name(f".{path.name}")
    contact_sheet(strips, title).save(temporary, "PNG", optimize=True)
    os.replace(temporary, path)
