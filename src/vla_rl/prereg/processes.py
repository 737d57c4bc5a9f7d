"""Whether the process of an attempt still runs: by its number and the time at which it was started.

In: what an attempt recorded of its process. Out: yes or no. What a process is called is never looked at: a watcher that
searches for a name finds itself.
"""

from __future__ import annotations

import platform
from pathlib import Path

from vla_rl.prereg.state import Attempt


def is_alive(attempt: Attempt) -> bool:
    """Whether the process of an attempt runs on this machine: by its number and the time it was started, never by what
    it is called. An attempt on another machine is taken to be alive for as long as its ledger says nothing else."""
    if attempt.data["host"] != platform.node():
        return True
    return process_start(attempt.data["pid"]) == attempt.data["process_start"]


def process_start(pid: int) -> str | None:
    """When a process was started, in clock ticks since this machine was; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state == "Z" else f"{boot} {rest[18]}"
