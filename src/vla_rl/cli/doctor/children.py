"""Programs that a check starts, because what they do may crash or hang: they are ended when their time is over.

In: a command. Out: what it wrote until it ended, and how it ended. Output goes through files, so that what a program
said before it hung is not lost, and nothing waits for a pipe that somebody else still holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MARK = "vla-rl doctor: "  # before what is meant for us; libraries print, too
UNKILLABLE_S = 2.0  # patience with a program that is stuck in a driver and cannot be ended


@dataclass(frozen=True)
class Answer:
    """How a program ended.

    Attributes:
        code: its exit code; None if it was ended because its time was over.
        out, err: what it wrote.
    """

    code: int | None
    out: str
    err: str

    @property
    def facts(self) -> list[Any]:
        """What it told by `tell`, in order."""
        lines = self.out.splitlines()
        return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]

    def how(self, patience_s: float) -> str:
        """How it ended, with its last line."""
        if self.code is None:
            return f"no answer within {patience_s:.0f} s"
        ended = f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        last = next((line.strip() for line in reversed(self.err.splitlines()) if line.strip()), "")
        return f"{ended}: {last[-300:]}" if last else ended


def ask(command: Sequence[str], patience_s: float, variables: Mapping[str, str] | None = None) -> Answer:
    """Run a program for at most `patience_s` seconds.

    Raises:
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        environment = {**os.environ, **(variables or {})}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
        try:
            code = process.wait(patience_s)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(UNKILLABLE_S)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Answer(code, *texts)


def ask_python(module: str, *arguments: str, patience_s: float, variables: Mapping[str, str] | None = None) -> Answer:
    """Run a module of this package in an interpreter of its own."""
    return ask([sys.executable, "-m", module, *arguments], patience_s, variables)


def tell(fact: Any) -> None:
    """Say something to the program that asked, at once."""
    print(MARK + json.dumps(fact), flush=True)
