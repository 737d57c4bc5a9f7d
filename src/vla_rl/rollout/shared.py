"""Frames in memory that the parent and its workers share: pictures travel as one copy instead of a pickle.

In: the number of slots and the shape of one slot's frames. Out: one array a slot, seen by every process that was given
the block. The memory is anonymous (`memfd_create`): it has no name under /dev/shm that a killed process could leave
behind, does not count against the size of that mount, and goes with the last process that holds it. Left out: who
writes when (`pool` and `worker` take turns, one command at a time).
"""

from __future__ import annotations

import errno
import math
import mmap
import os
from multiprocessing import reduction
from typing import Any

import numpy as np

from vla_rl.errors import MachineError

Shape = tuple[int, ...]


def available_bytes() -> int:
    """Memory that can be had without swapping, as the kernel estimates it."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


class FrameBlock:
    """Room for the frames of every slot, uint8, one after the other.

    A new block is empty; `reserve` makes room, `view` gives access. It can be an argument of a process that is being
    started with the spawn method, and nothing else: what is sent is the file descriptor.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("vla-rl-frames", os.MFD_CLOEXEC)
        self._room: mmap.mmap | None = None

    def reserve(self, slots: int, shape: Shape) -> None:
        """Make room for the slots 0 .. `slots` - 1 now, so that no later write can fail.

        Raises:
            MachineError: there is not so much memory.
        """
        needed, held = slots * math.prod(shape), os.fstat(self._fd).st_size
        if needed <= held:
            return
        try:
            if needed - held > available_bytes():  # the kernel would go on until it has to kill somebody
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            os.posix_fallocate(self._fd, 0, needed)
        except OSError as error:
            raise MachineError(
                f"no memory for the frames of {slots} slots ({needed / 2**20:.0f} MiB): {error.strerror}",
                where="memory shared with the workers",
                remedy="lower eval.slots or sim.image_px, or give this machine more memory",
            ) from None

    def view(self, slot: int, shape: Shape) -> np.ndarray:
        """The frames of a slot, uint8 of `shape`; `reserve` must have covered the slot."""
        size = math.prod(shape)
        room = self._room
        if room is None or len(room) < (slot + 1) * size:
            room = self._room = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        return np.frombuffer(room, dtype=np.uint8, count=size, offset=slot * size).reshape(shape)

    def close(self) -> None:
        """Let go of the block; views that are still held stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._room = -1, None

    def __getstate__(self) -> dict[str, Any]:
        return {"handle": reduction.DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd, self._room = state["handle"].detach(), None
