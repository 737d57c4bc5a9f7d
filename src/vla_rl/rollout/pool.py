"""Pools of environments: the same slots served in this process (`SerialPool`) or by worker processes (`ProcessPool`).

In: an env spec and batches of (slot, seed) or (slot, chunk). Out: one `SlotResult` a request, in request order. A slot
belongs to worker `slot % workers`. A worker that dies, hangs or shows garbage is named, killed and replaced; the
results of its slots come back `lost`, and `wave.run_wave` redoes those episodes from their keys. Which worker serves a
slot never changes a result. Left out: policies, and the bound on retries (`wave`).
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, Protocol, Self

import numpy as np

from vla_rl import errors
from vla_rl.rollout.events import OnEvent, WorkerReplaced, ignore
from vla_rl.rollout.worker import EnvSlots, SlotResult, worker_main

START_TIMEOUT_S = (
    300.0  # a first start may simplify meshes; a hang at this stage is rare, so it may take longer to show
)
SINGLE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


class Pool(Protocol):
    """What `run_wave` needs of a pool."""

    def reset(self, requests: Sequence[tuple[int, int]]) -> list[SlotResult]: ...

    def step(self, requests: Sequence[tuple[int, np.ndarray]]) -> list[SlotResult]: ...

    def close(self) -> None: ...


class _Closing:
    """Context-manager behaviour shared by the pools."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SerialPool(_Closing):
    """All slots in this process: for debugging, and as the reference that `ProcessPool` must equal bit for bit.

    Args:
        env_spec: plain dict with `_target_`, built by `vla_rl.config.build`.
        plugins: packages besides `vla_rl` that the environment may come from.

    An error of an environment is raised at once, with its traceback: there is no process to replace.
    """

    def __init__(self, *, env_spec: Mapping[str, Any], plugins: Sequence[str] = ()) -> None:
        # Mesa's software rasteriser and triton each bring an LLVM; triton crashes the process if it is loaded second,
        # and torch's optimisers load it.
        importlib.import_module("torch._dynamo")
        self._slots = EnvSlots(env_spec, plugins)

    def reset(self, requests: Sequence[tuple[int, int]]) -> list[SlotResult]:
        return [self._slots.reset(slot, seed) for slot, seed in requests]

    def step(self, requests: Sequence[tuple[int, np.ndarray]]) -> list[SlotResult]:
        return [self._slots.step(slot, chunk_deg) for slot, chunk_deg in requests]

    def close(self) -> None:
        self._slots.close()


class _Worker:
    """Handle of one worker process."""

    def __init__(self, index: int, generation: int, env_spec: Mapping[str, Any], plugins: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")  # fork would inherit GL, CUDA and thread state
        self.name = f"worker {index}" + (f" (replacement {generation})" if generation else "")
        self.connection, child = context.Pipe()
        self.process = context.Process(
            target=worker_main,
            args=(child, dict(env_spec), tuple(plugins), index),
            name=f"vla-rl-worker-{index}",
            daemon=True,
        )
        with _environment(SINGLE_THREAD):
            self.process.start()
        child.close()  # so that the worker's death reads as end-of-file here
        self.ready = False  # its first message says that the environment stands
        self.slots: set[int] = set()  # slots in which an episode is under way here

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class ProcessPool(_Closing):
    """Slots spread over spawned worker processes, each with one thread.

    Args:
        workers: number of processes, at least 1.
        timeout_s: a worker that takes longer to answer one batch of commands counts as hung.
        env_spec: plain dict with `_target_`, built inside each worker.
        plugins: packages besides `vla_rl` that the environment may come from.
        on_event: told of each `WorkerReplaced`.

    Raises:
        ConfigError, MachineError: from any method, when an environment cannot be built on this machine at all.
    """

    def __init__(
        self,
        *,
        workers: int,
        timeout_s: float,
        env_spec: Mapping[str, Any],
        plugins: Sequence[str] = (),
        on_event: OnEvent = ignore,
    ) -> None:
        if workers < 1 or timeout_s <= 0:
            raise errors.ConfigError(
                f"a pool needs at least 1 worker and a positive timeout, not {workers} and {timeout_s} s", where="pool"
            )
        self._spec, self._plugins, self._timeout_s, self._on_event = dict(env_spec), plugins, timeout_s, on_event
        self._generations = [0] * workers
        self._workers = [_Worker(index, 0, self._spec, plugins) for index in range(workers)]

    def reset(self, requests: Sequence[tuple[int, int]]) -> list[SlotResult]:
        return self._serve([("reset", slot, seed) for slot, seed in requests])

    def step(self, requests: Sequence[tuple[int, np.ndarray]]) -> list[SlotResult]:
        return self._serve([("step", slot, chunk_deg) for slot, chunk_deg in requests])

    def worker_pids(self) -> list[int | None]:
        """Process ids by worker index, for monitoring and fault tests."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()  # end-of-file: the worker closes its environments and leaves
        for worker in self._workers:
            worker.process.join(timeout=5.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    def _serve(self, commands: list[tuple[str, int, Any]]) -> list[SlotResult]:
        batches: dict[int, list[tuple[str, int, Any]]] = {}
        answers: dict[int, SlotResult] = {}
        for name, slot, data in commands:
            index = slot % len(self._workers)
            if name == "step" and slot not in self._workers[index].slots:
                answers[slot] = SlotResult(slot, lost=f"worker {index} was replaced")
            else:
                batches.setdefault(index, []).append((name, slot, data))
        deadlines = {index: self._send(index, batch) for index, batch in batches.items()}
        while deadlines:
            patience_s = max(0.0, min(deadlines.values()) - time.monotonic())
            readable = wait([self._workers[index].connection for index in deadlines], timeout=patience_s)
            answered = [index for index in deadlines if self._workers[index].connection in readable]
            late = [index for index, deadline in deadlines.items() if time.monotonic() >= deadline]
            for index in sorted({*answered, *late}):
                results = self._receive(index, batches[index], ready_to_read=index in answered)
                if results is None:  # only the start-up message came; the answer is still due
                    deadlines[index] = time.monotonic() + self._timeout_s
                    continue
                answers.update((result.slot, result) for result in results)
                del deadlines[index]
        return [answers[slot] for _, slot, _ in commands]

    def _send(self, index: int, batch: list[tuple[str, int, Any]]) -> float:
        """Send a batch; returns the monotonic time by which the next message is due."""
        try:
            self._workers[index].connection.send(batch)
        except OSError:
            pass  # it died while idle; reading from it says so
        return time.monotonic() + (self._timeout_s if self._workers[index].ready else START_TIMEOUT_S)

    def _receive(
        self, index: int, batch: list[tuple[str, int, Any]], *, ready_to_read: bool
    ) -> list[SlotResult] | None:
        worker = self._workers[index]
        if not ready_to_read:
            return self._replace(index, batch, f"gave no answer for {self._timeout_s:g} s")
        try:
            kind, *content = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(timeout=1.0)
            return self._replace(index, batch, f"died (exit code {worker.process.exitcode})")
        if kind == "user_error":
            name, what, where, remedy = content
            raise getattr(errors, name, errors.MachineError)(what, where=where, remedy=remedy)
        if kind == "crash":
            slot, trace = content
            return self._replace(index, batch, f"failed: {trace.strip().splitlines()[-1]}\n{trace}", slot)
        if not worker.ready:
            worker.ready = True
            return None
        for result in content[0]:
            (worker.slots.discard if result.done else worker.slots.add)(result.slot)
        return content[0]

    def _replace(
        self, index: int, batch: list[tuple[str, int, Any]], reason: str, culprit: int | None = None
    ) -> list[SlotResult]:
        """Kill and replace a worker; all slots of the batch are lost, and may be at fault unless one is known to be."""
        worker = self._workers[index]
        self._on_event(WorkerReplaced(worker.name, reason))
        worker.kill()
        self._generations[index] += 1
        self._workers[index] = _Worker(index, self._generations[index], self._spec, self._plugins)
        lost = f"{worker.name} {reason}"
        return [SlotResult(slot, lost=lost, at_fault=culprit in (None, slot)) for _, slot, _ in batch]


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes started inside; thread counts are read when a child imports numpy."""
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
