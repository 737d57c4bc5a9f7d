"""Events read from distances and grips, on traces small enough to work out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.funnel import NOMINAL_TICK_S, carry_speed_cm_s, interacted, pinch_fail, reach_bin
from vla_rl.sim.stillness import is_frozen, picture_motion


def fail(distances_cm: list[float], grips: list[int], success: bool = False) -> str | None:
    return pinch_fail(np.array(distances_cm, float), np.array(grips), success=success)


@pytest.mark.parametrize(
    ("distances_cm", "grips", "expected"),
    [
        ([9, 8, 7, 6, 6], [0, 3, 0, 3, 0], "timeout_holding"),
        ([9, 8, 7, 6, 6], [0, 0, 3, 0, 0], "timeout_holding"),  # third sample from the end
        ([9, 8, 7, 6, 6, 6], [0, 3, 3, 0, 0, 0], "stalled_carry"),  # fourth
        ([9, 8, 7.5, 6, 6, 6], [0, 3, 3, 0, 0, 0], "wrong_way"),  # 0.5 cm is not more than 0.5 cm
        ([9, 8, 7.49, 6, 6, 6], [0, 3, 3, 0, 0, 0], "stalled_carry"),
        ([9, 8, 9, 9, 9, 9], [0, 3, 3, 0, 0, 0], "wrong_way"),
        ([9, 8, 9, 9, 9, 9], [0, 3, 0, 0, 0, 0], "wrong_way"),  # one pinch carries nothing
        ([9, 8, 7, 6, 6, 6], [0, 1, 2, 0, 0, 0], None),
        ([9, 8, 7, 6, 6, 6], [3, 0, 0, 0, 0, 0], None),  # the settled state ends no tick
        ([9], [0], None),
    ],
)
def test_a_pinch_without_success_ends_in_one_of_three_ways(
    distances_cm: list[float], grips: list[int], expected: str | None
) -> None:
    assert fail(distances_cm, grips) == expected


def test_a_success_is_no_failed_pinch() -> None:
    assert fail([9, 8, 7], [0, 3, 3], success=True) is None


def test_carry_speed_is_from_first_to_last_pinch_and_needs_thirty_of_them() -> None:
    distances = np.linspace(9, 3, 61)  # 0.1 cm a tick
    grips = np.zeros(61, int)
    grips[10:39] = 3
    assert carry_speed_cm_s(distances, grips, tick_s=NOMINAL_TICK_S) is None  # 29
    grips[60] = 3  # 30, not contiguous
    assert carry_speed_cm_s(distances, grips, tick_s=NOMINAL_TICK_S) == pytest.approx(3.0)
    assert carry_speed_cm_s(distances[::-1], grips, tick_s=NOMINAL_TICK_S) == pytest.approx(-3.0)
    assert carry_speed_cm_s(distances, grips, tick_s=0.035) == pytest.approx(3.0 / 1.05)


@pytest.mark.parametrize(
    ("initial_cm", "ring"),
    [
        (5.999, "outside"), (6, "6-8"), (7.999, "6-8"), (8, "8-9"), (9, "9-10"), (10, "10-11"), (11, "11-13"),
        (12.999, "11-13"), (13, "outside"), (0, "outside"),
    ],
)  # fmt: skip
def test_a_ring_of_the_reach_envelope_holds_its_lower_edge(initial_cm: float, ring: str) -> None:
    assert reach_bin(initial_cm) == ring


@pytest.mark.parametrize(
    ("distances_cm", "expected"),
    [
        ([9.0], False),
        ([9.0, 9.0, 9.0], False),
        ([9.0, 9.0 + 1e-7, 9.0 - 2e-7], False),  # what soft contacts do to a boat that nothing touches
        ([9.0, 9.0 - 2e-6, 9.0], True),
        ([9.0, 9.0 + 2e-6, 9.0], False),  # went and came back: the documented rule does not see it either
        ([9.0, 9.0 + 2e-6], True),
    ],
)
def test_interacted_sees_a_boat_that_did_not_stay(distances_cm: list[float], expected: bool) -> None:
    assert interacted(np.array(distances_cm)) is expected


def test_a_boat_that_nothing_touches_has_not_interacted_in_a_whole_episode(
    make_env: Callable[..., BoatToDisk],
) -> None:
    env = make_env(image_px=8)
    env.begin(300)
    home_deg = np.array(env.scene.protocol.home_deg)
    while not env.tick(home_deg):
        pass
    metrics = env.metrics()
    assert metrics.ticks == 900 and metrics.touched is False and not metrics.interacted
    assert metrics.final_cm != metrics.initial_cm  # why the documented exact inequality cannot be used here


def test_motion_is_the_mean_difference_of_consecutive_pictures() -> None:
    black, grey = np.zeros((120, 320), np.uint8), np.full((120, 320), 10, np.uint8)
    assert picture_motion([black, grey, black, black]) == pytest.approx(20 / 3)
    assert picture_motion([black]) is None and picture_motion([]) is None
    assert picture_motion([grey, black]) == 10  # unsigned pictures do not wrap around


def test_frozen_is_strictly_below_its_bound_and_unknown_without_pictures() -> None:
    assert (is_frozen(0.0), is_frozen(0.149), is_frozen(0.15), is_frozen(None)) == (True, True, False, None)
