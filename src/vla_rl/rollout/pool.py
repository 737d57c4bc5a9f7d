"""Pools of environments: the same slots served in this process (`SerialPool`) or by worker processes (`ProcessPool`);
`ray_pool` has them served by actors of a cluster.

In: an env spec and requests of (slot, seed) or (slot, chunk). Out: one `SlotResult` a request, in request order. A
slot belongs to worker `slot % workers`. A worker that dies, hangs or shows garbage is named, killed and replaced
(`seat`); the results of its slots come back `lost`, and `wave.run_wave` redoes those episodes from their keys. Which
worker serves a slot never changes a result. Left out: policies, and the bound on retries (`wave`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Protocol, Self

import numpy as np

from vla_rl import errors
from vla_rl.rollout.description import complete
from vla_rl.rollout.events import Event, OnEvent, ignore
from vla_rl.rollout.process_worker import LEAVE_TIMEOUT_S, ProcessWorker, Start
from vla_rl.rollout.seat import Hire, Seat
from vla_rl.rollout.shared import FrameBlock
from vla_rl.rollout.worker import EnvSlots, SlotResult

DESCRIBE_TRIES = 3


class Pool(Protocol):
    """What `run_wave` and the trainer need of a pool.

    Attributes:
        groups: into how many groups a wave should split its slots, so that some move while others are predicted. Above
            1, `reset` and `step` are called from several threads, never for the same slot.
    """

    groups: int

    def describe(self) -> dict[str, Any]: ...

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

    groups = 1  # while an environment moves in this process, nothing else can

    def __init__(self, *, env_spec: Mapping[str, Any], plugins: Sequence[str] = ()) -> None:
        self._slots = EnvSlots(env_spec, plugins)

    def describe(self) -> dict[str, Any]:
        """See `ProcessPool.describe`."""
        return complete(self._slots.describe(0))

    def reset(self, requests: Sequence[tuple[int, int]]) -> list[SlotResult]:
        return [self._slots.reset(slot, seed) for slot, seed in requests]

    def step(self, requests: Sequence[tuple[int, np.ndarray]]) -> list[SlotResult]:
        return [self._slots.step(slot, chunk_deg) for slot, chunk_deg in requests]

    def close(self) -> None:
        self._slots.close()


class SeatedPool(_Closing):
    """Slots spread over workers, each with a seat that watches and replaces it; what `ProcessPool` and `RayPool` share.

    Args:
        workers: number of workers, at least 1.
        groups: see `Pool`; 1 plays in lockstep.
        timeout_s: a worker that takes longer to answer one command counts as hung.
        hire: starts a worker.
        on_event: told of each `WorkerReplaced`, from a thread of the pool, one at a time.

    Raises:
        ConfigError, MachineError: from any method, when an environment cannot be built on this machine at all.
    """

    _seats: Sequence[Seat] = ()

    def __init__(self, *, workers: int, groups: int, timeout_s: float, hire: Hire, on_event: OnEvent) -> None:
        if workers < 1 or groups < 1 or timeout_s <= 0:
            raise errors.ConfigError(
                f"a pool needs at least 1 worker, 1 group and a positive timeout, not {workers}, {groups} and "
                f"{timeout_s} s",
                where="pool",
            )
        self.workers, self.groups, self._telling = workers, groups, Lock()

        def tell(event: Event) -> None:
            with self._telling:
                on_event(event)

        self._seats = [Seat(index, hire, timeout_s, tell) for index in range(workers)]

    def describe(self) -> dict[str, Any]:
        """What the simulator says of itself: `protocol`, `scene_hash`, `image_px` (None if unknown), `max_replans`, and
        whatever else it tells; JSON-able.

        Raises:
            ConfigError: it does not say how many replans an episode can have.
            RolloutError: no worker could be started.
        """
        answer = None
        for _ in range(DESCRIBE_TRIES):
            answer = self._seats[0].describe().result()
            if not isinstance(answer, SlotResult):
                return complete(answer)
        raise errors.RolloutError(f"the environment cannot be built: {answer and answer.lost}", where="sim")

    def reset(self, requests: Sequence[tuple[int, int]]) -> list[SlotResult]:
        """Start an episode with each seed in its slot; the first observations, in request order."""
        return self._serve("reset", requests)

    def step(self, requests: Sequence[tuple[int, np.ndarray]]) -> list[SlotResult]:
        """Execute a chunk in each slot; what is seen then, in request order."""
        return self._serve("step", requests)

    def worker_pids(self) -> list[int | None]:
        """Process ids by worker index, for monitoring and fault tests; None for one that is not on this machine."""
        return [seat.worker.pid for seat in self._seats]

    def close(self) -> None:
        for seat in self._seats:
            seat.leave()
        patience_ends = time.monotonic() + LEAVE_TIMEOUT_S  # for all of them together
        for seat in self._seats:
            seat.join(max(0.0, patience_ends - time.monotonic()))
        self._seats = ()

    def _seat(self, name: str, slot: int) -> Seat:
        """Who serves this command of a slot."""
        return self._seats[slot % len(self._seats)]

    def _serve(self, name: str, requests: Sequence[tuple[int, Any]]) -> list[SlotResult]:
        if not self._seats:
            raise errors.RolloutError("the pool is closed")
        asked = [self._seat(name, slot).ask(name, slot, data) for slot, data in requests]
        return [future.result() for future in asked]


class ProcessPool(SeatedPool):
    """Slots spread over spawned worker processes, each with one thread.

    Args:
        workers, groups, timeout_s, on_event: see `SeatedPool`.
        env_spec: plain dict with `_target_`, built inside each worker.
        plugins: packages besides `vla_rl` that the environment may come from.
    """

    def __init__(
        self,
        *,
        workers: int,
        groups: int,
        timeout_s: float,
        env_spec: Mapping[str, Any],
        plugins: Sequence[str] = (),
        on_event: OnEvent = ignore,
    ) -> None:
        self._block = FrameBlock()
        start = Start(dict(env_spec), tuple(plugins), self._block)

        def hire(index: int, generation: int) -> ProcessWorker:
            return ProcessWorker(index, generation, start)

        super().__init__(workers=workers, groups=groups, timeout_s=timeout_s, hire=hire, on_event=on_event)

    def close(self) -> None:
        super().close()
        self._block.close()
