"""D003: surface A. Published: R0-A goes on, R1-A and R1-B end in the violence wire, no change on held-out scenes."""

import pytest
from encoded import count, encoded, number, played, row

from vla_rl.prereg.budget import account
from vla_rl.prereg.judging import boundary, judge
from vla_rl.prereg.registered import config_of

ID = "D003-patch-surface"
READS = {
    "distance": ("PASS", {"r0a": number("anchor_k3", 0.0601)}, "FAIL"),
    "not_inert": ("PASS", {"r0a": number("nll_drift", 0.0049)}, "FAIL"),
    "memory": ("PASS", {"r0a": number("vram_gib", 75.0)}, "FAIL"),
    "unchanged": ("PASS", {"r0a_after": count("success_documented", 1)}, "FAIL"),
    "violence_a": ("FAIL", {"r1a": row(2, "knockaway_frac", 10 / 64)}, "PASS"),
    "violence_b": ("FAIL", {"r1b": row(3, "knockaway_frac", 10 / 64)}, "PASS"),
    "setback_b": ("0.703", {"r1b": row(1, "setback_frac", 0.5)}, "0.5938"),
    "successes_b": ("10", {"r1b": row(1, "successes", 5)}, "11"),
    "best_change": ("INCONCLUSIVE", {"best": number("reward_low", 0.001)}, "PASS"),
}
NEVER = {"improvement"}


def test_every_read_is_listed():
    registration = encoded(ID).registration
    assert {*READS, *NEVER} == {item.id for item in (*registration.reads, *registration.gates)}
    assert encoded(ID).recorded("improvement") is None


@pytest.mark.parametrize("name", READS)
def test_the_published_decision_follows_from_the_evidence_and_turns_with_it(name):
    published, moved, then = READS[name]
    d003 = encoded(ID)
    assert d003.recorded(name) == d003.decision(name) == published
    assert d003.decision(name, moved) == then != published


@pytest.mark.parametrize("name", ["distance", "not_inert", "memory"])
def test_each_read_of_the_boundary_of_r0_can_stop_it(name):
    d003 = encoded(ID)
    wanted = d003.registration.rung("R0").proceed_if
    reads = {each: {"outcome": d003.outcome(each).record()} for each in wanted}
    assert boundary(d003.registration, "R0", reads) == ("PROCEED", wanted) and d003.loaded.state.rungs == {
        "R0": "PROCEED"
    }
    reads[name] = {"outcome": d003.outcome(name, READS[name][1]).record()}
    assert boundary(d003.registration, "R0", reads) == ("STOP", [name])


def test_the_wires_fire_at_the_third_wave_and_not_before():
    for name in ("violence_a", "violence_b"):
        assert encoded(ID).outcome(name).details["fired_at"] == 3


def test_both_runs_halt_it_and_only_the_registered_re_pricing_leads_on():
    d003 = encoded(ID)
    events = [(e.event, e.data.get("how")) for e in d003.loaded.entries if e.event in ("attempt_recorded", "amended")]
    assert events == [
        ("attempt_recorded", "finished"),
        ("attempt_recorded", "stopped"),
        ("amended", None),
        ("attempt_recorded", "stopped"),
    ]
    (amendment,) = d003.loaded.effective.amendments
    assert (amendment.allowance, amendment.effects) == ("reprice", []) and d003.loaded.effective.used("reprice") == 1
    verdict = d003.loaded.state.verdict
    assert verdict["verdict"] == "INCONCLUSIVE" and "halted: R1-B" in verdict["reasons"][0]


def test_the_re_pricing_is_of_r1_alone():
    r0, r1 = (config_of(encoded(ID).registration, rung, None) for rung in ("R0", "R1"))
    assert (r0["optim"]["lr"], r1["optim"]["lr"]) == (1e-6, 3e-7)
    assert (r0["reward"]["_target_"].rpartition(".")[2], r1["reward"]["_target_"].rpartition(".")[2]) == (
        "RewardV1",
        "RewardV2",
    )
    assert [a.outdated for a in encoded(ID).loaded.state.attempts] == [False, True, False]


def test_the_ledger_holds_the_hours_of_the_lane():
    d003 = encoded(ID)
    assert account(d003.registration, d003.loaded.state).spent["gpu_h"] == pytest.approx(2.12 + 2 * 2.95)


@pytest.mark.parametrize(("after", "status"), [(2.0, "PASS"), (0.0, "FAIL"), (1.0, "INCONCLUSIVE")])
def test_the_primary_read_would_have_decided_either_way(after, status):
    before = played("before", range(100), reward=1.0)
    found = {("before", None): before, ("after", None): played("after", range(100), reward=after)}
    assert judge(encoded(ID).registration, found, "improvement").status == status
