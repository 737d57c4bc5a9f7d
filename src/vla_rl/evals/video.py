"""Pictures to a film file and back: H.264 through `av`, or an animated WebP through pillow where `av` is missing.

In: uint8 pictures of one even-sided size, one a tick. Out: a file that plays in true time. Written under a temporary
name and renamed, so that a film is whole or not there.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

WEBP_EVERY = 2  # its pictures are held in memory until the end, and players of it are slow


class Film(Protocol):
    """A film being written."""

    path: Path

    def add(self, picture: np.ndarray) -> None:
        """The next tick's picture: uint8 [height, width, 3]."""
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


def has_video_codec() -> bool:
    """Whether `av` is installed and can write H.264."""
    if importlib.util.find_spec("av") is None:
        return False
    import av

    return "libx264" in av.codecs_available


def open_film(stem: Path, tick_s: float) -> Film:
    """A film at `stem` with the suffix of the best format that this machine can write."""
    return (
        Mp4Film(stem.with_suffix(".mp4"), tick_s) if has_video_codec() else WebpFilm(stem.with_suffix(".webp"), tick_s)
    )


class Mp4Film:
    """H.264, one picture a tick.

    Args:
        path: ends with ``.mp4``.
        tick_s: seconds that a picture is shown.
    """

    def __init__(self, path: Path, tick_s: float) -> None:
        import av

        self.path, self._temporary = path, path.with_name(f".{path.name}")
        self._rate = 1 / Fraction(tick_s).limit_denominator(10_000)
        self._file = av.open(str(self._temporary), "w", format="mp4", options={"movflags": "faststart"})
        self._stream: Any = None

    def add(self, picture: np.ndarray) -> None:
        import av

        if self._stream is None:
            self._stream = self._file.add_stream(
                "libx264", rate=self._rate, options={"crf": "20", "preset": "veryfast"}
            )
            self._stream.height, self._stream.width = picture.shape[:2]
            self._stream.pix_fmt, self._stream.codec_context.thread_count = "yuv420p", 1
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        self._file.mux(self._stream.encode(frame))

    def close(self) -> None:
        if self._stream is not None:
            self._file.mux(self._stream.encode())
        self._file.close()
        os.replace(self._temporary, self.path)


class WebpFilm:
    """Animated WebP, one picture every second tick.

    Args:
        path: ends with ``.webp``.
        tick_s: seconds between two pictures that are handed in.
    """

    def __init__(self, path: Path, tick_s: float) -> None:
        self.path, self._tick_s, self._ticks = path, tick_s, 0
        self._pictures: list[Image.Image] = []

    def add(self, picture: np.ndarray) -> None:
        if self._ticks % WEBP_EVERY == 0:
            self._pictures.append(Image.fromarray(picture))
        self._ticks += 1

    def close(self) -> None:
        # Whole milliseconds whose sum does not drift from true time.
        ends_ms = [round(1000 * WEBP_EVERY * self._tick_s * i) for i in range(len(self._pictures) + 1)]
        shown_ms = [later - earlier for earlier, later in zip(ends_ms, ends_ms[1:], strict=False)]
        temporary = self.path.with_name(f".{self.path.name}")
        first, *others = self._pictures
        first.save(temporary, "WEBP", save_all=True, append_images=others, duration=shown_ms, quality=80, method=2)
        os.replace(temporary, self.path)


def read_film(path: Path) -> Iterator[tuple[float, np.ndarray]]:
    """Pictures of a film that was written here, each with the second at which it is shown first."""
    if path.suffix == ".mp4":
        import av

        with av.open(str(path)) as file:
            for i, frame in enumerate(file.decode(video=0)):
                rate = file.streams.video[0].average_rate
                yield (i / float(rate) if rate else 0.0), frame.to_ndarray(format="rgb24")
        return
    with Image.open(path) as film:
        shown_ms = 0
        for i in range(getattr(film, "n_frames", 1)):
            film.seek(i)
            film.load()
            yield shown_ms / 1000, np.asarray(film.convert("RGB"))
            shown_ms += int(film.info.get("duration", 0))
