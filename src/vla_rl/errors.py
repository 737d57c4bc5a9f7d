"""Error classes that a user can cause, each with *what, where, remedy* and its exit code.

The command line prints these without a traceback; anything else is a crash (exit code 1) and keeps its traceback.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_CRASH = 1
EXIT_USAGE = 2
EXIT_STOPPED = 3
EXIT_REFUSED = 4
EXIT_INTEGRITY = 5


class VlaRlError(Exception):
    """Base of every error that names its own remedy.

    Args:
        what: what is wrong, one sentence.
        where: file, key or component it was found in.
        remedy: what the user can do about it.
    """

    exit_code = EXIT_CRASH

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what, self.where, self.remedy = what, where, remedy
        super().__init__(self.render())

    def render(self) -> str:
        """The message as the terminal shows it: one line each for what, where and remedy."""
        lines = [self.what]
        if self.where:
            lines.append(f"  where:  {self.where}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)


class UsageError(VlaRlError):
    """The command or its configuration is wrong; nothing was started."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """A configuration key, value or group option is wrong."""


class MachineError(UsageError):
    """This machine lacks something that the command needs (a GL library, disk space, a package)."""


class RolloutError(VlaRlError):
    """A worker died, hung or misbehaved more often than the bounded retries allow."""

    exit_code = EXIT_CRASH


class OutOfMemory(VlaRlError):
    """The accelerator's memory does not hold what a command needs, also after it tried with less."""

    exit_code = EXIT_CRASH


class LostRank(VlaRlError):
    """One of the processes that share an update has ended."""

    exit_code = EXIT_CRASH


class StoppedRun(VlaRlError):
    """A run stopped itself by its own wire, gate or budget."""

    exit_code = EXIT_STOPPED


class LaunchRefused(VlaRlError):
    """A registered run may not start: everything that stands against it is in the message."""

    exit_code = EXIT_REFUSED


class IntegrityError(VlaRlError):
    """A frozen file, ledger or checkpoint does not match its digest."""

    exit_code = EXIT_INTEGRITY
