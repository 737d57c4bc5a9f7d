"""Metrics on traces small enough to work out by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from vla_rl.sim.metrics import (
    GRIP_TERMS,
    STRICT_TICKS,
    EpisodeMetrics,
    TickSample,
    episode_metrics,
    first_tick,
    trace_columns,
)


def sample(distance_cm: float, grip: int | None = 0, **changes: float) -> TickSample:
    values = {"z_m": 0.0, "upright": 1.0, "boat_speed_m_s": 0.0, "boat_spin_rad_s": 0.0, "max_speed": 0.0} | changes
    return TickSample(distance_m=distance_cm / 100, grip=grip, **values)


def placed(grip: int | None = 0, **changes: float) -> TickSample:
    return sample(1.0, grip, **({"z_m": 0.012} | changes))


def measure(trace: list[TickSample], terminate_on: str = "never") -> EpisodeMetrics:
    return episode_metrics(trace, reset_strikes=0, terminate_on=terminate_on)


def test_progress_splits_into_earned_and_shoved_as_documented() -> None:
    m = measure([sample(10), sample(8, 1), sample(5, 3), sample(6)])
    assert (m.initial_cm, m.min_cm, m.final_cm) == pytest.approx((10, 5, 6))
    assert (m.progress_cm, m.progress_final_cm) == pytest.approx((5, 4))
    assert (m.grasped_progress_cm, m.ungrasped_displacement_cm) == pytest.approx((3, 3))
    assert (m.touched, m.pinched, m.lifted, m.ticks) == (True, True, False, 3)


def test_the_same_endpoint_all_shoved_earns_nothing() -> None:
    m = measure([sample(10), sample(8, 1), sample(6, 2), sample(6)])
    assert (m.grasped_progress_cm, m.ungrasped_displacement_cm) == pytest.approx((0, 4))
    assert m.touched and not m.pinched


def test_grip_at_reset_belongs_to_no_tick() -> None:
    m = measure([sample(10, 3), sample(9)])
    assert not m.pinched and m.grasped_progress_cm == 0 and m.ungrasped_displacement_cm == pytest.approx(1)


def test_moving_away_is_a_setback_and_a_knockaway_from_one_centimetre_on() -> None:
    m = measure([sample(5), sample(7), sample(6)])
    assert (
        m.max_setback_cm == pytest.approx(2) and m.setback and m.knockaway and m.progress_final_cm == pytest.approx(-1)
    )
    m = measure([sample(5), sample(5.9), sample(5.9)])
    assert not m.setback and not m.knockaway and m.progress_cm == 0


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, True),
        ({"z_m": 0.004}, False),
        ({"z_m": 0.0041}, True),
        ({"z_m": 0.030}, False),
        ({"upright": 0.9}, False),
        ({"max_speed": 0.5}, False),
        ({"max_speed": 0.49}, True),
        ({"boat_speed_m_s": 0.49, "boat_spin_rad_s": 0.49, "max_speed": 0.49}, True),
    ],
)
def test_documented_success_needs_every_clause(changes: dict[str, float], passes: bool) -> None:
    assert placed(grip=3, **changes).documented() is passes


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, True),
        ({"boat_speed_m_s": 0.05}, False),
        ({"boat_speed_m_s": 0.049, "boat_spin_rad_s": 0.49}, True),
        ({"boat_spin_rad_s": 0.5}, False),
        ({"max_speed": 9.0}, True),  # the arm may move
        ({"grip": 1}, False),
        ({"grip": None}, False),
    ],
)
def test_strict_success_wants_the_boat_still_and_alone_in_units_that_are_not_mixed(
    changes: dict[str, Any], passes: bool
) -> None:
    assert placed(**changes).placed() is passes


def test_documented_success_is_strictly_inside_the_disk() -> None:
    assert not sample(4.0, z_m=0.012).documented() and sample(3.99, z_m=0.012).documented()


def test_the_success_tick_counts_from_the_first_tick_after_reset() -> None:
    m = measure([placed(), sample(5), placed(3), sample(5)])
    assert (m.success_documented, m.success_tick) == (True, 1)


def test_documented_names_hold_the_trace_cut_at_the_first_documented_tick() -> None:
    m = measure([sample(10), placed(3), sample(20, upright=0.1)])
    assert m.documented_final_cm == pytest.approx(1) and m.documented_ticks == 1 and not m.documented_tipped
    assert m.documented_grasped_progress_cm == pytest.approx(9) and m.documented_ungrasped_displacement_cm == 0
    assert m.final_cm == pytest.approx(20) and m.tipped and m.knockaway and not m.documented_knockaway


def test_without_success_both_sets_of_names_agree() -> None:
    values = measure([sample(10), sample(8, 1), sample(5, 3)]).as_dict()
    cut = {name: value for name, value in values.items() if name.startswith("documented_")}
    assert cut and all(values[name.removeprefix("documented_")] == value for name, value in cut.items())


def test_strict_success_needs_fifteen_ticks_in_a_row() -> None:
    assert measure([sample(9)] + [placed()] * (STRICT_TICKS - 1)).strict_tick is None
    assert measure([sample(9), sample(9)] + [placed()] * STRICT_TICKS).strict_tick == STRICT_TICKS
    broken = [placed()] * 10 + [placed(grip=1)] + [placed()] * 14
    assert measure([sample(9), *broken]).strict_tick is None


@pytest.mark.parametrize("grip", [1, 2, 3])
def test_strict_success_cannot_fire_on_a_touched_boat(grip: int) -> None:
    m = measure([sample(9)] + [placed(grip)] * 100)
    assert m.success_documented and not m.success_strict


def test_a_fast_arm_blocks_only_the_documented_test() -> None:
    m = measure([sample(9)] + [placed(max_speed=2.0)] * STRICT_TICKS)
    assert m.success_strict and not m.success_documented


@pytest.mark.parametrize(
    ("terminate_on", "success"), [("success_strict", False), ("success_documented", True), ("never", True)]
)
def test_success_is_the_test_that_ends_the_episode(terminate_on: str, success: bool) -> None:
    assert measure([sample(9), placed(3)], terminate_on).success is success


@pytest.mark.parametrize("lost", [sample(5, upright=0.4), sample(26), sample(5, z_m=-0.03)])
def test_hopeless_needs_fifteen_lost_ticks(lost: TickSample) -> None:
    assert measure([sample(9)] + [lost] * 15).hopeless
    assert not measure([sample(9)] + [lost] * 14 + [sample(9)] + [lost] * 14).hopeless


def test_lifted_means_pinched_above_four_centimetres() -> None:
    assert measure([sample(9), sample(9, 3, z_m=0.041)]).lifted
    assert not measure([sample(9), sample(9, 2, z_m=0.041), sample(9, 3, z_m=0.04)]).lifted


def test_metrics_are_flat_json_without_nan() -> None:
    values = measure([sample(9)]).as_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["success_tick"] is None and values["ticks"] == 0


def test_an_episode_of_one_sample_has_done_nothing() -> None:
    m = measure([sample(9, 3)])
    assert (m.ticks, m.progress_cm, m.progress_final_cm, m.max_setback_cm) == (0, 0, 0, 0)
    assert not (m.success or m.touched or m.pinched or m.engaged or m.moved or m.interacted or m.knockaway or m.setback)
    assert (m.pinch_ticks, m.pinch_fail, m.carry_speed_cm_s) == (0, None, None)
    assert (m.grasped_progress_cm, m.ungrasped_displacement_cm) == (0, 0)


def test_an_episode_without_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="without a sample"):
        measure([])


def test_success_on_the_first_tick_cuts_the_trace_after_it() -> None:
    m = measure([sample(9), placed(3), sample(9)])
    assert m.success_tick == 0 and m.documented_ticks == 1 and m.documented_final_cm == pytest.approx(1)
    assert m.documented_pinch_ticks == 1 and m.documented_pinch_fail is None


@pytest.mark.parametrize(
    ("name", "at_the_boundary", "is_it", "beyond"),
    [
        ("knockaway", [sample(9), sample(10)], True, [sample(9), sample(9.99)]),
        ("setback", [sample(9), sample(10), sample(9)], True, [sample(9), sample(9.99), sample(9)]),
        ("engaged", [sample(9), sample(8), sample(9)], False, [sample(9), sample(7.99), sample(9)]),
        ("moved", [sample(9), sample(8.5), sample(9)], False, [sample(9), sample(8.49), sample(9)]),
        ("tipped", [sample(9), sample(9, upright=0.9)], False, [sample(9), sample(9, upright=0.8999)]),
    ],
)
def test_each_event_says_to_which_side_its_boundary_belongs(
    name: str, at_the_boundary: list[TickSample], is_it: bool, beyond: list[TickSample]
) -> None:
    assert getattr(measure(at_the_boundary), name) is is_it
    assert getattr(measure(beyond), name) is not is_it


def test_only_the_end_decides_a_knockaway_and_only_the_worst_moment_a_setback() -> None:
    m = measure([sample(9), sample(12), sample(8)])
    assert m.setback and m.max_setback_cm == 3 and not m.knockaway


def test_an_episode_may_be_engaged_and_knocked_away() -> None:
    m = measure([sample(9), sample(7), sample(11)])
    assert m.engaged and m.knockaway


def test_the_success_of_an_episode_names_its_test() -> None:
    tests = {end: measure([sample(9)], end).success_test for end in ("success_strict", "success_documented", "never")}
    assert list(tests.values()) == ["success_strict", "success_documented", "success_documented"]


def test_a_held_boat_over_the_disk_is_a_pinch_that_failed_only_by_the_strict_test() -> None:
    trace = [sample(9), *[placed(3)] * 20]
    assert measure(trace, "success_documented").pinch_fail is None
    strict = measure(trace, "success_strict")
    assert strict.pinch_fail == "timeout_holding" and strict.documented_pinch_fail is None


def test_without_contacts_what_needs_them_is_null_and_the_rest_is_known() -> None:
    m = measure([sample(9, None), sample(5, None), *[placed(None)] * 20])
    needs = [name.removeprefix("documented_") for name, value in m.as_dict().items() if value is None]
    assert set(needs) - {"strict_tick"} == set(GRIP_TERMS)
    assert m.success_documented and not m.success_strict and m.progress_cm == 8


def test_a_partial_grip_trace_is_none_at_all() -> None:
    assert measure([sample(9), sample(8, 3), sample(7, None)]).grasped_progress_cm is None


def test_sums_of_distances_do_not_depend_on_their_order() -> None:
    rng = np.random.default_rng(0)
    distances_cm = [9.3, *rng.uniform(0, 30, 500)]
    m = measure([sample(d, 3) for d in distances_cm])
    assert m.grasped_progress_cm == m.progress_final_cm
    assert abs(m.initial_cm - 9.3) < 1e-12


def test_carry_speed_knows_the_real_length_of_a_tick() -> None:
    trace = [sample(9), *(sample(9 - 0.1 * i, 3) for i in range(31))]
    m = episode_metrics(trace, reset_strikes=0, terminate_on="never", tick_s=0.035)
    assert m.carry_speed_nominal_cm_s == pytest.approx(3.0) and m.carry_speed_cm_s == pytest.approx(0.1 / 0.035)


def test_a_stored_trace_has_three_decimals_and_one_digit_a_grip() -> None:
    trace = [sample(9.12345), sample(8, 3), sample(7, 1)]
    assert trace_columns(trace) == {"distance_cm": [9.123, 8.0, 7.0], "grip": "031"}
    assert trace_columns([sample(9, None)])["grip"] is None


def test_first_tick_of_a_dwell() -> None:
    assert first_tick([False, True, True, True], 2) == 2
    assert first_tick([], 1) is None
