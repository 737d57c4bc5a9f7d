"""What a policy is shown under each view, and what stays its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from vla_rl.config.schema import EvalConfig
from vla_rl.evals.blind import VIEWS, view
from vla_rl.policy.prompt import CAMERAS, Observation
from vla_rl.policy.sampler import PredictRequest


class Remembering:
    """Keeps the requests that it is asked to answer."""

    def __init__(self) -> None:
        self.asked: list[PredictRequest] = []

    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Any]:
        self.asked += requests
        return [None] * len(requests)


def request(seed: int, replan: int = 0) -> PredictRequest:
    frames = np.full((len(CAMERAS), 4, 4, 3), 10 * (seed - 300) + replan + 1, np.uint8)
    frames[1] += 100
    return PredictRequest(Observation(frames, np.full(6, float(seed))), seed=seed, draw=0, replan=replan)


def shown(name: str, *calls: list[PredictRequest]) -> list[np.ndarray]:
    inner = Remembering()
    sampler: Any = view(name, inner)
    for requests in calls:
        assert len(sampler.sample(requests, 0.0)) == len(requests)
    asked = [each for requests in calls for each in requests]
    for before, after in zip(asked, inner.asked, strict=True):
        assert (before.seed, before.draw, before.replan) == (after.seed, after.draw, after.replan)
        assert before.observation.state_deg is after.observation.state_deg
    return [each.observation.frames for each in inner.asked]


ASKED = [request(300), request(301), request(302)]
OWN = [each.observation.frames for each in ASKED]


def test_the_choices_of_the_configuration_are_the_views() -> None:
    metadata: Any = EvalConfig.__dataclass_fields__["frames"].metadata
    assert tuple(VIEWS) == metadata["choices"]


def test_own_pictures_are_passed_on() -> None:
    assert all(a is b for a, b in zip(shown("own", ASKED), OWN, strict=True))


def test_foreign_pictures_are_never_ones_own() -> None:
    frames = shown("foreign", ASKED, [request(301, 5)])
    assert [f[0, 0, 0, 0] for f in frames[:3]] == [11, 21, 1]
    assert frames[3][0, 0, 0, 0] == 21  # alone: the last one seen of another seed


def test_still_pictures_are_the_first_ever_seen() -> None:
    assert all(np.array_equal(f, OWN[0]) for f in shown("still", ASKED, [request(305, 3)]))


@pytest.mark.parametrize(("name", "dark"), [("black", (0, 1)), ("top_black", (0,)), ("wrist_black", (1,))])
def test_black_cameras_are_black_and_the_others_untouched(name: str, dark: tuple[int, ...]) -> None:
    before = [frames.copy() for frames in OWN]
    for seen, own in zip(shown(name, ASKED), OWN, strict=True):
        for camera in range(len(CAMERAS)):
            assert np.array_equal(seen[camera], own[camera] * (camera not in dark))
    assert all(np.array_equal(a, b) for a, b in zip(OWN, before, strict=True))
