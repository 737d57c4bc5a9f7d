"""Environments and a sampler that note the time of their own work, for `utilisation.py` and `step.py`.

In: the real task and the real sampler. Out: the same answers, and seconds. An episode's seconds travel in its metrics
as `useful_s`, with the moments at which it began and ended (`began_s`, `ended_s`; one clock for all processes).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vla_rl.sim.env import BoatToDisk


class _Timed:
    """An episode's metrics with its times."""

    def __init__(self, metrics: Any, **times_s: float) -> None:
        self._metrics, self._times_s = metrics, times_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metrics, name)

    def as_dict(self) -> dict[str, Any]:
        return {**self._metrics.as_dict(), **self._times_s}


class ClockedBoat(BoatToDisk):
    """Counts what `reset` and `step` take: physics, metrics and pictures, with all threads of the process."""

    def reset(self, **kwargs: Any) -> Any:
        started, self._useful_s, self._began_s = time.process_time(), 0.0, time.monotonic()
        answer = super().reset(**kwargs)
        self._useful_s += time.process_time() - started
        return answer

    def step(self, action: Any) -> Any:
        started = time.process_time()
        answer = super().step(action)
        self._useful_s += time.process_time() - started
        return answer

    def metrics(self) -> Any:
        return _Timed(super().metrics(), useful_s=self._useful_s, began_s=self._began_s, ended_s=time.monotonic())


class SplitBoat(BoatToDisk):
    """Counts the wall time of physics with its metrics apart from that of pictures."""

    def reset(self, **kwargs: Any) -> Any:
        self._physics_s = self._pictures_s = 0.0
        started = time.perf_counter()
        answer = super().reset(**kwargs)
        self._physics_s += time.perf_counter() - started - self._pictures_s
        return answer

    def step(self, action: Any) -> Any:
        started, pictures_s = time.perf_counter(), self._pictures_s
        answer = super().step(action)
        self._physics_s += time.perf_counter() - started - (self._pictures_s - pictures_s)
        return answer

    def observe(self) -> Any:
        started = time.perf_counter()
        answer = super().observe()
        self._pictures_s += time.perf_counter() - started
        return answer

    def metrics(self) -> Any:
        return _Timed(super().metrics(), physics_s=self._physics_s, pictures_s=self._pictures_s)


class ClockedExpertBoat(BoatToDisk):
    """Counts everything from the start of an episode to its metrics: the expert's own planning is its inference."""

    _open: tuple[float, float] | None = None

    def begin(self, *args: Any, **kwargs: Any) -> Any:
        self._open = self._open or (time.process_time(), time.monotonic())
        return super().begin(*args, **kwargs)

    def metrics(self) -> Any:
        (cpu_s, began_s), self._open = self._open or (0.0, 0.0), None
        times_s = {"useful_s": time.process_time() - cpu_s, "began_s": began_s, "ended_s": time.monotonic()}
        return _Timed(super().metrics(), **times_s)


class ClockedSampler:
    """Counts what each lane's thread takes (a lane has one), and how many rows were asked for in how many calls."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.calls: list[tuple[float, int]] = []  # seconds and rows; appending is atomic

    @property
    def useful_s(self) -> float:
        return sum(seconds for seconds, _ in self.calls)

    def sample(self, requests: Sequence[Any], temperature: float) -> Any:
        return self._clocked(self._sampler, requests, temperature)

    @contextmanager
    def lanes(self, count: int) -> Iterator[list[Any]]:
        with self._sampler.lanes(count) as lanes:
            yield [_Lane(self, lane) for lane in lanes]

    def _clocked(self, lane: Any, requests: Sequence[Any], temperature: float) -> Any:
        started = time.thread_time()
        answer = lane.sample(requests, temperature)
        self.calls.append((time.thread_time() - started, len(requests)))
        return answer


class _Lane:
    def __init__(self, clock: ClockedSampler, lane: Any) -> None:
        self._clock, self._lane = clock, lane

    def sample(self, requests: Sequence[Any], temperature: float) -> Any:
        return self._clock._clocked(self._lane, requests, temperature)
