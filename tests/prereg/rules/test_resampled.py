"""Intervals by resampling pairs, and training seeds before pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_rl.errors import ConfigError
from vla_rl.prereg.rules import Context, Planned
from vla_rl.prereg.rules.clustered import ClusterBootstrap
from vla_rl.prereg.rules.resampled import PairedBootstrap
from vla_rl.stats.bootstrap import paired_bootstrap


def rewards(make, changes):
    """Before zero everywhere, after what is given."""
    before = make.episodes("b", reward={s: 0.0 for s in range(len(changes))})
    return make.context(before, make.episodes("a", reward=dict(enumerate(changes))))


def test_the_documented_primary_improves_where_its_whole_interval_lies_above_zero(make):
    changes = [1.0, 2.0, 0.5, -0.5, 1.5] * 4
    outcome = PairedBootstrap("b", "a", "reward").judge(rewards(make, changes))
    read = paired_bootstrap({s: 0.0 for s in range(20)}, dict(enumerate(changes)))
    assert outcome.status == "PASS" and outcome.interval == (read.low, read.high) and read.low > 0
    assert outcome.estimate == pytest.approx(0.9) and outcome.n == 20
    assert outcome.power is None
    told = PairedBootstrap("b", "a", "reward", effect=0.5).judge(rewards(make, changes))
    assert told.power == pytest.approx(0.71688, abs=1e-5)  # Phi(0.5 sqrt(20) / 0.8825 - 1.96)
    assert outcome.details["seed"] == 0 and outcome.details["resamples"] == 10_000
    assert outcome.details["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("changes", "improved", "not_worse", "no_crash"),
    [
        ([-2.0, -1.5, -2.5, -1.8] * 5, "FAIL", "FAIL", "FAIL"),
        ([-0.3, -0.6, -0.2, -0.5] * 5, "FAIL", "FAIL", "PASS"),
        ([-1.0, 1.0] * 10, "INCONCLUSIVE", "PASS", "PASS"),
        ([0.0] * 20, "INCONCLUSIVE", "PASS", "PASS"),
        ([0.3, 0.6, 0.2, 0.5] * 5, "PASS", "PASS", "PASS"),
    ],
)
def test_improved_not_worse_and_no_crash_are_three_lines_of_one_interval(make, changes, improved, not_worse, no_crash):
    context = rewards(make, changes)
    assert PairedBootstrap("b", "a", "reward").judge(context).status == improved
    assert PairedBootstrap("b", "a", "reward", requires="not_against").judge(context).status == not_worse
    crash = PairedBootstrap("b", "a", "reward", line=-1.0, requires="not_against")
    assert crash.judge(context).status == no_crash


def test_success_is_resampled_as_a_count_and_its_exact_p_is_told(make):
    seeds = range(20)
    context = make.context(
        make.successes("b", (0,), seeds),
        make.successes("a", range(1, 9), seeds),
        smallest_effect=0.3,
        effect_of={"success"},
    )
    outcome = PairedBootstrap("b", "a").judge(context)
    low, high = outcome.details["interval_of_sum"]
    assert isinstance(low, int) and outcome.interval == (low / 20, high / 20) and outcome.status == "PASS"
    assert (
        outcome.details["mcnemar_p"] == pytest.approx(2 * 10 / 2**9) and "exact McNemar p = 0.03906" in outcome.sentence
    )
    assert outcome.effect == 0.3 and outcome.power == pytest.approx(0.52746, abs=1e-5)


def test_an_end_at_the_very_line_is_not_beyond_it(make):
    context = make.context(
        make.recorded("b", success=(0, 100)), make.recorded("a", success_won=(38, 100), success_lost=(0, 100))
    )
    assert PairedBootstrap("b", "a").judge(context).details["interval_of_sum"][0] == 29 > 0.29 * 100  # in floats
    assert PairedBootstrap("b", "a", line=0.29).judge(context).status == "INCONCLUSIVE"
    assert PairedBootstrap("b", "a", line=0.28).judge(context).status == "PASS"


def test_a_policy_that_changed_nothing_shows_nothing_whatever_the_line(make):
    context = make.context(make.successes("b", (1,), range(20)), make.successes("a", (1,), range(20)))
    outcome = PairedBootstrap("b", "a", line=-0.1).judge(context)
    assert outcome.status == "INCONCLUSIVE" and outcome.interval == (0.0, 0.0)
    assert PairedBootstrap("b", "a", otherwise="fail").judge(context).status == "FAIL"


def test_recorded_won_and_lost_pairs_give_the_same_outcome_as_their_episodes(make):
    seeds = range(20)
    of_episodes = PairedBootstrap("b", "a").judge(
        make.context(make.successes("b", (0,), seeds), make.successes("a", range(1, 9), seeds))
    )
    counts = make.recorded("a", success_won=(8, 20), success_lost=(1, 20))
    assert PairedBootstrap("b", "a").judge(make.context(make.recorded("b", success=(1, 20)), counts)) == of_episodes


@settings(max_examples=25, deadline=None)
@given(st.integers(6, 30), st.data())
def test_exchanging_the_sides_of_a_claim_exchanges_pass_and_fail(n, data):
    won = data.draw(st.sets(st.integers(0, n - 1)))
    lost = data.draw(st.sets(st.integers(0, n - 1))) - won

    def judged(up, down, direction):
        evidence = _evidence(n, down, "b"), _evidence(n, up, "a")
        context = Context(
            {m: Planned("evaluation", tuple(range(n))) for m in "ab"},
            direction=direction,
            evidence={(e.measurement, None): e for e in evidence},
        )
        return PairedBootstrap("b", "a").judge(context).status

    rises, falls = judged(won, lost, "increase"), judged(won, lost, "decrease")
    assert {rises, falls} in ({"PASS", "FAIL"}, {"INCONCLUSIVE"})


def _evidence(n, won, measurement):
    from vla_rl.prereg.evidence import Evidence

    rows = tuple({"seed": s, "success": s in won} for s in range(n))
    return Evidence(measurement, None, "episodes", episodes=rows)


def test_too_few_pairs_and_lines_beyond_every_difference_are_refused(make):
    few = {"b": make.evaluation(5), "a": make.evaluation(5)}
    assert "5 pairs" in PairedBootstrap("b", "a").impossible(make.context(planned=few))[0]
    enough = {"b": make.evaluation(20), "a": make.evaluation(20)}
    assert not PairedBootstrap("b", "a").impossible(make.context(planned=enough))
    assert "never PASS" in PairedBootstrap("b", "a", line=1.0).impossible(make.context(planned=enough))[0]


@pytest.mark.parametrize("wrong", [{"resamples": 9_999}, {"level": 0.0}, {"seed": -1}])
@pytest.mark.parametrize("rule", [PairedBootstrap, ClusterBootstrap])
def test_parameters_that_no_read_should_rest_on_are_refused(rule, wrong):
    with pytest.raises(ConfigError):
        rule("b", "a", **wrong)


ARMS = ("s0", "s1", "s2")


def trained(make, **won):
    """Three training seeds against one base, 20 scenes each; `won` is how many scenes each of them wins."""
    sides = [make.successes("end", range(won[arm]), range(20), arm=arm) for arm in ARMS]
    return make.context(make.successes("base", (), range(20)), *sides)


def test_training_seeds_that_agree_pass_and_those_that_disagree_do_not(make):
    rule = ClusterBootstrap("base", "end")
    agree, disagree = rule.judge(trained(make, s0=8, s1=9, s2=10)), rule.judge(trained(make, s0=18, s1=0, s2=0))
    assert agree.status == "PASS" and agree.estimate == pytest.approx(0.45)
    assert agree.details["training_seeds"] == 3 and agree.details["means"] == {"s0": 0.4, "s1": 0.45, "s2": 0.5}
    assert agree.details["smallest_p_over_training_seeds"] == 0.25 and agree.n == 60
    assert disagree.status == "INCONCLUSIVE" and disagree.interval[0] == 0.0  # P(only the idle ones) = 8/27


def test_an_end_of_training_seeds_at_the_very_line_is_not_beyond_it(make):
    """In floats the end of these means is 1.85e-17."""
    differences = {
        "s0": [0, -1, 0, 1, 1, -1, 1, 0, 0, 0],
        "s1": [1, 0, 1, 0, 0, 0, 0, 0, 1, 1],
        "s2": [1, 1, 0, 0, 1, 1, -1, 1, 0, 0],
    }
    after = [
        make.episodes("end", arm, reward={s: float(d) for s, d in enumerate(each)}) for arm, each in differences.items()
    ]
    context = make.context(make.episodes("base", reward={s: 0.0 for s in range(10)}), *after)
    outcome = ClusterBootstrap("base", "end", "reward").judge(context)
    assert outcome.interval == (0.0, pytest.approx(17 / 30)) and outcome.status == "INCONCLUSIVE"


def test_arms_of_which_one_side_is_not_measured_are_refused(make):
    planned = {"a": make.evaluation(20, arms=("x", "y")), "b": make.evaluation(20, arms=("x", "y", "z"))}
    assert ClusterBootstrap("a", "b").impossible(make.context(planned=planned)) == ["a is not made for the arm z"]


def test_two_levers_are_paired_under_the_same_training_seeds(make):
    sides = [
        make.successes("end", range(n), range(20), arm=arm) for arm, n in (("a0", 5), ("a1", 6), ("b0", 9), ("b1", 9))
    ]
    rule = ClusterBootstrap("end", "end", before_arms=["a0", "a1"], after_arms=["b0", "b1"])
    context = make.context(*sides)
    outcome = rule.judge(context)
    assert outcome.details["means"] == {"b0": 0.2, "b1": pytest.approx(0.15)} and not rule.impossible(context)


def test_no_change_under_any_training_seed_shows_nothing(make):
    assert ClusterBootstrap("base", "end").judge(trained(make, s0=0, s1=0, s2=0)).status == "INCONCLUSIVE"


def test_a_missing_training_seed_leaves_the_read_missing(make):
    context = make.context(
        make.successes("base", (), range(20)),
        make.successes("end", (), range(20), arm="s0"),
        planned={"end": make.evaluation(20, arms=("s0", "s1"))},
    )
    outcome = ClusterBootstrap("base", "end").judge(context)
    assert outcome.status == "MISSING" and "end@s1" in outcome.sentence


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (ClusterBootstrap("base", "end", after_arms=["s0"]), "2 are the fewest"),
        (ClusterBootstrap("base", "end", after_arms=["s0", "s9"]), "not made for the arm s9"),
        (ClusterBootstrap("end", "end"), "paired with itself"),
        (ClusterBootstrap("end", "end", before_arms=["s0"], after_arms=["s1", "s2"]), "different numbers"),
        (ClusterBootstrap("base", "end", after_arms=["s0", "s0"]), "named twice"),
    ],
)
def test_training_seeds_that_cannot_be_resampled_are_refused(make, rule, told):
    planned = {"base": make.evaluation(20), "end": make.evaluation(20, arms=ARMS)}
    assert any(told in fault for fault in rule.impossible(make.context(planned=planned)))
