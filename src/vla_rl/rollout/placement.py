"""On which node of a cluster a worker is put.

In: what the nodes have in all, what a worker wants, which way to fill them. Out: a node for each worker that asks, None
when no node has room. Left out: what other jobs of the cluster take; a worker that is put on a node full of them waits
for its turn there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

SPREAD, PACK = "spread", "pack"


@dataclass(frozen=True)
class Node:
    """A node that is up.

    Attributes:
        id: the cluster's name for it.
        address: of its machine.
        has: resources in all, by name.
    """

    id: str
    address: str
    has: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.address} (node {self.id[:6]})"


def capacity(has: Mapping[str, float], want: Mapping[str, float]) -> int:
    """How many workers fit on an empty node."""
    return min(math.floor(has.get(name, 0.0) / amount + 1e-9) for name, amount in want.items())


def choose(nodes: Iterable[Node], taken: Mapping[str, int], want: Mapping[str, float], placement: str) -> Node | None:
    """The node with room that has the fewest workers (`spread`) or the most (`pack`); the first id among equals."""
    open_ = [node for node in nodes if taken.get(node.id, 0) < capacity(node.has, want)]
    sign = 1 if placement == SPREAD else -1
    return min(open_, key=lambda node: (sign * taken.get(node.id, 0), node.id), default=None)


class Placer:
    """Keeps count of the workers on each node; may be asked from several threads.

    Args:
        nodes: the nodes that are up now.
        want: amounts, all above 0, that one worker takes.
        placement: `spread` or `pack`.
    """

    def __init__(self, nodes: Callable[[], list[Node]], want: Mapping[str, float], placement: str) -> None:
        self._nodes, self.want, self._placement = nodes, dict(want), placement
        self._taken: Counter[str] = Counter()
        self._gone: set[str] = set()
        self._lock = Lock()

    def take(self) -> Node | None:
        """A place for one more worker, if there is one."""
        with self._lock:
            up = [node for node in self._nodes() if node.id not in self._gone]
            node = choose(up, self._taken, self.want, self._placement)
            if node is not None:
                self._taken[node.id] += 1
            return node

    def give_back(self, node: Node, *, gone: bool = False) -> None:
        """The worker there is gone, or the node itself, though the cluster may not know it yet."""
        with self._lock:
            self._taken[node.id] -= 1
            if gone:
                self._gone.add(node.id)

    def wanted(self) -> str:
        """What a worker takes, for messages."""
        return amounts(self.want)

    def offered(self) -> str:
        """What the nodes have of that, for messages."""
        nodes = [f"{node}: {amounts({name: node.has.get(name, 0) for name in self.want})}" for node in self._nodes()]
        return "; ".join(nodes) or "no node"


def amounts(resources: Mapping[str, Any]) -> str:
    """``1 CPU, 0.5 arm``"""
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
