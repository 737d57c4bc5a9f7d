"""Exact tests of pairs."""

import pytest

from vla_rl.prereg.exclusions import Exclusion, exclude
from vla_rl.prereg.rules.pairs import McNemar, SignTest
from vla_rl.prereg.rules.resampled import PairedBootstrap

SEEDS = range(100)
BASE = (34, 35, 63, 68, 71, 91, 96)  # the documented successes of the greedy base


def test_the_documented_primary_improves_with_six_new_seeds_and_not_with_five(make):
    base = make.successes("base", BASE, SEEDS)
    for new, status, label in ((6, "PASS", "IMPROVED"), (5, "INCONCLUSIVE", "FLAT")):
        after = make.successes("after", {*BASE, *range(new)}, SEEDS)
        outcome = McNemar("base", "after").judge(make.context(base, after))
        assert (outcome.status, outcome.label) == (status, label)
        assert outcome.p == pytest.approx(2 * 0.5**new) and outcome.estimate == new / 100
        assert (outcome.details["won"], outcome.details["lost"], outcome.n) == (new, 0, 100)
    assert McNemar("base", "after", sides="one").judge(make.context(base, after)).status == "PASS"  # 5: p = 0.03125


def test_losing_the_seeds_of_the_base_is_a_regression_that_fires_on_fail(make):
    outcome = McNemar("base", "after").judge(
        make.context(make.successes("base", BASE, SEEDS), make.successes("after", (), SEEDS))
    )
    assert (outcome.status, outcome.label) == ("FAIL", "REGRESSED") and outcome.p == pytest.approx(2 * 0.5**7)


def test_an_unmoved_policy_is_flat_and_fails_only_where_the_rule_says_so(make):
    context = make.context(make.successes("base", BASE, SEEDS), make.successes("after", BASE, SEEDS))
    flat, fails = McNemar("base", "after").judge(context), McNemar("base", "after", otherwise="fail").judge(context)
    assert (flat.status, flat.label, flat.p) == ("INCONCLUSIVE", "FLAT", 1.0)
    assert (fails.status, fails.label) == ("FAIL", "FLAT")
    assert flat.interval == (0.0, 0.0)


def test_a_claimed_decrease_improves_by_falling(make):
    before = make.episodes("b", knockaway={s: s < 8 for s in range(20)})
    after = make.episodes("a", knockaway={s: s < 1 for s in range(20)})
    outcome = McNemar("b", "a", "knockaway", direction="decrease").judge(make.context(before, after))
    assert (outcome.status, outcome.label) == ("PASS", "IMPROVED")
    assert outcome.estimate == -7 / 20 and outcome.p == pytest.approx(2 * 0.5**7)


def test_mid_p_is_named_and_less_conservative(make):
    before, after = make.successes("b", range(6), SEEDS), make.successes("a", range(6, 22), SEEDS)
    exact = McNemar("b", "a").judge(make.context(before, after))
    mid = McNemar("b", "a", mid_p=True).judge(make.context(before, after))
    assert (exact.status, mid.status) == ("INCONCLUSIVE", "PASS")
    assert exact.p == pytest.approx(0.05248, abs=5e-6) and mid.p == pytest.approx(0.03469, abs=5e-6)
    assert "mid-p" in mid.sentence and "exact" in exact.sentence


def test_recorded_counts_of_won_and_lost_pairs_are_enough(make):
    context = make.context(
        make.recorded("a", success=(1, 100)),
        make.recorded("b", success=(1, 100), success_won=(1, 100), success_lost=(1, 100)),
    )
    outcome = McNemar("a", "b").judge(context)  # the documented arms: one success each, on different seeds
    assert (outcome.label, outcome.p, outcome.details["tied"]) == ("FLAT", 1.0, 98)
    lacking = make.context(make.recorded("a", success=(1, 100)), make.recorded("b", success=(1, 100)))
    assert McNemar("a", "b").judge(lacking).status == "MISSING"


def test_power_is_that_of_the_registered_effect_and_share_of_discordant_pairs(make):
    sides = make.successes("b", (), range(6)), make.successes("a", (), range(6))
    context = make.context(*sides, smallest_effect=0.5, effect_of={"success"})
    outcome = McNemar("b", "a", discordant=0.7).judge(context)
    assert outcome.power == pytest.approx(0.6**6) and outcome.effect == 0.5
    observed = McNemar("b", "a").judge(context)  # nothing differs: the fewest discordant pairs that the effect allows
    assert observed.power == pytest.approx(0.5**6)
    assert McNemar("b", "a").judge(make.context(*context.evidence.values())).power is None


def test_the_sign_test_takes_any_number_and_leaves_ties_out(make):
    before = make.episodes("b", progress_cm={s: 1.0 for s in range(10)})
    after = make.episodes("a", progress_cm={s: 1.0 if s < 2 else 1.5 for s in range(10)})
    outcome = SignTest("b", "a", "progress_cm").judge(make.context(before, after))
    assert outcome.p == pytest.approx(2 * 0.5**8) and outcome.details["tied"] == 2
    claimed = make.context(before, after, smallest_effect=0.5, effect_of={"progress_cm"})  # half a centimetre
    assert SignTest("b", "a", "progress_cm").judge(claimed).power is None
    assert SignTest("b", "a", "progress_cm", effect=0.5).judge(claimed).effect == 0.5  # half of the pairs
    assert McNemar("b", "a", "progress_cm").judge(make.context(before, after)).status == "INVALID"


def test_other_scenes_and_other_seeds_are_never_paired(make):
    base = make.successes("b", (), SEEDS)
    other_scene = make.successes("a", (), SEEDS, scene="s2")
    other_seeds = make.successes("a", (), range(1, 101))
    for after in (other_scene, other_seeds):
        outcome = McNemar("b", "a").judge(make.context(base, after))
        assert outcome.status == "INVALID" and ("scene" in outcome.sentence or "seeds" in outcome.sentence)


def test_an_excluded_seed_leaves_both_sides(make):
    strike = Exclusion("struck", "a", "reset_strikes", "above", 0, 0.2)
    before = make.episodes("b", success={s: False for s in range(10)}, reset_strikes={s: 0 for s in range(10)})
    after = make.episodes("a", success={s: True for s in range(10)}, reset_strikes={s: int(s == 3) for s in range(10)})
    planned = {"b": make.evaluation(10), "a": make.evaluation(10)}
    outcome = McNemar("b", "a").judge(make.context(before, exclude(after, [strike]), planned=planned))
    assert outcome.n == 9 and outcome.details["won"] == 9


def test_incomplete_evidence_is_missing_and_unregistered_seeds_are_invalid(make):
    planned = {"b": make.evaluation(20), "a": make.evaluation(20)}
    full, part = make.successes("b", (), range(20)), make.successes("a", (), range(19))
    outcome = McNemar("b", "a").judge(make.context(full, part, planned=planned))
    assert outcome.status == "MISSING" and "19 of 20" in outcome.sentence
    more = make.successes("a", (), range(21))
    assert McNemar("b", "a").judge(make.context(full, more, planned=planned)).status == "INVALID"
    assert McNemar("b", "a").judge(make.context(full, planned=planned)).status == "MISSING"


def test_fewer_pairs_than_can_be_significant_are_refused(make):
    five = {"b": make.evaluation(5), "a": make.evaluation(5)}
    [fault] = McNemar("b", "a").impossible(make.context(planned=five))
    assert "5 pairs" in fault and "6" in fault
    assert not McNemar("b", "a", sides="one").impossible(make.context(planned=five))
    apart = {"b": make.evaluation(10), "a": make.evaluation(10, first=5)}
    assert "not registered on the same seeds" in McNemar("b", "a").impossible(make.context(planned=apart))[0]
    assert "itself" in McNemar("b", "b").impossible(make.context(planned={"b": make.evaluation(10)}))[0]


def test_more_pairs_than_are_enumerated_leave_the_power_untold(make):
    found = make.recorded("a", success_won=(40, 3000), success_lost=(1, 3000))
    context = make.context(make.recorded("b", success=(0, 3000)), found, smallest_effect=0.1, effect_of={"success"})
    outcome = McNemar("b", "a").judge(context)
    assert outcome.status == "PASS" and outcome.power is None


@pytest.mark.parametrize("rule", [McNemar, PairedBootstrap])
def test_a_share_of_discordant_pairs_that_is_none_is_refused(make, rule):
    context = make.context(planned={"b": make.evaluation(20), "a": make.evaluation(20)})
    assert rule("b", "a", discordant=30.0).impossible(context) == ["discordant 30 is no share: it lies between 0 and 1"]
