"""Rewards: the documented cases, what cannot be priced, and the same reward tick by tick."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.config.compose import compose
from vla_rl.errors import UsageError
from vla_rl.rl.reward import RewardV1, RewardV2, tick_terms
from vla_rl.sim.metrics import EpisodeMetrics, TickSample, episode_metrics

NAN = float("nan")
CONSTANTS = {"success_bonus": 10.0, "tip_penalty": 2.0, "strike_penalty": 5.0}
V1 = RewardV1(**CONSTANTS, progress_floor_cm=None)
FLOORED = RewardV1(**CONSTANTS, progress_floor_cm=-4.0)
V2 = RewardV2(**CONSTANTS, shove_penalty=0.5)


def price(metrics, reward=V1):
    base = {"progress_final_cm": 0.0, "final_upright": 1.0, "success": False, "reset_strikes": 0}
    return reward.terms({**base, **metrics})


def trace(distances_cm, grips, upright=1.0):
    """Samples of a boat that does not succeed."""
    last = len(distances_cm) - 1
    return [
        TickSample(
            distance_m=distance / 100,
            z_m=0.0,
            upright=upright if i == last else 1.0,
            boat_speed_m_s=0.0,
            boat_spin_rad_s=0.0,
            max_speed=0.0,
            grip=grip,
        )
        for i, (distance, grip) in enumerate(zip(distances_cm, grips, strict=True))
    ]


def measure(samples, reset_strikes=0) -> EpisodeMetrics:
    return episode_metrics(samples, reset_strikes=reset_strikes, terminate_on="never")


@pytest.mark.parametrize(
    ("metrics", "total"),
    [
        ({"progress_final_cm": 2.5}, 2.5),
        ({"progress_final_cm": 1.0, "success": True}, 11.0),
        ({"progress_final_cm": 1.0, "final_upright": 0.5}, -1.0),
        ({"reset_strikes": 1}, -5.0),
        ({"progress_final_cm": -2.0, "final_upright": 0.5, "reset_strikes": 2}, -9.0),
        ({"progress_final_cm": 1.0, "final_upright": 0.9}, 1.0),  # the test is strict: 0.9 is not tipped
    ],
)
def test_reward_v1_meets_the_documented_cases(metrics, total):
    assert price(metrics)["total"] == total


@pytest.mark.parametrize(
    ("distances_cm", "grips", "success", "v1", "v2"),
    [
        ([10, 8, 5, 6], [0, 1, 3, 0], False, 4.0, 1.5),
        ([10, 8, 6, 6], [0, 1, 1, 0], False, 4.0, -2.0),
        ([10, 6], [0, 3], True, 14.0, 14.0),
    ],
    ids=["carried and slipped", "same endpoint, all shoved", "carried to success"],
)
def test_traces_meet_the_documented_cases_of_both_rewards(distances_cm, grips, success, v1, v2):
    metrics = measure(trace(distances_cm, grips)).as_dict() | {"success": success}
    assert (V1.terms(metrics)["total"], V2.terms(metrics)["total"]) == (v1, v2)


def test_the_terms_are_named_and_sum_to_the_total():
    ended = {"success": True, "final_upright": 0.1, "reset_strikes": 4}
    terms = price({"progress_final_cm": 3.0, **ended})
    assert terms == {"progress": 3.0, "success": 10.0, "tip": -2.0, "strike": -5.0, "total": 6.0}
    terms = price({"grasped_progress_cm": 3.0, "ungrasped_displacement_cm": 2.0, **ended}, V2)
    assert terms == {"earned": 3.0, "shoved": -1.0, "success": 10.0, "tip": -2.0, "strike": -5.0, "total": 5.0}


def test_the_progress_floor_bounds_a_boat_knocked_off_the_table_and_nothing_else():
    assert price({"progress_final_cm": -3000.0}, FLOORED)["total"] == -4.0
    assert price({"progress_final_cm": -3.5}, FLOORED)["total"] == -3.5
    assert price({"progress_final_cm": -3000.0})["total"] == -3000.0


@pytest.mark.parametrize("metrics", [{"progress_final_cm": NAN}, {"progress_final_cm": None}, {"final_upright": NAN}])
def test_a_missing_number_makes_the_episode_unscorable(metrics):
    assert price(metrics)["total"] is None


@pytest.mark.parametrize(
    "metrics",
    [
        measure(trace([10, 5], [None, None])).as_dict(),
        {"grasped_progress_cm": NAN, "ungrasped_displacement_cm": NAN},
        {},
    ],
)
def test_reward_v2_refuses_an_episode_without_grips(metrics):
    with pytest.raises(UsageError, match="grip trace") as error:
        price(metrics, V2)
    assert error.value.remedy and "reward=v1" in error.value.remedy


def test_the_options_hold_the_documented_constants():
    ended = {"progress_final_cm": 7.0, "grasped_progress_cm": 6.0, "ungrasped_displacement_cm": 2.0}
    ended |= {"success": True, "final_upright": 0.0, "reset_strikes": 1}
    for name, mine in (("v1", V1), ("v2", V2), ("v1_floored", FLOORED)):
        assert compose("config", [f"reward={name}"]).component("reward").terms(ended | {}) == price(ended, mine)


def test_the_terms_of_a_tick_say_when_the_reward_was_earned():
    samples = trace([10, 8, 5, 6], [0, 1, 3, 0], upright=0.5)
    v1 = tick_terms(samples, success_tick=1, reset_strikes=2, reward=V1)
    assert {name: values.tolist() for name, values in v1.items()} == {
        "progress": [2, 3, -1],
        "success": [0, 10, 0],
        "tip": [0, 0, -2],
        "strike": [-5, 0, 0],
    }
    v2 = tick_terms(samples, success_tick=None, reset_strikes=0, reward=V2)
    assert v2["earned"].tolist() == [0, 3, 0] and v2["shoved"].tolist() == [-1, 0, -0.5]
    assert not v2["success"].any() and not v2["strike"].any()


def test_a_floored_progress_stays_at_the_floor_while_the_boat_is_beyond_it():
    ticks = tick_terms(trace([5, 8, 20, 500, 6], [0] * 5), success_tick=None, reset_strikes=0, reward=FLOORED)
    assert ticks["progress"].tolist() == [-3, -1, 0, 3]


@given(
    st.lists(st.tuples(st.floats(0, 60), st.sampled_from([0, 1, 2, 3])), min_size=2, max_size=60),
    st.floats(-1, 1),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_tick_terms_sum_to_the_reward_of_the_episode_exactly_in_any_order(ticks, upright, strikes, random):
    samples = trace(*zip(*ticks, strict=True), upright=upright)
    metrics = measure(samples, strikes).as_dict()
    success_tick = random.choice([None, 0, len(samples) - 2])
    metrics["success"] = success_tick is not None
    for reward in (V1, FLOORED, V2):
        terms = tick_terms(samples, success_tick=success_tick, reset_strikes=strikes, reward=reward)
        expected = reward.terms(metrics)
        assert {name: values.sum() for name, values in terms.items()} | {"total": expected["total"]} == expected
        assert all(values.shape == (len(samples) - 1,) for values in terms.values())
        everything = np.concatenate(list(terms.values())).tolist()
        random.shuffle(everything)
        assert sum(everything) == expected["total"]


def test_ticks_that_cannot_be_priced_are_refused():
    with pytest.raises(ValueError, match="0 ticks"):
        tick_terms(trace([5], [0]), success_tick=None, reset_strikes=1, reward=V1)
    with pytest.raises(ValueError, match="success at tick 1"):
        tick_terms(trace([5, 4], [0, 0]), success_tick=1, reset_strikes=0, reward=V1)
    with pytest.raises(UsageError, match="grip trace"):
        tick_terms(trace([5, 4], [0, None]), success_tick=None, reset_strikes=0, reward=V2)
