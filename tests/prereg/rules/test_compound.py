"""Rules about other reads: the whole table of statuses."""

from itertools import product

import pytest

from vla_rl.errors import ConfigError
from vla_rl.prereg.outcome import STATUSES, Outcome
from vla_rl.prereg.rules import RULES, Context
from vla_rl.prereg.rules.alike import Overlap
from vla_rl.prereg.rules.compound import AllOf, AnyOf
from vla_rl.prereg.rules.lines import Threshold


def judged(rule, *statuses):
    outcomes = {f"r{i}": Outcome(status, f"sentence {i}") for i, status in enumerate(statuses)}
    return rule.judge(Context({}, outcomes=outcomes))


@pytest.mark.parametrize("statuses", product(STATUSES, repeat=2))
def test_all_and_any_of_two_reads_over_the_whole_table(statuses):
    every, some = judged(AllOf(["r0", "r1"]), *statuses).status, judged(AnyOf(["r0", "r1"]), *statuses).status
    found = set(statuses)
    if "INVALID" in found:
        assert every == some == "INVALID"
        return
    assert (every == "PASS") == (found == {"PASS"}) and (every == "FAIL") == ("FAIL" in found)
    assert (some == "PASS") == ("PASS" in found) and (some == "FAIL") == (found == {"FAIL"})
    assert (every == "MISSING") == ("MISSING" in found and "FAIL" not in found)
    assert (some == "MISSING") == ("MISSING" in found and "PASS" not in found)


def test_a_read_that_is_not_there_is_missing_and_all_parts_are_told():
    outcome = judged(AllOf(["r0", "gone"]), "PASS")
    assert outcome.status == "MISSING" and outcome.details["of"] == {"r0": "PASS", "gone": "MISSING"}
    assert "r0 PASS: sentence 0; no n; no interval; no power" in outcome.sentence


def test_circles_recorded_reads_and_unknown_reads_are_refused():
    threshold, recorded = Threshold("m", "success", "count", "above", 1), Overlap("m", seeds="1")
    first, second = AllOf(["second", "t"]), AnyOf(["first"])
    context = Context({}, rules={"first": first, "second": second, "t": threshold, "o": recorded})
    assert "never be judged" in first.impossible(context)[0] and "never be judged" in second.impossible(context)[0]
    assert not AllOf(["t"]).impossible(context)
    assert "only recorded" in AllOf(["t", "o"]).impossible(context)[0]
    assert AllOf(["gone"]).impossible(context) == ["the read gone is not registered"]


@pytest.mark.parametrize("of", [[], ["a", "a"]])
def test_no_read_or_one_twice_is_refused(of):
    with pytest.raises(ConfigError):
        AllOf(of)


def test_the_set_of_kinds_is_closed_and_documented():
    assert set(RULES) == {
        "binomial_tail", "interval", "mcnemar", "sign_test", "paired_bootstrap", "cluster_bootstrap", "threshold",
        "window", "tolerance", "stated_interval", "bands", "overlap", "record", "all_of", "any_of",
    }  # fmt: skip
    for kind, rule in RULES.items():
        assert rule.KIND == kind and rule.__doc__ and "Attributes" in rule.__doc__
        assert set(rule.NUMBERS) <= set(rule.__dataclass_fields__)
