"""The toy world with what guards look for: strikes and knock-aways from some seed on, and a boat that nothing moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toy_world import TellingWorld, spec


@dataclass(frozen=True)
class Told:
    values: dict[str, Any]

    def as_dict(self):
        return self.values


class GuardedWorld(TellingWorld):
    def __init__(self, *, struck_from: int, knocked_from: int, inert: bool, **toy) -> None:
        super().__init__(**toy)
        self.struck_from, self.knocked_from, self.inert = struck_from, knocked_from, inert

    def metrics(self):
        training = 200000 <= self.seed
        told = {
            "reset_strikes": int(training and self.seed >= self.struck_from),
            "knockaway": training and self.seed >= self.knocked_from,
            "interacted": not self.inert,
        }
        return Told({**super().metrics().as_dict(), **told})


def guarded(*, struck_from: int = 999999, knocked_from: int = 999999, inert: bool = False, max_chunks: int = 3) -> dict:
    toy = spec(max_chunks=max_chunks)
    own = {"struck_from": struck_from, "knocked_from": knocked_from, "inert": inert}
    return {**toy, "_target_": "guarded_world.GuardedWorld", **own}
