"""Files that appear whole or not at all, and are on the disk once a call has returned.

In: a path and its bytes. Out: the file with the old content or the new one, whenever the machine stops. Left out: what
the bytes mean, and locking.
"""

from __future__ import annotations

import os
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable: a rename is on disk once its directory is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` with `data`: a reader sees the old file or the new one, never a part."""
    os.replace(_written_beside(path, data), path)
    fsync_path(path.parent)


def create_atomic(path: Path, data: bytes) -> bool:
    """Write `path` if it does not exist; of several processes that try, one succeeds.

    Returns:
        Whether it was this one.
    """
    temporary = _written_beside(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    fsync_path(path.parent)
    return True


def _written_beside(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary
