"""A policy that is kept from seeing: what it still scores is not owed to its eyes.

In: a sampler. Out: a sampler whose requests have other pictures. Each way takes away something else, see `VIEWS`. What
a policy scores with `foreign` pictures is its blind floor: an average trajectory. The state stays the episode's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vla_rl.policy.prompt import CAMERAS

if TYPE_CHECKING:
    from vla_rl.policy.sampler import Prediction, PredictRequest
    from vla_rl.rollout.wave import Sampler

OWN, FOREIGN, BLACK, STILL = "own", "foreign", "black", "still"
BORROWING = (FOREIGN, STILL)  # an episode is shown what others of the launch saw, and depends on them


def view(name: str, sampler: Sampler) -> Sampler:
    """The sampler with the pictures that `eval.frames` names.

    Args:
        name: ``own``: nothing is changed. ``foreign``: those of another episode. ``black``: no light in either camera.
            ``still``: the first pair ever seen, for every request, so that only the state tells moments apart.
            ``top_black``, ``wrist_black``: one camera without light.
        sampler: the sampler that answers.
    """
    return VIEWS[name](sampler)


class Foreign:
    """Frames rotate among the requests of one call; a request that is alone gets the last frames of another seed."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._seen: dict[int, np.ndarray] = {}

    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        own = [request.observation.frames for request in requests]
        for request, frames in zip(requests, own, strict=True):
            self._seen[request.seed] = frames
        foreign = own[1:] + own[:1]
        if len(requests) == 1:
            foreign = [next((f for seed, f in reversed(self._seen.items()) if seed != requests[0].seed), own[0])]
        return self._sampler.sample(_shown(requests, foreign), temperature)


class Black:
    """The pictures of some cameras are black."""

    def __init__(self, sampler: Sampler, cameras: Sequence[str] = CAMERAS) -> None:
        self._sampler = sampler
        self._dark = [CAMERAS.index(name) for name in cameras]

    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        shown = [request.observation.frames.copy() for request in requests]
        for frames in shown:
            frames[self._dark] = 0
        return self._sampler.sample(_shown(requests, shown), temperature)


class Still:
    """Every request has the pictures of the first one."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._first: np.ndarray | None = None

    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]:
        if self._first is None:
            self._first = requests[0].observation.frames
        return self._sampler.sample(_shown(requests, [self._first] * len(requests)), temperature)


def _shown(requests: Sequence[PredictRequest], frames: Sequence[np.ndarray]) -> list[PredictRequest]:
    """The requests with other pictures."""
    return [
        replace(request, observation=replace(request.observation, frames=seen))
        for request, seen in zip(requests, frames, strict=True)
    ]


VIEWS: dict[str, Callable[[Sampler], Sampler]] = {
    OWN: lambda sampler: sampler,
    FOREIGN: Foreign,
    BLACK: Black,
    STILL: Still,
    **{f"{camera}_black": lambda sampler, camera=camera: Black(sampler, (camera,)) for camera in CAMERAS},
}
