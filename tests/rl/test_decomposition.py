"""Where a wave's advantage comes from: which reward keeps a group, mixed groups, the share that stands on successes."""

from __future__ import annotations

import pytest
from test_reward import V1, V2, measure, trace

from vla_rl.rl.advantage import GroupRule, group_advantages, success_share
from vla_rl.rl.summary import mixed_groups_frac
from vla_rl.rollout.records import Episode, EpisodeSpec


def episodes(outcomes):
    """One episode for each (seed, success); draws are counted up."""
    seen: dict[int, int] = {}
    made = []
    for seed, success in outcomes:
        seen[seed] = seen.get(seed, -1) + 1
        made.append(Episode(EpisodeSpec(seed, seen[seed]), {"success": success}, 1, 1, 0.0))
    return made


def test_earned_beats_shoved_under_v2_where_v1_sees_no_difference_and_drops_the_group():
    carried, shoved = (measure(trace([10, 8, 6], grips)).as_dict() for grips in ([0, 3, 3], [0, 1, 1]))
    results = {
        name: group_advantages(
            [1, 1], [reward.terms(m)["total"] for m in (carried, shoved)], [False, False], GroupRule(2)
        )
        for name, reward in (("v1", V1), ("v2", V2))
    }
    assert results["v1"].groups[0].dropped == "spread" and results["v1"].values == (0.0, 0.0)
    assert results["v2"].values == (1.0, -1.0)  # 4 earned against -2 for 4 cm shoved


def test_a_mixed_group_has_a_success_and_a_failure():
    assert mixed_groups_frac(episodes([(1, True), (1, False), (2, True), (2, True), (3, False), (3, False)])) == 1 / 3
    assert mixed_groups_frac([]) is None


def test_the_share_of_positive_advantage_on_successes_by_hand():
    successes = [True] + [False] * 5
    # Group 1: one success, scores 2, -1, -1 over sqrt 2. Group 2: rewards 0, 0, 3 give the same without a success.
    priced = group_advantages([1, 1, 1, 2, 2, 2], [10.0, 0.0, 0.0, 0.0, 0.0, 3.0], successes, GroupRule(3))
    assert success_share(priced.values, successes) == pytest.approx(0.5)
    dropped = group_advantages([1, 1, 1, 2, 2, 2], [1.0] * 6, [False] * 6, GroupRule(3))
    assert success_share(dropped.values, [False] * 6) is None
