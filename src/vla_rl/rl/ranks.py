"""What the passes of an update ask of the processes that share them. One process alone shares with nobody.

In: micro-batches, sums, norms of one process. Out: those of all. Left out: how processes find each other and what they
do between updates (`team`, `sharedlearner`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from torch import Tensor

Sums = TypeVar("Sums")


class Ranks(Protocol):
    """The processes that compute one update.

    Attributes:
        alone: whether this process may do a pass again that has failed, which nobody else would know of.
    """

    @property
    def alone(self) -> bool: ...

    def rounds(self, parts: Iterable[slice]) -> Iterator[slice]:
        """The micro-batches of this process; where others have more, what keeps their passes company follows."""
        ...

    def go_on(self, fine: bool) -> bool:
        """After a backward pass: whether it is fine everywhere. May raise to stop all processes here."""
        ...

    def total(self, sums: Sums) -> Sums:
        """The sum over all processes of something that can be added; the same object everywhere."""
        ...

    def whole(self, value: Tensor) -> Tensor:
        """A number of which every process may hold a part."""
        ...


class Alone:
    """One process."""

    alone = True

    def rounds(self, parts: Iterable[slice]) -> Iterator[slice]:
        return iter(parts)

    def go_on(self, fine: bool) -> bool:
        return fine

    def total(self, sums: Sums) -> Sums:
        return sums

    def whole(self, value: Tensor) -> Tensor:
        return value


ALONE = Alone()
