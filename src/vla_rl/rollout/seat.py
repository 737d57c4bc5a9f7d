"""One seat for a worker, with the thread that talks to it and replaces it.

In: commands for slots. Out: a future `SlotResult` each, in order. One command is under way at a time, so the slot that
a worker was lost with is known, and a watchdog is one wait with a time limit. Left out: which slot sits where (`pool`),
and what a worker is (`handle`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any

from vla_rl.rollout.events import OnEvent, WorkerReplaced
from vla_rl.rollout.handle import Lost, Worker
from vla_rl.rollout.worker import SlotResult

Hire = Callable[[int, int], Worker]  # of the seat's index and how many workers it has lost


class Seat:
    """Answers commands through a worker that it starts, watches and replaces.

    Args:
        index: number of the worker, for its name.
        hire: starts a worker.
        timeout_s: a worker that takes longer to answer one command counts as hung.
        on_event: told of each replacement, in this seat's thread.

    Attributes:
        worker: who sits here now.
        replaced: how many sat here before.
    """

    def __init__(self, index: int, hire: Hire, timeout_s: float, on_event: OnEvent) -> None:
        self._index, self._hire, self._timeout_s, self._on_event = index, hire, timeout_s, on_event
        self.replaced, self._leaving = 0, False
        self.worker = hire(index, 0)
        self._waiting: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"vla-rl-seat-{index}", daemon=True)
        self._thread.start()

    def describe(self) -> Future[dict[str, Any] | SlotResult]:
        """What the environment says of itself, or a lost result if none could be built."""
        return self._queue(lambda: self._guarded(-1, lambda: self.worker.greet()))

    def ask(self, name: str, slot: int, data: Any) -> Future[SlotResult]:
        """`reset` the slot with a seed, or `step` it with a chunk. User errors are raised by the future."""
        return self._queue(lambda: self._answer(name, slot, data))

    def leave(self) -> None:
        """Take no more commands: what still waits comes back lost, and the worker goes."""
        self._leaving = True
        self._waiting.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the worker has gone; one that is busy for longer is killed."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.worker.kill()  # its thread wakes up
            self._thread.join()
        self.worker.end(kill=False)

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
        if name == "step" and slot not in self.worker.slots:
            return SlotResult(slot, lost=f"worker {self._index} was replaced")
        return self._guarded(slot, lambda: self.worker.perform((name, slot, data), self._timeout_s))

    def _guarded(self, slot: int, work: Callable[[], Any]) -> Any:
        """Do `work`; a worker that is lost over it is replaced, and the slot comes back lost."""
        worker = self.worker
        idle_death = worker.description is not None and not worker.alive()
        try:
            return work()
        except Lost as loss:
            reason = f"{worker.name} {loss}"
            if not self._leaving:
                self._on_event(WorkerReplaced(worker.name, str(loss)))
                worker.end(kill=True)
                self.replaced += 1
                self.worker = self._hire(self._index, self.replaced)
            return SlotResult(slot, lost=reason, at_fault=not idle_death)
