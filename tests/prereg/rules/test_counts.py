"""Rules on one count."""

import subprocess
import sys

import pytest

from vla_rl.errors import ConfigError
from vla_rl.prereg.rules import Planned
from vla_rl.prereg.rules.counts import BinomialTail, Interval

FLOW = BinomialTail("flow", 0.44, direction="decrease")  # the documented leg of the flow head


@pytest.mark.parametrize(("k", "status"), [(35, "PASS"), (36, "INCONCLUSIVE"), (52, "INCONCLUSIVE"), (53, "FAIL")])
def test_a_drop_from_44_percent_is_material_at_35_of_100_and_not_at_36(make, k, status):
    outcome = FLOW.judge(make.context(make.recorded("flow", success=(k, 100))))
    assert outcome.status == status and outcome.details["critical"] == 35 and outcome.n == 100
    if k == 35:
        assert outcome.p == pytest.approx(0.0424, abs=5e-5) and "P(X <= 35" in outcome.sentence


@pytest.mark.parametrize(("k", "status"), [(0, "FAIL"), (35, "FAIL"), (36, "PASS"), (44, "PASS"), (100, "PASS")])
def test_as_a_guard_it_fails_on_a_material_drop_alone(make, k, status):
    guard = BinomialTail("flow", "anchor", direction="increase", requires="not_against", effect=0.2)
    context = make.context(make.recorded("flow", success=(k, 100)), constants={"anchor": 0.44})
    outcome = guard.judge(context)
    assert outcome.status == status and outcome.details["critical"] == 35
    assert outcome.p is None and outcome.effect == -0.2  # no p-value that a family of reads could be adjusted by
    assert outcome.power == pytest.approx(0.99523, abs=1e-5)  # P(X <= 35 | 0.24)
    assert f"P(X <= {k} | Binomial(100, 0.44))" in outcome.sentence
    other = BinomialTail("flow", 0.44, direction="decrease", requires="not_against")
    assert (other.judge(context).status == "FAIL") == (k >= 53)


def test_a_guard_over_so_few_scenes_or_from_so_low_an_anchor_that_no_drop_is_material_is_refused(make):
    for n, anchor, sound in ((5, 0.44, False), (6, 0.44, True), (100, 0.02, False), (100, 0.03, True)):
        guard = BinomialTail("flow", "anchor", direction="increase", requires="not_against")
        told = guard.impossible(make.context(planned={"flow": make.evaluation(n)}, constants={"anchor": anchor}))
        assert bool(told) != sound and all("it can never FAIL" in each for each in told)


def test_a_guard_that_passes_unless_it_fails_has_no_other_outcome_and_no_power_to_see_the_impossible(make):
    guard = BinomialTail("m", 0.1, direction="increase", requires="not_against", effect=0.15)
    assert guard.judge(make.context(make.recorded("m", success=(9, 100)))).power is None
    assert BinomialTail("m", 0.2, direction="increase", requires="not_against", effect=0.15).judge(
        make.context(make.recorded("m", success=(9, 100)))
    ).power == pytest.approx(0.999, abs=0.01)
    otherwise = BinomialTail("m", 0.5, direction="increase", requires="not_against", otherwise="fail")
    told = otherwise.impossible(make.context(planned={"m": make.evaluation(100)}))
    assert len(told) == 1 and "never otherwise" in told[0]


def test_a_rise_above_7_percent_needs_12_of_100(make):
    rule = BinomialTail("m", "anchor", effect=0.1)
    at_11, at_12 = (
        rule.judge(make.context(make.recorded("m", success=(k, 100)), constants={"anchor": 0.07})) for k in (11, 12)
    )
    assert (at_11.status, at_12.status) == ("INCONCLUSIVE", "PASS")
    assert at_12.p == pytest.approx(0.0469004, abs=1e-7)
    assert at_12.interval[0] > 0.07 > at_11.interval[0]  # the interval is the test turned around
    assert (at_12.effect, at_12.power) == (0.1, pytest.approx(0.93395, abs=1e-5))  # P(X >= 12 | 0.17)
    assert "power 0.934 to see +0.1" in at_12.line() and "n = 100" in at_12.line()


def test_the_claims_direction_and_effect_are_used_where_the_rule_names_none(make):
    context = make.context(
        make.recorded("m", success=(0, 100)), direction="decrease", smallest_effect=0.05, effect_of={"success"}
    )
    outcome = BinomialTail("m", 0.07).judge(context)
    assert outcome.status == "PASS" and outcome.effect == -0.05
    assert outcome.power == pytest.approx(0.6767, abs=1e-4)  # P(X <= 2 | 0.02)


def test_what_is_not_shown_fails_where_the_rule_says_so(make):
    context = make.context(make.recorded("m", success=(9, 100)))
    assert BinomialTail("m", 0.07, otherwise="fail").judge(context).status == "FAIL"


def test_a_tail_that_no_count_reaches_is_refused(make):
    planned = {"five": make.evaluation(5), "twenty": make.evaluation(20)}
    [fault] = BinomialTail("five", 0.07, direction="decrease").impossible(make.context(planned=planned))
    assert "never PASS" in fault and "0/5" in fault  # 0.93^5 = 0.70
    [fault] = BinomialTail("five", 0.6).impossible(make.context(planned=planned))
    assert "5/5" in fault  # 0.6^5 = 0.078
    assert not BinomialTail("twenty", 0.6).impossible(make.context(planned=planned))
    assert BinomialTail("gone", 0.6).impossible(make.context()) == ["the measurement gone is not registered"]
    assert BinomialTail("five", "x").impossible(make.context(planned=planned)) == ["the constant x is not registered"]
    assert BinomialTail("five", "x").impossible(make.context(planned=planned, constants={"x": None})) == []


def test_a_deferred_constant_leaves_the_read_missing(make):
    context = make.context(make.recorded("m", success=(9, 100)), constants={"anchor": None})
    outcome = BinomialTail("m", "anchor").judge(context)
    assert outcome.status == "MISSING" and "anchor" in outcome.sentence


def test_recorded_counts_over_another_n_than_registered_are_invalid(make):
    context = make.context(make.recorded("m", success=(7, 90)), planned={"m": Planned("recorded", tuple(range(100)))})
    assert BinomialTail("m", 0.07).judge(context).status == "INVALID"


def test_the_documented_window_of_knock_aways_is_counted_over_its_last_rows(make):
    fracs = [10 / 64, 4 / 64, 2 / 64, 3 / 64, 1 / 64, 2 / 64]
    rows = make.series("train", knockaway_frac=fracs, episodes=[64] * 6)
    rule = Interval("train", 10 / 120, "knockaway_frac", direction="decrease", last=5)
    outcome = rule.judge(make.context(rows))
    assert outcome.details["k"] == 12 and outcome.n == 320
    assert outcome.status == "PASS" and outcome.interval[1] == pytest.approx(0.0646, abs=1e-4)
    with_first = Interval("train", 10 / 120, "knockaway_frac", direction="decrease").judge(make.context(rows))
    assert with_first.details["k"] == 22 and with_first.status == "INCONCLUSIVE"
    assert rule.impossible(make.context(planned={"train": Planned("series", steps=4)}))


def test_whole_numbers_of_a_series_are_counts_of_its_episodes(make):
    rows = make.series("train", successes=[6, 1], episodes=[64, 64])
    outcome = BinomialTail("train", 0.01, "successes").judge(make.context(rows))
    assert (outcome.details["k"], outcome.n) == (7, 128)


def test_more_episodes_than_registered_are_invalid_and_fewer_are_missing(make):
    for n, status in ((21, "INVALID"), (20, "INCONCLUSIVE"), (19, "MISSING")):
        context = make.context(make.successes("m", (1, 2), range(n)), planned={"m": make.evaluation(20)})
        assert BinomialTail("m", 0.07).judge(context).status == status


def test_a_share_that_is_no_count_of_its_episodes_is_invalid(make):
    rows = make.series("train", knockaway_frac=[0.33], episodes=[64])
    assert Interval("train", 0.1, "knockaway_frac").judge(make.context(rows)).status == "INVALID"


@pytest.mark.parametrize(
    ("k", "beyond", "not_against"),
    [(0, "FAIL", "FAIL"), (3, "INCONCLUSIVE", "PASS"), (4, "INCONCLUSIVE", "PASS"), (8, "PASS", "PASS")],
)
def test_an_interval_against_a_line_has_three_outcomes_and_its_weak_form_two(make, k, beyond, not_against):
    context = make.context(make.recorded("m", success=(k, 20)))  # intervals: 0-.168, .032-.379, .057-.437, .191-.639
    assert Interval("m", 0.17).judge(context).status == beyond
    assert Interval("m", 0.17, requires="not_against").judge(context).status == not_against


def test_a_one_sided_interval_is_tighter(make):
    context = make.context(make.recorded("m", success=(12, 100)))
    two, one = Interval("m", 0.07).judge(context), Interval("m", 0.07, sides="one").judge(context)
    assert (two.status, one.status) == ("INCONCLUSIVE", "PASS") and one.level == pytest.approx(0.9)


def test_power_of_an_interval_is_the_chance_of_the_counts_beyond_the_line(make):
    context = make.context(make.recorded("m", success=(3, 20)))
    outcome = Interval("m", 0.17, effect=0.3).judge(context)
    assert (
        outcome.power == pytest.approx(0.80197, abs=1e-5) and outcome.effect == 0.3
    )  # P(X >= 8 | 0.47): 8/20 from .191
    falling = Interval("m", 0.5, direction="decrease", effect=0.4).judge(context)
    assert falling.power == pytest.approx(0.9887, abs=1e-4)  # P(X <= 5 | 0.1): 5/20 up to .491
    assert Interval("m", 0.17, effect=0.3, requires="not_against").judge(context).power is None


def test_the_claims_effect_is_used_for_its_own_metric_only(make):
    counted = make.recorded("m", success=(3, 20), success_strict=(3, 20))
    context = make.context(counted, smallest_effect=0.1, effect_of={"success_strict"})
    for rule in (BinomialTail, Interval):
        assert rule("m", 0.07, metric="success").judge(context).power is None
        assert rule("m", 0.07, metric="success_strict").judge(context).effect == 0.1


def test_an_effect_that_is_no_share_is_refused(make):
    context = make.context(planned={"m": make.evaluation(100)}, smallest_effect=15.0, effect_of={"success"})
    for rule in (BinomialTail, Interval):
        assert rule("m", 0.07).impossible(context) == ["effect 15 is no share: it lies between 0 and 1"]
        assert not rule("m", 0.07, effect=0.15).impossible(context)


def test_a_rule_without_a_direction_of_its_own_is_refused_where_the_claim_has_none(make):
    context = make.context(planned={"m": make.evaluation(100)}, direction=None)
    for rule in (BinomialTail, Interval):
        assert "no direction" in rule("m", 0.07).impossible(context)[0]
        assert not rule("m", 0.07, direction="increase").impossible(context)
    counted = make.context(make.recorded("m", success=(20, 100)), direction=None)
    assert BinomialTail("m", 0.07).judge(counted).status == "INVALID"
    assert BinomialTail("m", 0.07, direction="increase").judge(counted).status == "PASS"


def test_a_measurement_that_is_not_registered_is_missing_and_no_crash(make):
    assert BinomialTail("gone", 0.07).judge(make.context()).status == "MISSING"


def test_an_interval_that_cannot_reach_its_line_is_refused(make):
    context = make.context(
        planned={"m": make.evaluation(10)}
    )  # 10/10 has its lower end at 0.692, 0/10 its upper at 0.308
    assert "never PASS" in Interval("m", 0.7).impossible(context)[0]
    assert not Interval("m", 0.69).impossible(context)
    assert "never PASS" in Interval("m", 0.3, direction="decrease").impossible(context)[0]
    assert "never FAIL" in Interval("m", 0.3, requires="not_against").impossible(context)[0]
    assert not Interval("m", 0.31, requires="not_against").impossible(context)


def test_a_level_that_is_none_is_refused():
    with pytest.raises(ConfigError):
        Interval("m", 0.1, level=1.0)


def test_judging_needs_no_torch_and_not_the_slow_half_of_scipy():
    code = """if True:
    import sys
    from vla_rl.prereg.evidence import Evidence
    from vla_rl.prereg.rules import RULES, Context, Planned
    assert "scipy" not in sys.modules
    counts = {"success": (12, 100), "success_won": (9, 100), "success_lost": (1, 100)}
    found = {("m", None): Evidence("m", None, "counts", counts=counts)}
    planned = {"m": Planned("recorded"), "b": Planned("recorded")}
    context = Context(planned, smallest_effect=0.1, effect_of=frozenset({"success"}), evidence=found)
    assert RULES["binomial_tail"]("m", 0.07).judge(context).status == "PASS"
    assert RULES["mcnemar"]("b", "m").judge(context).status == "PASS"
    assert RULES["paired_bootstrap"]("b", "m").judge(context).status == "PASS"
    print([m for m in ("torch", "mujoco", "scipy.stats") if m in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
