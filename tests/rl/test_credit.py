"""Credit by replan: what is still to come, compared with the draws that came as far; by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from one_update import ADVANTAGES, SPECS, settings, update
from test_reward import FLOORED, V1, V2, measure, trace
from tiny_policy import tiny_policy
from toy_run import REWARD, toy_trainer
from toy_world import spec

from vla_rl.config.schema import LossConfig
from vla_rl.errors import ConfigError
from vla_rl.rl.advantage import ESTIMATORS, GroupRule, group_advantages, shuffled
from vla_rl.rl.credit import by_replan, episode_returns, lone_replans, returns_to_go
from vla_rl.rl.lessons import select_lessons
from vla_rl.rl.reward import RewardV1
from vla_rl.rollout.pool import SerialPool
from vla_rl.rollout.records import Episode, EpisodeSpec, Trace


def test_a_return_is_the_reward_from_the_first_tick_of_the_replan_on():
    terms = {"progress": np.array([1.0, 2.0, -4.0, 8.0]), "success": np.array([0.0, 0.0, 0.0, 10.0])}
    assert returns_to_go(terms, [0, 2, 3]) == (17.0, 14.0, 18.0)


@pytest.mark.parametrize(("reward", "later"), [(V1, 25.0 + 8.0), (V2, 24.0 - 0.5 + 8.0), (FLOORED, 9.0 + 8.0)])
def test_the_first_return_is_the_reward_of_the_episode_exactly(reward, later):
    """The boat goes 20 cm away, is carried back by 24 and pushed by 1; success 10, tipped -2; a strike at the start."""
    distances_cm, grips = [10, 8.5, 30, 6, 5], [0, 3, 1, 3, 0]
    samples = trace(distances_cm, grips, upright=0.5)
    metrics = measure(samples, reset_strikes=1).as_dict() | {"success": True, "success_tick": 3}
    kept = Trace([0, 2], [float(d) for d in distances_cm], grips)
    returns = episode_returns(Episode(EpisodeSpec(1), metrics, 2, 1, 0.0, trace=kept), reward)
    assert returns == (reward.terms(metrics)["total"], later)


def test_an_episode_without_a_trace_is_refused():
    with pytest.raises(ConfigError, match="geometry.credit"):
        episode_returns(Episode(EpisodeSpec(1), {}, 1, 1, 0.0), V1)


def priced(returns, estimator="zscore", clip=None):
    rule = GroupRule(len(returns), estimator, clip=clip)
    ids = [1] * len(returns)
    whole = group_advantages(ids, [r[0] for r in returns], [False] * len(returns), rule)
    return whole, by_replan(whole, ids, returns, rule)


def test_a_replan_is_compared_with_the_draws_that_came_as_far_in_units_of_the_groups_spread():
    whole, result = priced([(4.0, 3.0, 1.0), (0.0, 1.0), (2.0,)])
    std = math.sqrt(8 / 3)  # of 4, 0, 2
    assert result.replans == (
        pytest.approx((2 / std, 1 / std, 0.0)),  # nobody else came to replan 2: it teaches nothing
        pytest.approx((-2 / std, -1 / std)),
        pytest.approx((0.0,)),
    )
    assert [own[0] for own in result.replans] == list(whole.values) and result.groups == whole.groups
    assert lone_replans([1, 1, 1], result) == 1 and lone_replans([1, 1, 1], whole) is None


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_at_replan_0_every_estimator_gives_the_advantage_of_the_episode(estimator):
    whole, result = priced([(4.0, 3.0), (0.0, 1.0), (3.0, 9.0)], estimator)
    assert result.replans is not None
    assert [own[0] for own in result.replans] == pytest.approx(list(whole.values))


def test_leaving_one_out_and_the_clip_by_hand():
    _, result = priced([(4.0, 3.0), (0.0, 1.0), (2.0,)], "leave_one_out")
    assert result.replans == ((3.0, 2.0), (-3.0, -2.0), (0.0,))
    _, result = priced([(4.0, 30.0), (0.0, 10.0)], "mean_only", clip=2.0)
    assert result.replans == ((2.0, 2.0), (-2.0, -2.0))


def test_dropped_groups_get_nothing_and_shuffling_deals_all_replans():
    rule = GroupRule(2)
    ids, returns = [1, 1, 2, 2], [(1.0, 5.0), (1.0, 0.0), (3.0, 1.0), (1.0, 0.5)]
    whole = group_advantages(ids, [r[0] for r in returns], [False] * 4, rule)
    result = by_replan(whole, ids, returns, rule)
    assert result.replans is not None and result.replans[:2] == ((0.0, 0.0), (0.0, 0.0))
    seen = {shuffled(result, (k,)).replans for k in range(20)}
    assert len(seen) > 3
    for replans in seen:
        assert replans is not None and replans[:2] == result.replans[:2]
        assert sorted(v for own in replans for v in own) == sorted(v for own in result.replans for v in own)


def test_rows_are_taught_with_the_advantage_of_their_replan(rows):
    replans = {s: max(r.replan for r in rows if r.spec == s) + 1 for s in SPECS}
    by_row = {s: tuple(0.1 * k for k in range(replans[s])) for s in SPECS}
    lessons, divisor = select_lessons(rows, by_row, weighting="token", episode_tokens=1)
    assert all(lesson.advantage == 0.1 * lesson.row.replan for lesson in lessons)
    assert len(lessons) == sum(r.replan > 0 for r in rows) and divisor == sum(len(r.bins) for r in rows)
    policies = [tiny_policy(), tiny_policy()]
    update(policies[0], rows, constants=settings())
    update(policies[1], rows, advantages={s: (a,) * replans[s] for s, a in ADVANTAGES.items()})
    assert policies[0].digest() == policies[1].digest()


def traced_run(path, **settings):
    pool = SerialPool(env_spec=spec(max_chunks=3, world="TracedWorld"), plugins=("toy_world",))
    trainer = toy_trainer(path, pool=pool, steps=1, geometry={"credit": "to_go"}, **settings)
    try:
        trainer.run()
    finally:
        trainer.run_dir.close()
    return [json.loads(line) for line in (path / "episodes.jsonl").read_text().splitlines() if '"train"' in line]


def test_a_run_records_the_advantage_of_every_replan(tmp_path):
    episodes = traced_run(tmp_path / "run")
    assert all(row["replan_advantages"][0] == pytest.approx(row["advantage"], abs=1e-9) for row in episodes)
    assert all(len(row["replan_advantages"]) == row["replans"] for row in episodes)
    assert any(len({round(v, 6) for v in row["replan_advantages"]}) > 1 for row in episodes)


class Shrunk(RewardV1):
    """Spreads less over the ticks than it pays."""

    def way_ticks(self, distance_cm_T, grip_T):
        return {"progress": super().way_ticks(distance_cm_T, grip_T)["progress"] * (1 - 1e-5)}


def test_a_reward_whose_ticks_do_not_add_up_to_it_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Shrunk is .* summed over its ticks"):
        traced_run(tmp_path / "run", reward=Shrunk(**REWARD))


class Sparse:
    def terms(self, metrics):
        return {"total": float(metrics["success"])}


def test_a_reward_of_whole_episodes_and_a_kl_cost_are_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="Sparse cannot be spread"):
        toy_trainer(tmp_path / "a", geometry={"credit": "to_go"}, reward=Sparse())
    with pytest.raises(ConfigError, match="loss.kl_in"):
        toy_trainer(tmp_path / "b", geometry={"credit": "to_go"}, loss=LossConfig(kl_beta=0.1, kl_in="reward"))
