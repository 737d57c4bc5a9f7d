"""Parity within a tolerance, and the overlap of successes."""

import pytest

from vla_rl.errors import ConfigError
from vla_rl.prereg.exclusions import Exclusion, exclude
from vla_rl.prereg.rules import Planned
from vla_rl.prereg.rules.alike import Overlap, Tolerance

SUCCESSES = Tolerance("loop", "anchor", "success", "count", 2)
INTERACTED = Tolerance("loop", "anchor", "interacted", "share", 0.30)


@pytest.mark.parametrize(
    ("loop", "anchor", "successes", "interacted"),
    [
        ((2, 20), (2, 20), "PASS", "PASS"),  # what was measured
        ((0, 0), (2, 12), "PASS", "FAIL"),  # the convicted mode, 0.00 against about 0.59
        ((2, 14), (2, 20), "PASS", "PASS"),  # the documented band also passes 14 of 20: exactly 0.30
        ((2, 13), (2, 20), "PASS", "FAIL"),
        ((5, 20), (2, 20), "FAIL", "PASS"),
        ((2, 20), (4, 20), "PASS", "PASS"),
    ],
)
def test_the_documented_parity_rule(make, loop, anchor, successes, interacted):
    context = make.context(
        make.recorded("loop", success=(loop[0], 20), interacted=(loop[1], 20)),
        make.recorded("anchor", success=(anchor[0], 20), interacted=(anchor[1], 20)),
    )
    assert SUCCESSES.judge(context).status == successes
    assert INTERACTED.judge(context).status == interacted


def test_the_difference_has_a_sign_and_an_interval(make):
    context = make.context(make.recorded("loop", success=(5, 20)), make.recorded("anchor", success=(2, 20)))
    outcome = SUCCESSES.judge(context)
    assert outcome.estimate == 3.0 and outcome.interval[0] < 3.0 < outcome.interval[1] <= 20
    assert outcome.details["sides"] == ["5/20", "2/20"] and outcome.n == 20


def test_an_excluded_seed_leaves_both_sides_of_a_parity_read(make):
    struck = {s: int(s == 3) for s in range(20)}
    loop = make.episodes("loop", success={s: s < 5 for s in range(20)}, reset_strikes=struck)
    loop = exclude(loop, [Exclusion("struck", "loop", "reset_strikes", "above", 0, 0.1)])
    outcome = SUCCESSES.judge(make.context(loop, make.successes("anchor", (3, 4), range(20))))
    assert outcome.details["sides"] == ["4/19", "1/19"] and outcome.status == "FAIL"


def test_means_over_the_same_seeds_may_be_asked_to_agree_exactly(make):
    moved, still = ({s: float(s) + (s == 2) * by for s in range(10)} for by in (0.5, 0.0))
    rule = Tolerance("loop", "anchor", "reward", "mean", 0)
    same = rule.judge(make.context(make.episodes("loop", reward=still), make.episodes("anchor", reward=still)))
    other = rule.judge(make.context(make.episodes("loop", reward=moved), make.episodes("anchor", reward=still)))
    assert (same.status, same.interval) == ("PASS", (0.0, 0.0)) and (other.status, other.estimate) == ("FAIL", 0.05)


def test_counts_over_different_n_are_never_compared(make):
    context = make.context(make.recorded("loop", success=(5, 20)), make.recorded("anchor", success=(2, 19)))
    assert SUCCESSES.judge(context).status == "INVALID"
    planned = {"loop": make.evaluation(20), "anchor": make.evaluation(19)}
    assert "use share" in SUCCESSES.impossible(make.context(planned=planned))[0]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (Tolerance("loop", "anchor", "success", "count", 20), "never FAIL"),
        (Tolerance("loop", "anchor", "success", "share", 1.0), "never FAIL"),
        (Tolerance("loop", "anchor", "success", "share", -0.1), "never PASS"),
        (Tolerance("loop", "loop", "success", "share", 0.1), "itself"),
    ],
)
def test_tolerances_that_decide_nothing_are_refused(make, rule, told):
    planned = {"loop": make.evaluation(20), "anchor": make.evaluation(20)}
    assert any(told in fault for fault in rule.impossible(make.context(planned=planned)))
    assert not SUCCESSES.impossible(make.context(planned=planned))


def test_the_documented_overlap_with_the_other_heads_successes_is_recorded(make):
    rule = Overlap("ar", seeds="42,47,55,56,57,73,85,92,93")
    outcome = rule.judge(make.context(make.successes("ar", (73,), range(100))))
    assert (outcome.status, outcome.label, outcome.estimate, outcome.n) == ("PASS", "RECORDED", 1.0, 100)
    assert outcome.details["both"] == [73] and outcome.details["expected"] == pytest.approx(0.09)
    assert len(outcome.details["only_theirs"]) == 8 and rule.RECORD_ONLY


def test_overlap_is_over_common_seeds_only(make):
    context = make.context(make.successes("a", (1, 2, 9), range(10)), make.successes("b", (2, 3, 12), range(2, 15)))
    outcome = Overlap("a", other="b").judge(context)
    assert outcome.details["both"] == [2] and outcome.details["only_ours"] == [9] and outcome.n == 8
    assert outcome.details["only_theirs"] == [3]


def test_overlap_needs_one_other_side_with_seeds_in_common(make):
    for wrong in ({}, {"other": "b", "seeds": "1"}, {"seeds": "x"}):
        with pytest.raises(ConfigError):
            Overlap("a", **wrong)
    apart = {"a": make.evaluation(10), "b": make.evaluation(10, first=10)}
    assert "no seed in common" in Overlap("a", other="b").impossible(make.context(planned=apart))[0]
    assert not Overlap("a", seeds="3").impossible(make.context(planned=apart))
    assert Overlap("a", other="b").judge(make.context(planned={**apart, "b": Planned("recorded")})).status == "MISSING"
