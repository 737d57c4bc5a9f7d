"""One seed before and after training, side by side, as an animated GIF that a page can show.

In: the pictures of two episodes with their times, and what to write above them. Out: bytes, no more than a limit: if
need be the pictures get smaller and fewer. Both sides start together and run in true time; the one that ends first
stands still. Left out: how the episodes are played and filmed (`vla_rl.evals.film`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

LIMIT = 2_000_000  # bytes of a file
SIZES_PX, RATES_HZ = (256, 224, 192, 160, 128, 96), (10.0, 5.0, 2.5, 1.25)
GAP_PX, HEAD_PX, FOOT_PX, FONT_PX, COLOURS = 6, 46, 18, 12, 128
LAST_S = 1.5  # that the end is shown
PAPER, INK, FAINT, GOOD, BAD = (255, 255, 255), (34, 34, 34), (102, 102, 102), (0, 114, 178), (213, 94, 0)
Timed = tuple[float, np.ndarray]


@dataclass(frozen=True)
class Side:
    """One episode.

    Attributes:
        title: e.g. ``"before"``; drawn large.
        policy: e.g. ``"seed1, 40 updates"``.
        outcome: in words.
        success: for its colour; the words say it, too.
        pictures: square uint8 [height, width, 3] with the second at which each is shown; at least one.
    """

    title: str
    policy: str
    outcome: str
    success: bool
    pictures: Sequence[Timed]


def thinned(film: Iterable[Timed], rate_hz: float = RATES_HZ[0], size_px: int = SIZES_PX[0]) -> list[Timed]:
    """Of a film in which two square cameras lie side by side the left one, no more often and no larger than it will be
    shown; the last picture is always kept."""
    kept: list[Timed] = []
    for at_s, picture in film:
        left = Image.fromarray(picture[:, : picture.shape[0]]).resize((size_px, size_px), Image.Resampling.BOX)
        last = at_s, np.asarray(left)
        if not kept or at_s >= len(kept) / rate_hz - 1e-6:
            kept.append(last)
        held = last
    if kept and kept[-1][0] != held[0]:
        kept.append(held)
    return kept


def side_by_side(before: Side, after: Side, seed: int, *, limit: int = LIMIT) -> bytes:
    """The GIF, the largest of the sizes and rates that fits.

    Raises:
        ValueError: not even the smallest fits.
    """
    largest = float("inf")  # of size² times rate, by what was tried
    for rate_hz, size_px in _choices():
        if (weight := rate_hz * size_px**2) > largest:
            continue
        data = _encoded(before, after, seed, rate_hz, size_px)
        if len(data) <= limit:
            return data
        largest = weight * min(0.9, 1.1 * limit / len(data))
    raise ValueError(f"no film of seed {seed} fits into {limit} bytes")


def _choices() -> Iterator[tuple[float, int]]:
    """Rates and sizes, the most pixels a second first; in the end ever fewer pictures."""
    pairs = [(rate_hz, size_px) for rate_hz in RATES_HZ for size_px in SIZES_PX]
    yield from sorted(pairs, key=lambda pair: -pair[0] * pair[1] ** 2)
    yield from ((RATES_HZ[-1] / 4**i, SIZES_PX[-1]) for i in range(1, 8))


def _encoded(before: Side, after: Side, seed: int, rate_hz: float, size_px: int) -> bytes:
    sides, end_s = (before, after), max(before.pictures[-1][0], after.pictures[-1][0])
    times = [i / rate_hz for i in range(int(end_s * rate_hz - 1e-6) + 1)]
    times += [end_s] * (end_s > times[-1])
    head = _head(sides, size_px)
    shown = [_frame(head, sides, seed, at_s, size_px) for at_s in times]
    palette = _palette(shown)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in shown]
    ends_ms = [*(10 * round(100 * at_s) for at_s in times[1:]), 10 * round(100 * (end_s + LAST_S))]
    starts_ms = [10 * round(100 * at_s) for at_s in times]
    durations = [max(20, end - start) for start, end in zip(starts_ms, ends_ms, strict=True)]
    file = io.BytesIO()
    frames[0].save(
        file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=False, disposal=1
    )
    return file.getvalue()


def _head(sides: Sequence[Side], size_px: int) -> Image.Image:
    """The empty frame with what is written above."""
    frame = Image.new("RGB", (2 * size_px + GAP_PX, HEAD_PX + size_px + FOOT_PX), PAPER)
    draw = ImageDraw.Draw(frame)
    large, small = ImageFont.load_default(FONT_PX + 2), ImageFont.load_default(_font_px(size_px))
    for i, side in enumerate(sides):
        left = i * (size_px + GAP_PX) + 3
        draw.text((left, 1), side.title, INK, large)
        draw.text((left, 17), _cut(draw, side.policy, size_px - 6, small), FAINT, small)
        draw.text((left, 31), _cut(draw, side.outcome, size_px - 6, small), GOOD if side.success else BAD, small)
    return frame


def _frame(head: Image.Image, sides: Sequence[Side], seed: int, at_s: float, size_px: int) -> Image.Image:
    frame = head.copy()
    for i, side in enumerate(sides):
        picture = next(picture for shown_s, picture in reversed(side.pictures) if shown_s <= at_s + 1e-6)
        scaled = Image.fromarray(picture).resize((size_px, size_px), Image.Resampling.LANCZOS)
        frame.paste(scaled, (i * (size_px + GAP_PX), HEAD_PX))
    font = ImageFont.load_default(_font_px(size_px))
    ImageDraw.Draw(frame).text((3, HEAD_PX + size_px + 3), f"seed {seed}   {at_s:.1f} s", INK, font)
    return frame


def _palette(frames: Sequence[Image.Image]) -> Image.Image:
    """Colours that all frames share, from some of them: what does not move then does not flicker, and costs nothing."""
    chosen = frames[:: max(1, len(frames) // 6)]
    width, height = chosen[0].size
    strip = Image.new("RGB", (width, height * len(chosen)))
    for i, frame in enumerate(chosen):
        strip.paste(frame, (0, i * height))
    return strip.quantize(colors=COLOURS, method=Image.Quantize.MEDIANCUT)


def _font_px(size_px: int) -> int:
    return FONT_PX if size_px >= 192 else FONT_PX - 2


def _cut(draw: ImageDraw.ImageDraw, text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """As much of the text as has room in one line."""
    text = " ".join(text.split())
    while len(text) > 1 and draw.textlength(text, font=font) > width:
        text = text[:-2].rstrip() + "…"
    return text
