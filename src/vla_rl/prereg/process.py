"""Which process it is that works on something, and whether it is still there.

In: process ids. Out: a `Process` that can be written down and recognised later. A number alone is not enough, as
numbers are given again: it counts together with when the process started, on which boot of which machine. Linux only.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STARTED = 19  # starttime among the fields of /proc/PID/stat that follow the command's name


@dataclass(frozen=True)
class Process:
    """A process of some machine.

    Attributes:
        node, boot: a digest of the machine's name, which is nobody's business elsewhere, and the id of its boot.
        pid: process id.
        started: when it started, in clock ticks since the boot.
    """

    node: str
    boot: str
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process with this number on this machine now; None if there is none, or only its remains."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(_node(), _boot(), pid, int(fields[STARTED]))

    @classmethod
    def own(cls) -> Process:
        """The process that asks."""
        found = cls.of(os.getpid())
        assert found is not None
        return found

    @classmethod
    def of_body(cls, body: Mapping[str, Any]) -> Process:
        """From what `body` gave."""
        return cls(str(body["node"]), str(body["boot"]), int(body["pid"]), int(body["started"]))

    def body(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def alive(self) -> bool | None:
        """Whether it still runs; None on another machine, which cannot tell."""
        return Process.of(self.pid) == self if self.node == _node() else None


def _node() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
