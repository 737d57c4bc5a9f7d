"""Writes `docs/commands.md`: what `--help` of every command says.

Run with `python scripts/command_reference.py` (or `make docs`) after a command has got another option. The text is what
the commands print on a terminal of `COLUMNS` columns under Python 3.12; other versions of Python break lines elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from vla_rl.cli.main import COMMANDS, main
from vla_rl.cli.prereg import ACTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
COLUMNS = 110
HEAD = """# Commands

What `--help` of every command says; `python scripts/command_reference.py` writes this page. What a command does and
when to use it is told in [README.md](../README.md#commands) and on the pages that it links to; the keys that commands
take as overrides are in [reference.md](reference.md).
"""


def lines() -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every command line that has a help of its own, with the level of its heading."""
    yield 2, ()
    for command in COMMANDS:
        yield 2, (command,)
        if command == "train":
            yield 3, (command, "-m")
        if command == "prereg":
            yield from ((3, (command, action)) for action in ACTIONS)


def help_of(*words: str) -> str:
    """What a command prints for --help.

    Raises:
        RuntimeError: it does something else than print.
    """
    said = io.StringIO()
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=str(COLUMNS), NO_COLOR="1")
    try:
        with contextlib.redirect_stdout(said):
            main([*words, "--help"])
    except SystemExit as ended:
        if ended.code == 0:
            return said.getvalue().rstrip()
        raise RuntimeError(f"vla-rl {' '.join(words)} --help ends with {ended.code}") from None
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    raise RuntimeError(f"vla-rl {' '.join(words)} --help does not end the command")


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for level, words in lines():
        text = "\n".join(line.rstrip() for line in help_of(*words).splitlines())
        parts.append(f"{'#' * level} {' '.join(('vla-rl', *words))}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
