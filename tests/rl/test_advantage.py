"""Group advantages, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vla_rl.errors import ConfigError
from vla_rl.rl.advantage import ALONE, ESTIMATORS, RATE, SPREAD, GroupRule, group_advantages, shuffled

NAN = float("nan")


def advantages(ids, rewards, draws, min_group_std=0.05, clip=None, successes=None, **rule):
    successes = [False] * len(ids) if successes is None else successes
    return group_advantages(ids, rewards, successes, GroupRule(draws, min_group_std=min_group_std, clip=clip, **rule))


def test_z_scores_use_the_population_deviation():
    result = advantages([5, 5, 5, 5], [1.0, 2.0, 3.0, 6.0], 4)
    std = math.sqrt((4 + 1 + 0 + 9) / 4)  # mean 3
    assert np.allclose(result.values, [-2 / std, -1 / std, 0.0, 3 / std], atol=1e-15)
    assert result.kept == (True,) * 4 and result.groups[0].std == pytest.approx(std)


def test_one_success_in_eight_gives_the_known_score_and_the_clip_tempers_it():
    rewards = [10.0] + [0.0] * 7
    assert advantages([1] * 8, rewards, 8).values[0] == pytest.approx(math.sqrt(7))  # 2.6458
    assert advantages([1] * 8, rewards, 8, clip=2.0).values[0] == 2.0
    assert advantages([1] * 8, rewards, 8, clip=2.0).values[1] == pytest.approx(-1 / math.sqrt(7))


def test_groups_go_by_id_and_never_by_position():
    ids, rewards = [1, 1, 2, 2, 3, 3], [0.0, 2.0, 5.0, 6.0, 1.0, 4.0]
    straight = dict(zip(zip(ids, rewards, strict=True), advantages(ids, rewards, 2).values, strict=True))
    order = [4, 0, 2, 5, 3, 1]
    mixed = advantages([ids[i] for i in order], [rewards[i] for i in order], 2)
    assert [straight[ids[i], rewards[i]] for i in order] == list(mixed.values)
    assert [g.id for g in mixed.groups] == [1, 2, 3]


def test_each_group_has_its_own_mean_and_spread():
    result = advantages([1, 1, 2, 2], [0.0, 1.0, 100.0, 300.0], 2)
    assert result.values == (-1.0, 1.0, -1.0, 1.0)


@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.1, 0.1, 0.1], [1.0, 1.0 + 1e-9, 1.0]])
def test_a_group_without_spread_is_dropped_whole(rewards):
    result = advantages([1, 1, 1], rewards, 3, min_group_std=0.0 if rewards[0] == 0.1 else 0.05)
    assert result.values == (0.0, 0.0, 0.0) and result.kept == (False, False, False) and not result.groups[0].kept


def test_the_spread_floor_is_inclusive():
    assert advantages([1, 1], [0.0, 0.1], 2, min_group_std=0.05).groups[0].kept
    assert not advantages([1, 1], [0.0, 0.0999], 2, min_group_std=0.05).groups[0].kept


def test_unscorable_episodes_are_flagged_and_never_poison_their_group():
    result = advantages([1, 1, 1, 1], [NAN, 0.0, None, 2.0], 4)
    assert result.values == (0.0, -1.0, 0.0, 1.0)
    assert result.kept == (False, True, False, True)
    assert result.groups[0].unscorable == 2


@pytest.mark.parametrize("rewards", [[NAN, NAN, NAN, 1.0], [NAN] * 4, [None] * 4, [math.inf, 1.0, 1.0, 1.0]])
def test_a_group_with_one_or_no_scorable_episode_or_whose_spread_is_unscorable_is_dropped(rewards):
    result = advantages([1] * 4, rewards, 4)
    assert result.values == (0.0,) * 4 and not any(result.kept)
    assert all(math.isfinite(v) for v in result.values)


def test_one_draw_per_seed_is_refused_with_a_remedy():
    with pytest.raises(ConfigError, match="at least 2 draws"):
        advantages([1, 2], [0.0, 1.0], 1)


@pytest.mark.parametrize("ids", [[1, 2, 3, 4], [1, 1, 1, 2], [1, 1, 1, 1]])
def test_a_group_of_another_size_is_refused(ids):
    with pytest.raises(ConfigError, match="episodes, not 2"):
        advantages(ids, [0.0, 1.0, 2.0, 3.0], 2)


def test_the_estimators_by_hand():
    ids, rewards = [1, 1, 2, 2, 3, 3], [0.0, 2.0, 1.0, 7.0, 5.0, 5.0]  # the third group has no spread
    values = {name: advantages(ids, rewards, 2, estimator=name).values for name in ESTIMATORS}
    assert values["zscore"] == (-1.0, 1.0, -1.0, 1.0, 0.0, 0.0)
    assert values["mean_only"] == (-1.0, 1.0, -3.0, 3.0, 0.0, 0.0)
    assert values["leave_one_out"] == (-2.0, 2.0, -6.0, 6.0, 0.0, 0.0)
    spread = math.sqrt((6.25 + 0.25 + 2.25 + 20.25) / 4)  # of 0, 2, 1, 7 around 2.5: the dropped group stays out
    assert values["batch_scaled"] == pytest.approx([-1 / spread, 1 / spread, -3 / spread, 3 / spread, 0, 0])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_advantages_of_a_whole_group_sum_to_zero_and_keep_the_order_of_rewards(estimator):
    rewards = np.random.default_rng(0).normal(size=8).tolist()
    values = advantages([4] * 8, rewards, 8, estimator=estimator).values
    assert abs(sum(values)) < 1e-12 and np.array_equal(np.argsort(values), np.argsort(rewards))


def test_leaving_one_out_counts_the_scorable_others_only():
    assert advantages([1] * 4, [NAN, 0.0, 3.0, 9.0], 4, estimator="leave_one_out").values == (0.0, -6.0, -1.5, 7.5)


def test_groups_are_filtered_by_success_rate_whatever_the_scale_of_the_reward():
    ids = [i for i in range(5) for _ in range(4)]
    successes = [draw < wins for wins in (0, 1, 2, 3, 4) for draw in range(4)]
    rewards = [float(i % 4) for i in range(20)]
    for scale in (1.0, 100.0):
        scaled = [scale * r for r in rewards]
        both = advantages(ids, scaled, 4, successes=successes, min_success_rate=0.0, max_success_rate=1.0)
        assert [g.dropped for g in both.groups] == [RATE, None, None, None, RATE]
        assert [g.success_rate for g in both.groups] == [0.0, 0.25, 0.5, 0.75, 1.0]
        upper = advantages(ids, scaled, 4, successes=successes, max_success_rate=0.75)
        assert [g.kept for g in upper.groups] == [True, True, True, False, False]
    assert all(g.kept for g in advantages(ids, rewards, 4, successes=successes).groups)


def test_the_reason_of_a_drop_is_named():
    result = advantages([1, 1, 2, 2, 3, 3], [NAN, 1.0, 1.0, 1.0, 0.0, 1.0], 2)
    assert [g.dropped for g in result.groups] == [ALONE, SPREAD, None]
    assert result.groups[0].mean == 1.0 and result.groups[0].std == 0.0


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ConfigError, match="no estimator"):
        GroupRule(2, estimator="gae")


def test_shuffled_advantages_are_the_same_numbers_elsewhere_by_key():
    straight = advantages([1, 1, 2, 2, 3, 3], [0.0, 2.0, 1.0, 7.0, 5.0, 5.0], 2, estimator="mean_only")
    dealt = {shuffled(straight, (7, step)).values for step in range(20)}
    assert shuffled(straight, (7, 1)) == shuffled(straight, (7, 1)) and len(dealt) > 5
    for values in dealt:
        assert sorted(values) == sorted(straight.values) and values[4:] == (0.0, 0.0)
