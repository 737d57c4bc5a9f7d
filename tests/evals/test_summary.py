"""The summary of an evaluation, against episodes worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vla_rl.evals.summary import summarise
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.sim.metrics import TickSample, episode_metrics
from vla_rl.stats.intervals import clopper_pearson

SCENE = {"protocol": "sim100b", "scene_hash": "abc", "training_scene_match": "same", "max_replans": 30}


def sample(distance_cm: float, grip: int | None = 0, z_m: float = 0.0, upright: float = 1.0) -> TickSample:
    return TickSample(
        distance_cm / 100, z_m, upright, boat_speed_m_s=0.0, boat_spin_rad_s=0.0, max_speed=0.0, grip=grip
    )


def placed(grip: int = 0) -> TickSample:
    return sample(1.0, grip, z_m=0.012)


def episodes(*traces: list[TickSample], terminate_on: str = "success_strict") -> list[Episode]:
    return [
        Episode(
            EpisodeSpec(seed),
            episode_metrics(trace, reset_strikes=2 * (seed == 301), terminate_on=terminate_on).as_dict(),
            replans=1,
            tokens=20,
            wall_s=0.1,
        )
        for seed, trace in enumerate(traces, 300)
    ]


CARRIED = [sample(8.5), *[sample(8.5 - i * 0.1, 3, z_m=0.05) for i in range(31)], *[placed()] * 15]
HELD = [sample(9.5), *[sample(9 - i * 0.2, 3) for i in range(30)], *[placed(3)] * 5]
SHOVED = [sample(9.5), sample(9, 1), sample(10.5, 2, upright=0.2)]
QUIET = [sample(12.0), sample(12.0)]
ALL = (CARRIED, HELD, SHOVED, QUIET)


def summary(
    *traces: list[TickSample], rewards: dict[int, float | None] | None = None, **changes: Any
) -> dict[str, Any]:
    played = episodes(*traces, **changes)
    values = rewards or {e.spec.seed: 1.0 for e in played}
    return summarise(played, values, temperature=0.7, scene=SCENE)


def test_every_event_is_counted() -> None:
    s = summary(*ALL)
    assert (s["episodes"], s["trials"], s["successes"], s["success_test"]) == (4, 4, 1, "success_strict")
    assert (s["touched"], s["pinched"], s["lifted"], s["success_documented"], s["success_strict"]) == (3, 2, 1, 2, 1)
    assert (s["pinch_per_touch"], s["success_per_pinch"]) == (2 / 3, 1 / 2)
    assert s["pinch_fails"] == {"timeout_holding": 1, "stalled_carry": 0, "wrong_way": 0}
    assert (s["knockaways"], s["setbacks"], s["tipped"], s["hopeless"]) == (1, 1, 1, 0)
    assert (s["engaged"], s["moved"], s["interacted"]) == (2, 2, 3)
    assert (s["strikes"], s["struck"]) == (2, 1)


def test_both_success_tests_have_their_exact_interval() -> None:
    s = summary(*ALL)
    assert (s["success_documented_low"], s["success_documented_high"]) == clopper_pearson(2, 4)
    assert (s["success_strict_low"], s["success_strict_high"]) == clopper_pearson(1, 4)
    assert (s["success_low"], s["success_high"]) == clopper_pearson(1, 4)


def test_success_follows_the_test_that_ends_an_episode() -> None:
    s = summary(*ALL, terminate_on="success_documented")
    assert (s["success_test"], s["successes"], s["success_per_pinch"]) == ("success_documented", 2, 1.0)
    assert sum(s["pinch_fails"].values()) == 0


def test_carry_speed_is_the_median_over_the_episodes_that_carried() -> None:
    s = summary(*ALL)
    assert s["carries"] == 2  # HELD: 9 cm to 1 cm in 34 ticks
    assert s["carry_speed_median_cm_s"] == pytest.approx((3.0 + 8 / (34 / 30)) / 2)
    assert summary(QUIET)["carry_speed_median_cm_s"] is None


def test_the_reach_envelope_has_a_row_for_every_ring() -> None:
    rows = {row["bin_cm"]: row for row in summary(*ALL)["reach"]}
    assert list(rows) == ["6-8", "8-9", "9-10", "10-11", "11-13", "outside"]
    assert rows["9-10"] == {
        "bin_cm": "9-10", "episodes": 2, "touched": 2, "touched_share": 1.0, "successes": 0, "success_share": 0.0,
    }  # fmt: skip
    assert rows["8-9"]["success_share"] == 1.0 and rows["11-13"]["touched_share"] == 0.0
    assert rows["outside"]["episodes"] == 0 and rows["outside"]["touched_share"] is None


def test_means_are_over_all_episodes() -> None:
    s = summary(SHOVED, QUIET)
    assert s["progress_mean_cm"] == pytest.approx(0.25) and s["progress_final_mean_cm"] == pytest.approx(-0.5)
    assert s["ungrasped_displacement_mean_cm"] == pytest.approx(1.0) and s["grasped_progress_mean_cm"] == 0


def test_an_unscorable_episode_is_counted_and_left_out_of_the_mean_reward() -> None:
    s = summary(SHOVED, QUIET, rewards={300: 4.0, 301: None})
    assert (s["reward_mean"], s["unscorable"]) == (4.0, 1)
    assert summary(QUIET, rewards={300: None})["reward_mean"] is None


def test_what_one_episode_lacks_is_null_and_not_a_number_over_the_rest() -> None:
    s = summary(CARRIED, [sample(9, None), sample(8, None)])
    assert s["touched"] is None and s["pinch_fails"] is None and s["grasped_progress_mean_cm"] is None
    assert s["success_per_pinch"] is None and s["success_documented"] == 1 and s["engaged"] == 1


def test_the_summary_says_what_was_evaluated_and_is_strict_json() -> None:
    s = summary(*ALL)
    assert (s["protocol"], s["scene_hash"], s["training_scene_match"], s["temperature"]) == (
        "sim100b", "abc", "same", 0.7,
    )  # fmt: skip
    assert json.loads(json.dumps(s, allow_nan=False)) == s
    bare = summarise(episodes(QUIET), {300: 0.0}, temperature=0.0, scene=None)
    assert bare["protocol"] is None and bare["scene_hash"] is None


def test_a_simulator_with_fewer_metrics_gets_nulls() -> None:
    few = [Episode(EpisodeSpec(1), {"success": True, "ticks": 3}, 1, 1, 0.1)]
    s = summarise(few, {1: None}, temperature=0.0, scene=None)
    assert (s["successes"], s["touched"], s["success_test"], s["strikes"]) == (1, None, None, None)
    assert s["success_strict_low"] is None and all(row["episodes"] == 0 for row in s["reach"])
