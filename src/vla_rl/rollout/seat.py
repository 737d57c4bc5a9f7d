"""One seat for a worker process, with the thread that talks to it and replaces it.

In: commands for slots. Out: a future `SlotResult` each, in order. One command is under way at a time, so the slot that
a worker was lost with is known, and a watchdog is one `poll` with a time limit. Left out: which slot sits where
(`pool`).
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from vla_rl import errors
from vla_rl.rollout.events import OnEvent, WorkerReplaced
from vla_rl.rollout.shared import FrameBlock
from vla_rl.rollout.worker import SlotResult, frames_shape, unpacked, worker_main
from vla_rl.sim.canary import WORKER_VARIABLES

# A first start may simplify meshes; a hang at this stage is rare, so it may take longer to show.
START_TIMEOUT_S = 300.0
LEAVE_TIMEOUT_S = 5.0
_launching = Lock()  # a process gets its variables from this one's environment

Command = tuple[str, int, Any]


@dataclass(frozen=True)
class Start:
    """What every worker is started with: the environment, the packages it may come from, the frames, the patience."""

    env_spec: dict[str, Any]
    plugins: tuple[str, ...]
    block: FrameBlock
    timeout_s: float


class _Lost(Exception):
    """The worker is of no use any more; says why."""


class _Worker:
    """Handle of one worker process."""

    def __init__(self, index: int, generation: int, start: Start) -> None:
        context = multiprocessing.get_context("spawn")  # fork would inherit GL, CUDA and thread state
        self.name = f"worker {index}" + (f" (replacement {generation})" if generation else "")
        self.connection, child = context.Pipe()
        self.process = context.Process(
            target=worker_main,
            args=(child, start.env_spec, start.plugins, index, start.block),
            name=f"vla-rl-worker-{index}",
            daemon=True,
        )
        with _launching, _environment(WORKER_VARIABLES):
            self.process.start()
        child.close()  # so that the worker's death reads as end-of-file here
        self.description: dict[str, Any] | None = None  # its first message, when the environment stands
        self.refusal: errors.UsageError | None = None  # its first message, when it can never stand on this machine
        self.slots: set[int] = set()  # slots in which an episode is under way here

    def receive(self, timeout_s: float) -> tuple[Any, ...]:
        """The next message.

        Raises:
            _Lost: the worker died, failed, or said nothing in time.
            UsageError: an error that no other worker would be spared.
        """
        try:
            if not self.connection.poll(timeout_s):
                raise _Lost(f"gave no answer for {timeout_s:g} s")
            message = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(timeout=1.0)
            raise _Lost(f"died (exit code {self.process.exitcode})") from None
        if message[0] == "user_error":
            name, what, where, remedy = message[1:]
            raise getattr(errors, name, errors.MachineError)(what, where=where, remedy=remedy)
        if message[0] == "crash":
            raise _Lost(f"failed: {message[1].strip().splitlines()[-1]}\n{message[1]}")
        return message

    def end(self, *, kill: bool) -> None:
        """Close the pipe, on which the worker leaves, or kill it."""
        if kill:
            self.process.kill()
        self.connection.close()
        self.process.join(LEAVE_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Seat:
    """Answers commands through a worker process that it starts, watches and replaces.

    Args:
        index: number of the worker, for its name.
        start: what it is started with.
        on_event: told of each replacement, in this seat's thread.
    """

    def __init__(self, index: int, start: Start, on_event: OnEvent) -> None:
        self._index, self._start, self._on_event = index, start, on_event
        self._generation, self._leaving = 0, False
        self._worker = _Worker(index, 0, start)
        self._waiting: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"vla-rl-seat-{index}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._worker.process.pid

    def describe(self) -> Future[dict[str, Any] | SlotResult]:
        """What the environment says of itself, or a lost result if none could be built."""
        return self._queue(lambda: self._guarded(-1, self._greet))

    def ask(self, name: str, slot: int, data: Any) -> Future[SlotResult]:
        """`reset` the slot with a seed, or `step` it with a chunk. User errors are raised by the future."""
        return self._queue(lambda: self._answer(name, slot, data))

    def leave(self) -> None:
        """Take no more commands: what still waits comes back lost, and the worker goes."""
        self._leaving = True
        self._waiting.put(None)

    def join(self) -> None:
        """Wait until the worker has gone; one that is busy for long is killed."""
        self._thread.join(LEAVE_TIMEOUT_S)
        if self._thread.is_alive():
            self._worker.process.kill()  # its thread wakes up
            self._thread.join()
        self._worker.end(kill=False)

    def _queue(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.put((work, future))
        return future

    def _work(self) -> None:
        while job := self._waiting.get():
            work, future = job
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    def _answer(self, name: str, slot: int, data: Any) -> SlotResult:
        if self._leaving:
            return SlotResult(slot, lost="the pool was closed")
        if name == "step" and slot not in self._worker.slots:
            return SlotResult(slot, lost=f"worker {self._index} was replaced")
        return self._guarded(slot, lambda: self._command((name, slot, data)))

    def _command(self, command: Command) -> SlotResult:
        shape = frames_shape(self._greet())
        worker, slot = self._worker, command[1]
        if shape:
            self._start.block.reserve(slot + 1, shape)
        try:
            worker.connection.send(command)
        except OSError:
            pass  # it died while idle; reading from it says so
        result = unpacked(worker.receive(self._start.timeout_s), self._start.block, shape)
        (worker.slots.discard if result.done else worker.slots.add)(slot)
        return result

    def _greet(self) -> dict[str, Any]:
        """The worker's description, awaited if it has just been started."""
        worker = self._worker
        if worker.refusal:
            raise worker.refusal
        if worker.description is None:
            try:
                _, worker.description = worker.receive(START_TIMEOUT_S)
            except errors.UsageError as error:
                worker.refusal = error
                raise
        assert worker.description is not None
        return worker.description

    def _guarded(self, slot: int, work: Callable[[], Any]) -> Any:
        """Do `work`; a worker that is lost over it is replaced, and the slot comes back lost."""
        worker = self._worker
        idle_death = worker.description is not None and not worker.process.is_alive()
        try:
            return work()
        except _Lost as loss:
            reason = f"{worker.name} {loss}"
            if not self._leaving:
                self._on_event(WorkerReplaced(worker.name, str(loss)))
                worker.end(kill=True)
                self._generation += 1
                self._worker = _Worker(self._index, self._generation, self._start)
            return SlotResult(slot, lost=reason, at_fault=not idle_death)


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
