"""A worker process of this machine: commands through a pipe, frames through shared memory.

In: what it is started with. Out: a `handle.Worker`. Left out: the process's own side (`worker.worker_main`).
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from vla_rl.rollout.handle import Command, Lost, Worker
from vla_rl.rollout.shared import FrameBlock
from vla_rl.rollout.worker import SlotResult, frames_shape, unpacked, worker_main
from vla_rl.sim.canary import WORKER_VARIABLES

LEAVE_TIMEOUT_S = 5.0
_launching = Lock()  # a process gets its variables from this one's environment


@dataclass(frozen=True)
class Start:
    """What every worker process is started with: the environment, the packages it may come from, the frames."""

    env_spec: dict[str, Any]
    plugins: tuple[str, ...]
    block: FrameBlock


class ProcessWorker(Worker):
    """Handle of one spawned process."""

    def __init__(self, index: int, generation: int, start: Start) -> None:
        super().__init__(index, generation)
        context = multiprocessing.get_context("spawn")  # fork would inherit GL, CUDA and thread state
        self._block = start.block
        self._connection, child = context.Pipe()
        self._process = context.Process(
            target=worker_main,
            args=(child, start.env_spec, start.plugins, index, start.block),
            name=f"vla-rl-worker-{index}",
            daemon=True,
        )
        with _launching, _environment(WORKER_VARIABLES):
            self._process.start()
        child.close()  # so that the worker's death reads as end-of-file here

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.is_alive()

    def send(self, command: Command) -> None:
        if shape := self._shape():
            self._block.reserve(command[1] + 1, shape)
        try:
            self._connection.send(command)
        except OSError:
            pass  # it died while idle; reading from it says so

    def receive(self, timeout_s: float) -> tuple[Any, ...]:
        try:
            if not self._connection.poll(timeout_s):
                raise Lost(f"gave no answer for {timeout_s:g} s")
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join(timeout=1.0)
            raise Lost(f"died (exit code {self._process.exitcode})") from None

    def unpack(self, message: tuple[Any, ...]) -> SlotResult:
        return unpacked(message, self._block, self._shape())

    def kill(self) -> None:
        self._process.kill()

    def end(self, *, kill: bool) -> None:
        if kill:
            self._process.kill()
        self._connection.close()  # on which it leaves
        self._process.join(LEAVE_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _shape(self) -> tuple[int, ...] | None:
        assert self.description is not None
        return frames_shape(self.description)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a process started inside; thread counts are read when a child imports numpy."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
