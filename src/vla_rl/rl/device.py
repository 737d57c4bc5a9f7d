"""Who uses the GPU besides this process.

In: a device. Out: free memory, memory of others, their processes as far as they can be told; None on a CPU.
Left out: judging it (`gates`).
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

import torch

GIB = 2**30
_QUERY = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")


@dataclass(frozen=True)
class DeviceFacts:
    """The state of a GPU at one moment.

    Attributes:
        total_gib, free_gib: its memory.
        foreign_gib: memory that is in use and is not in this process's own pool. This process's context (about half a
            GiB) counts here, because the driver does not tell it apart.
        foreign_processes: process ids of others that compute there; None where the driver tells none, or tells those of
            another process namespace, as it does in a container.
    """

    total_gib: float
    free_gib: float
    foreign_gib: float
    foreign_processes: tuple[int, ...] | None


def device_facts(device: str) -> DeviceFacts | None:
    """Look at the GPU that torch uses; this process must hold memory there, or it cannot recognise itself."""
    if not str(device).startswith("cuda"):
        return None
    free, total = torch.cuda.mem_get_info()
    foreign = total - free - torch.cuda.memory_reserved()
    return DeviceFacts(total / GIB, free / GIB, max(0.0, foreign / GIB), foreign_processes(_compute_pids()))


def foreign_processes(pids: list[int] | None) -> tuple[int, ...] | None:
    """Those of `pids` that are not this process; None if it is not among them, since then they are of elsewhere."""
    own = os.getpid()
    return None if pids is None or own not in pids else tuple(sorted(pid for pid in pids if pid != own))


def _compute_pids() -> list[int] | None:
    """Process ids that compute on this process's GPU; None where the driver's program is absent or refuses."""
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    try:
        told = subprocess.run(
            [*_QUERY, f"--id=GPU-{uuid}"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
        return [int(line) for line in told.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
