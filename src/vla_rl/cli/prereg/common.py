"""What the actions of `vla-rl prereg` share: argument lines, folders, who is writing."""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from vla_rl import paths
from vla_rl.errors import UsageError
from vla_rl.prereg import yamlfile
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.git import Git


def parser(action: str, description: str, examples: Sequence[str], *, id: str | None = "ID") -> argparse.ArgumentParser:
    """An argument line with an id, --json, a description and examples.

    Args:
        id: what to call the positional id; None for an action without one.
    """
    made = argparse.ArgumentParser(
        prog=f"vla-rl prereg {action}",
        description=description,
        epilog="examples:\n" + "\n".join(f"  vla-rl prereg {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # a detached launch repeats its arguments, and a ledger has no use for half a word
    )
    if id:
        made.add_argument("id", metavar=id, help="name of the folder under experiments/")
    made.add_argument("--json", action="store_true", help="print one JSON object on stdout (messages go to stderr)")
    return made


def hours(made: argparse.ArgumentParser, what: str) -> None:
    """Arguments for what something has cost that was not done here."""
    for unit, name in (("gpu_h", "GPU-hours"), ("wall_h", "hours")):
        made.add_argument(f"--{unit.replace('_', '-')}", type=_hours, metavar="H", help=f"{what}, {name}")


def _hours(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} are no hours")
    return value


def folder(id: str) -> Folder:
    """The folder of a registration."""
    return Folder(paths.experiments_dir(), id)


def author() -> str:
    """Who is writing: what git is told, else the user's name."""
    git = Git.around(paths.experiments_dir()) if paths.experiments_dir().is_dir() else None
    with suppress(UsageError):
        if git is not None and (name := git.text("config", "user.name")):
            return name
    with suppress(OSError, KeyError):
        return os.environ.get("USER") or getpass.getuser()
    return "unknown"


def assignments(texts: Sequence[str] | None, where: str) -> dict[str, Any]:
    """``a.b=1e-6`` as path and value; values are read as in a registration.

    Raises:
        UsageError: something else, or a path that is given twice.
    """
    return {path: yamlfile.load(value.encode(), f"{where} {path}") for path, value in named(texts, where).items()}


def named(texts: Sequence[str] | None, where: str) -> dict[str, str]:
    """``name=text`` as name and text, which is everything behind the first ``=``.

    Raises:
        UsageError: something else, or a name that is given twice.
    """
    values: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r} is no assignment", where=where, remedy="write name=value")
        if name in values:
            raise UsageError(f"{name} is given twice", where=where)
        values[name] = value
    return values
