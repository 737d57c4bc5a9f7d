"""A pool whose workers are Ray actors, on this machine or on any number of nodes.

In: what `ProcessPool` takes, and where to play. Out: the same answers, bit for bit where the nodes' software and
processors are the same. Nodes may join and leave: a lost actor is put on another node with room; as long as there is
none, the others take the episodes that would have started with it, and a node that joins takes it back. Left out: the
policy, which stays in the process that holds the pool.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from vla_rl import errors
from vla_rl.rollout.events import OnEvent, ignore
from vla_rl.rollout.placement import Placer
from vla_rl.rollout.pool import SeatedPool
from vla_rl.rollout.ray_cluster import join, nodes, require_ray
from vla_rl.rollout.ray_worker import RayStart, RayWorker, software
from vla_rl.rollout.seat import Seat


class RayPool(SeatedPool):
    """Slots spread over Ray actors.

    Args:
        workers, groups, timeout_s, on_event: see `SeatedPool`.
        address: ``host:port`` of a cluster's head; None starts a cluster on this machine, which ends with the pool.
        cpus: CPUs that Ray sets aside for a worker.
        resources: further resources of its node that a worker takes, by name.
        placement: `spread` over the nodes, or `pack` one after the other.
        env_spec: plain dict with `_target_`, built inside each worker.
        plugins: packages besides `vla_rl` that the environment may come from.

    Raises:
        ConfigError: the cluster has no room for so many workers.
        MachineError: Ray is not installed, or there is no such cluster.
    """

    def __init__(
        self,
        *,
        workers: int,
        groups: int,
        timeout_s: float,
        address: str | None,
        cpus: float,
        resources: Mapping[str, float],
        placement: str,
        env_spec: Mapping[str, Any],
        plugins: Sequence[str] = (),
        on_event: OnEvent = ignore,
    ) -> None:
        ray, want = require_ray(), {"CPU": cpus, **resources}
        if any(amount <= 0 for amount in want.values()):
            raise errors.ConfigError("a worker takes more than nothing of a resource", where="pool.resources")
        self._at: dict[int, Seat] = {}  # who plays the episode of a slot
        self._disconnect = join(ray, address, {name: math.ceil(workers * amount) for name, amount in want.items()})
        try:
            placer = Placer(partial(nodes, ray), want, placement)
            start = RayStart(ray, dict(env_spec), tuple(plugins), placer, software())

            def hire(index: int, generation: int) -> RayWorker:
                return RayWorker(index, generation, start)

            super().__init__(workers=workers, groups=groups, timeout_s=timeout_s, hire=hire, on_event=on_event)
            placed = sum(_worker(seat).placed() for seat in self._seats)
            if placed < workers:
                raise errors.ConfigError(
                    f"the cluster has room for {placed} of {workers} workers of {placer.wanted()} each",
                    where="pool.workers",
                    remedy="lower pool.workers, pool.cpus or pool.resources, or add nodes; there are: "
                    + placer.offered(),
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        self._disconnect()

    def _seat(self, name: str, slot: int) -> Seat:
        own = super()._seat(name, slot)
        if name != "reset":
            return self._at.get(slot, own)
        ready = [own] if _ready(own) else [seat for seat in self._seats if _ready(seat)]
        load = Counter(map(id, self._at.values()))
        self._at[slot] = min(ready, key=lambda seat: load[id(seat)], default=own)
        return self._at[slot]


def _ready(seat: Seat) -> bool:
    """Whether the seat can be given an episode; one whose first worker is starting counts, since all of them are."""
    worker = _worker(seat)
    return worker.description is not None or seat.replaced == 0 or worker.greets()


def _worker(seat: Seat) -> RayWorker:
    assert isinstance(seat.worker, RayWorker)
    return seat.worker
