"""Films for a page: those that lie beside a run or a registration, as many as there is room for.

In: files with their captions. Out: blocks with the bytes in them. What has no room is named with its path. A GIF plays
without end, so it comes with a still of its last picture and is played when a reader asks for it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from vla_rl.report.page.model import Film

ROOM = 12_000_000  # bytes of all films on a page; in the page they take a third more
KINDS = {".gif": "image/gif", ".webp": "image/webp", ".mp4": "video/mp4"}


def films(files: Iterable[tuple[Path, str]], *, room: int = ROOM) -> list[Film]:
    """Films in order; (file, caption) each."""
    made: list[Film] = []
    for path, caption in files:
        mime = KINDS.get(path.suffix, "")
        try:
            data = path.read_bytes() if mime else None
        except OSError as error:
            made.append(Film(caption, mime, None, left_out=f"The film cannot be read ({error.strerror}): {path.name}"))
            continue
        if data is None or len(data) > room:
            why = "There is no more room on this page" if data else "A page cannot show this kind of film"
            made.append(Film(caption, mime, None, left_out=f"{why}; the film is in {path}"))
            continue
        room -= len(data)
        made.append(Film(caption, mime, data, None if mime.startswith("video/") else _still(data)))
    return made


def beside(directory: Path) -> Sequence[Path]:
    """Films of a directory, by name."""
    return sorted(path for path in directory.glob("*") if path.suffix in KINDS and path.is_file())


def _still(data: bytes) -> bytes | None:
    """The last picture as PNG; None if the file is no picture."""
    try:
        with Image.open(io.BytesIO(data)) as film:
            film.seek(getattr(film, "n_frames", 1) - 1)
            file = io.BytesIO()
            film.convert("RGB").quantize(128).save(file, "PNG", optimize=True)
            return file.getvalue()
    except (OSError, EOFError, ValueError):
        return None
