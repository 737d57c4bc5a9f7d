"""Stored episodes under another price: hand-computed groups, and a run that is priced again as it was."""

import json
import subprocess
import sys

import pytest
from toy_run import REWARD, toy_trainer

from vla_rl.rl.advantage import GroupRule
from vla_rl.rl.reprice import compare_prices, departures, ledger, price
from vla_rl.rl.reward import RewardV1, RewardV2
from vla_rl.rollout.jsonl import read_jsonl

RULE = GroupRule(draws=2, min_group_std=0.05)


def row(seed, draw, progress, success=False, upright=1.0, step=1, **more):
    return {
        "step": step, "seed": seed, "draw": draw, "success": success, "progress_final_cm": progress,
        "final_upright": upright, "reset_strikes": 0, "grasped_progress_cm": progress,
        "ungrasped_displacement_cm": 0.0, **more,
    }  # fmt: skip


def v1(**changes):
    return RewardV1(**{**REWARD, **changes})


def test_an_advantage_is_the_sum_of_what_its_terms_contribute():
    rows = [row(1, 0, 4.0, success=True), row(1, 1, 2.0, upright=0.5), row(2, 0, 1.0), row(2, 1, 5.0)]
    priced = price(rows, v1(), RULE)
    # seed 1: 14 and 0 (2 - 2): mean 7, std 7. Progress 4, 2 is +-1 around 3; success +-5; tip 0, -2 is +-1.
    assert priced.values == (1.0, -1.0, -1.0, 1.0)
    assert {name: parts[0] for name, parts in priced.contributions.items()} == pytest.approx(
        {"progress": 1 / 7, "success": 5 / 7, "tip": 1 / 7, "strike": 0.0}
    )
    for index, value in enumerate(priced.values):
        assert sum(parts[index] for parts in priced.contributions.values()) == pytest.approx(value)
    told = ledger(priced)
    assert told["terms"]["success"]["share"] == pytest.approx((5 / 7 * 2) / 4)
    assert sum(term["share"] for term in told["terms"].values()) == pytest.approx(1)
    assert sum(term["mass_share"] for term in told["terms"].values()) == pytest.approx(1)
    assert told["success_share"] == pytest.approx(0.5) and told["groups_mixed"] == 1
    assert told["terms"]["progress"]["mean_cm"] == 3.0 and told["reward_mean_cm"] == 5.0


def test_a_term_that_works_against_the_others_has_a_negative_share():
    priced = price([row(1, 0, 0.0, success=True), row(1, 1, 4.0)], v1(), RULE)
    # rewards 10 and 4: std 3; success contributes +-5/3, progress -+2/3.
    shares = {name: term["share"] for name, term in ledger(priced)["terms"].items()}
    assert shares["success"] == pytest.approx(5 / 3) and shares["progress"] == pytest.approx(-2 / 3)


def test_terms_that_cancel_out_contribute_all_the_same():
    rule = GroupRule(draws=3)
    # rewards 0, 20, 10: mean 10, and the last is at it
    rows = [row(1, 0, 0.0), row(1, 1, 20.0), row(1, 2, 0.0, success=True)]
    priced = price(rows, v1(), rule)
    std = (200 / 3) ** 0.5
    assert priced.values[2] == pytest.approx(0, abs=1e-12)
    assert priced.contributions["success"][2] == pytest.approx((10 - 10 / 3) / std)
    assert priced.contributions["progress"][2] == pytest.approx(-(20 / 3) / std)


def test_a_clipped_advantage_scales_its_contributions_and_a_dropped_group_has_none():
    rows = [row(1, 0, 4.0, success=True), row(1, 1, 2.0), row(2, 0, 1.0), row(2, 1, 1.0)]
    priced = price(rows, v1(), GroupRule(draws=2, clip=0.5))
    assert priced.values == (0.5, -0.5, 0.0, 0.0) and priced.kept == (True, True, False, False)
    assert sum(parts[0] for parts in priced.contributions.values()) == pytest.approx(0.5)
    assert all(parts[2] == parts[3] == 0 for parts in priced.contributions.values())
    assert ledger(priced)["groups_dropped"] == {"unscorable": 0, "spread": 1, "success_rate": 0}


def test_waves_stay_apart_where_the_scale_is_that_of_a_wave():
    rule = GroupRule(draws=2, estimator="batch_scaled")
    rows = [row(1, 0, 1.0), row(1, 1, 3.0), row(2, 0, 10.0, step=2), row(2, 1, 30.0, step=2)]
    assert price(rows, v1(), rule).values == (-1.0, 1.0, -1.0, 1.0)


def test_what_the_anchor_cost_stays_with_an_episode_under_any_reward():
    rows = [row(1, 0, 4.0, reward_kl=-1.0), row(1, 1, 2.0, reward_kl=0.0)]
    for reward in (v1(), RewardV2(success_bonus=10, tip_penalty=2, strike_penalty=5, shove_penalty=0.5)):
        priced = price(rows, reward, RULE)
        assert priced.totals == (3.0, 2.0) and priced.contributions["kl"][0] == pytest.approx(-1.0)


def test_two_prices_that_praise_opposite_episodes_are_told():
    rows = [row(1, 0, 4.0, ungrasped_displacement_cm=20.0), row(1, 1, 2.0)]
    v2 = RewardV2(success_bonus=10, tip_penalty=2, strike_penalty=5, shove_penalty=0.5)
    told = compare_prices(price(rows, v1(), RULE), price(rows, v2, RULE))
    assert told == {
        "taught_by_both": 2, "only_used": 0, "only_other": 0, "turned": 2, "correlation": pytest.approx(-1.0),
    }  # fmt: skip


class Own:
    """A reward of one's own: a bonus that it names or does not, and a total that also pays the progress."""

    def __init__(self, *, named):
        self.named = named

    def terms(self, metrics):
        bonus = 10.0 * metrics["success"]
        return {**({"bonus": bonus} if self.named else {}), "total": bonus + metrics["progress_final_cm"]}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_what_a_reward_pays_beyond_the_terms_that_it_names_is_the_term_rest(named, clip):
    rows = [row(1, 0, 4.0, success=True), row(1, 1, 2.0), row(2, 0, 1.0), row(2, 1, 1.0)]
    priced = price(rows, Own(named=named), GroupRule(draws=2, min_group_std=0.05, clip=clip))
    # 14 and 2: mean 8, std 6. The bonus is +-5 around its mean, the progress +-1.
    scale = clip or 1.0
    rest = scale / 6 if named else scale
    assert priced.contributions["rest"] == pytest.approx([rest, -rest, 0.0, 0.0])
    assert ("bonus" in priced.contributions) is named
    told = ledger(priced)["terms"]
    assert sum(term["share"] for term in told.values()) == pytest.approx(1)
    assert told["rest"]["mean_cm"] == pytest.approx(2.0 if named else 18 / 4)


def test_documented_rewards_leave_no_rest_though_their_sums_are_rounded():
    rows = [row(1, 0, 0.1 + 0.2, success=True, upright=0.1), row(1, 1, 1e-17)]
    assert "rest" not in price(rows, v1(tip_penalty=0.7, success_bonus=0.3), RULE).contributions


def test_rewards_and_terms_that_are_no_number_are_none():
    class Broken(RewardV1):
        def terms(self, metrics):
            terms = super().terms(metrics)
            return {**terms, "tip": float("nan"), "total": float("inf") if metrics["draw"] == 2 else terms["total"]}

    rows = [row(1, draw, progress) for draw, progress in enumerate((1.0, 3.0, 9.0))]
    priced = price(rows, Broken(**REWARD), GroupRule(draws=3))
    assert priced.totals == (1.0, 3.0, None) and priced.values == (-1.0, 1.0, 0.0)
    told = ledger(priced)
    assert told["unscorable"] == 1 and told["reward_mean_cm"] == 2.0 and told["terms"]["tip"]["mean_cm"] is None
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_run_priced_as_it_was_gives_the_recorded_rewards_and_advantages_exactly(tmp_path, shuffle):
    toy_trainer(tmp_path / "run", steps=2, geometry={"shuffle_advantages": shuffle}).run()
    rows = [r for r in read_jsonl(tmp_path / "run" / "episodes.jsonl") if r["phase"] == "train"]
    key = (lambda step: (200000, step)) if shuffle else None
    rule = GroupRule(draws=3, min_group_std=1e-4)
    assert len(rows) == 12 and departures(rows, price(rows, v1(), rule), key) == []
    told = departures(rows, price(rows, v1(success_bonus=11.0), rule), key)
    assert bool(told) == any(r["success"] for r in rows)
    changed = [{**rows[0], "advantage": 9.0}, *rows[1:]]
    assert departures(changed, price(changed, v1(), rule), key) == [f"step 1 seed {rows[0]['seed']} draw 0"]


def test_pricing_needs_neither_torch_nor_a_simulator():
    code = (
        "import sys, vla_rl.cli.replay, vla_rl.rl.reprice, vla_rl.report.replay; "
        "print([m for m in ('torch', 'mujoco') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(loaded.stdout) == []
