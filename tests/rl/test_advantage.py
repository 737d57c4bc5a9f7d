"""Group advantages, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vla_rl.errors import ConfigError
from vla_rl.rl.advantage import group_advantages

NAN = float("nan")


def advantages(ids, rewards, draws, min_group_std=0.05, clip=None):
    return group_advantages(ids, rewards, draws=draws, min_group_std=min_group_std, clip=clip)


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
