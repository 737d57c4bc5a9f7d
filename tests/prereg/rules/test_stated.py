"""Intervals that are taken as they are stated: no data, no computation, the same lines as for computed ones."""

import pytest

from vla_rl.errors import ConfigError
from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.rules import Context, Planned
from vla_rl.prereg.rules.stated import StatedInterval

PLANNED = {"m": Planned("recorded"), "played": Planned("evaluation", seeds=(1, 2))}


def judged(rule, direction="increase", **numbers):
    found = {("m", None): Evidence("m", None, "numbers", numbers=numbers)}
    return rule.judge(Context(PLANNED, direction=direction, evidence=found))


@pytest.mark.parametrize(
    ("low", "high", "direction", "requires", "status"),
    [
        (0.147, 1.325, "increase", "beyond", "PASS"),
        (0.0, 1.325, "increase", "beyond", "INCONCLUSIVE"),  # the line itself is not beyond it
        (-2.0, -0.1, "increase", "beyond", "FAIL"),
        (-2.0, -0.1, "decrease", "beyond", "PASS"),
        (-4.41, 0.0, "increase", "not_against", "PASS"),
        (-4.41, -0.03, "increase", "not_against", "FAIL"),
        (0.03, 4.0, "decrease", "not_against", "FAIL"),
    ],
)
def test_its_ends_are_held_against_the_line(low, high, direction, requires, status):
    outcome = judged(
        StatedInterval("m", "d", requires=requires), direction, d=(low + high) / 2, d_low=low, d_high=high, d_n=100
    )
    assert (outcome.status, outcome.interval, outcome.n, outcome.level) == (status, (low, high), 100, 0.95)


def test_without_an_n_it_says_that_there_is_none_and_another_line_counts():
    outcome = judged(StatedInterval("m", "d", line=-1.0, requires="not_against"), d=-1.868, d_low=-4.41, d_high=-0.03)
    assert outcome.status == "PASS" and "; no n;" in outcome.line() and "not lie wholly below -1" in outcome.sentence


def test_an_interval_without_its_estimate_or_without_an_end_is_not_judged():
    rule = StatedInterval("m", "d")
    assert judged(rule, d=2.0, d_low=0.1, d_high=1.0).status == "INVALID"
    assert judged(rule, d=0.5, d_low=0.1).status == "MISSING"


def test_what_is_measured_is_computed_and_not_stated():
    (why,) = StatedInterval("played", "d").impossible(Context(PLANNED))
    assert "is computed, not stated" in why and StatedInterval("m", "d").impossible(Context(PLANNED)) == []
    with pytest.raises(ConfigError):
        StatedInterval("m", "d", level=1.0)
