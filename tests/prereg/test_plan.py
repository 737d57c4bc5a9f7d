"""`vla-rl plan --prereg`: a plan is made of what a registration would launch, and leaves no trace in it."""

import json

import pytest
from bench import DRAFT, TINY, prereg

from vla_rl.cli.main import main

LADDER = "ladder: [{id: R0}, {id: R1, set: {geometry.draws: 4}}]\n"
RUNGS = DRAFT.replace("main:", "R0: {wall_h: 0.1}\n    R1:") + LADDER


def planned(capsys, named):
    """What a plan says."""
    capsys.readouterr()
    given = ("--no-probe", "--success-rate", "0.5", "--against", " ".join(TINY), "--json")
    assert main(["plan", "--prereg", named, *given]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_plan_is_of_the_first_rung_as_it_was_frozen(bench, capsys):
    before = bench.frozen("E1", RUNGS).ledger()
    told = planned(capsys, "E1")
    assert told["against"]["differences"] == {}, "it is what the overrides of the freeze make"
    assert told["device"] == "cpu" and told["times"] is None and told["cost"] is None
    groups = told["groups"]  # two groups of two draws at one half: each has both outcomes half of the time
    assert (groups["groups"], groups["draws"], groups["mixed_share"], groups["barren_wave"]) == (2, 2, 0.5, 0.25)
    assert bench.ledger() == before


def test_a_plan_is_of_the_rung_that_is_named_with_its_amendments(bench, capsys):
    bench.frozen("E1", RUNGS)
    amended = ("--set", "config.geometry.seeds=3", "--reason", "r", "--kind", "scientific", "--data-seen", "none")
    assert prereg("amend", "E1", *amended) == 0
    told = planned(capsys, "E1:R1")
    assert told["against"]["differences"] == {"geometry.seeds": [3, 2], "geometry.draws": [4, 2]}
    assert told["groups"]["mixed_share"] == 0.875 and told["groups"]["barren_wave"] == 0.125**3


@pytest.mark.parametrize("given, says", [
    (["E1:R7"], "there is no rung 'R7'"), (["E9"], "there is no registration E9"), (["E1/.."], "is no id"),
    (["E1", "run.steps=2"], "leave the overrides away"),
])  # fmt: skip
def test_a_plan_of_what_is_not_registered_is_refused(active, capsys, given, says):
    assert main(["plan", "--no-probe", "--prereg", *given]) == 2
    assert says in capsys.readouterr().err
