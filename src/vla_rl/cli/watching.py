"""Puts a training run on the list of runs while it works, unless whoever launched it has done so.

The list is a help to people: where it cannot be written, the run goes on without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_rl.cli.main import EXIT_INTERRUPTED
from vla_rl.errors import EXIT_CRASH, EXIT_OK, VlaRlError
from vla_rl.prereg import health, watch


@contextmanager
def watched(run_dir: Path, *, gpus: int) -> Iterator[None]:
    """On the list from here to the end, however that comes about."""
    try:
        entry = None if _listed(run_dir) else watch.open(run_dir, gpus=gpus)
    except (OSError, VlaRlError):
        entry = None
    code = EXIT_CRASH
    try:
        yield
        code = EXIT_OK
    except VlaRlError as error:
        code = error.exit_code
        raise
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
        raise
    finally:
        if entry is not None:
            _close(entry, code)


def _listed(run_dir: Path) -> bool:
    entry = watch.find(run_dir)
    return entry is not None and entry.process.alive() is not False


def _close(entry: watch.Entry, code: int) -> None:
    now = health.examine(entry)
    how = "interrupted" if code == EXIT_INTERRUPTED else "crashed" if code == EXIT_CRASH else now.phase or "ended"
    try:
        watch.close(entry, exit_code=code, how=f"{how} at step {now.step}")
    except OSError:
        pass
