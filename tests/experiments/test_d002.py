"""D002: token-GRPO phase 2, R0. Published: STOP at the boundary of R0, by spread and memory; no wire could fire."""

import pytest
from encoded import count, encoded, number, played, row

from vla_rl.prereg.amendments import start
from vla_rl.prereg.budget import account
from vla_rl.prereg.delta import Op, apply, lookup, read_path
from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.judging import boundary, judge
from vla_rl.prereg.lint import findings

ID = "D002-token-grpo"
READS = {
    "spread": ("FAIL", {"r0": row(2, "median_group_std_cm", 0.25)}, "PASS"),
    "groups": ("PASS", {"r0": row(1, "groups_kept", 7)}, "FAIL"),
    "ratio_low": ("PASS", {"r0": row(1, "mean_ratio", 0.949)}, "FAIL"),
    "ratio_high": ("PASS", {"r0": row(2, "mean_ratio", 1.051)}, "FAIL"),
    "clip": ("PASS", {"r0": row(1, "clip_fraction", 0.2)}, "FAIL"),
    "memory": ("FAIL", {"r0": row(2, "vram_gib", 74.9)}, "PASS"),
    "strikes": ("PASS", {"r0": row(2, "strikes", 1)}, "FAIL"),
    "not_worse": ("FAIL", {"r0_change": number("reward_high", 0.01)}, "PASS"),
    "crash": ("PASS", {"r0_change": lambda e: number("reward_high", -1.01)(number("reward", -2.0)(e))}, "FAIL"),
    "heldout_before": ("2", {"r0_before": count("success_documented", 3)}, "3"),
    "heldout_after": ("0", {"r0_after": count("success_documented", 1)}, "1"),
    "kl_scale": ("0.0885", {"r0": row(2, "anchor_kl", 0.0215)}, "0.0215"),
    "likelihood": ("0.329", {"r0": row(2, "chosen_nll", 0.766)}, "0.766"),
}
NEVER = {"improvement", "kl_runaway", "knockaway"}  # of R1, which was not launched
BOUNDARY = ("spread", "groups", "ratio_low", "ratio_high", "clip", "memory")


def test_every_read_is_listed():
    registration = encoded(ID).registration
    assert {*READS, *NEVER} == {item.id for item in (*registration.reads, *registration.gates)}
    assert all(encoded(ID).recorded(name) is None for name in NEVER)


@pytest.mark.parametrize("name", READS)
def test_the_published_decision_follows_from_the_evidence_and_turns_with_it(name):
    published, moved, then = READS[name]
    d002 = encoded(ID)
    assert d002.recorded(name) == d002.decision(name) == published
    assert d002.decision(name, moved) == then != published


def at_the_boundary(moved=None):
    """Decision and the reads that made it so, judged anew."""
    d002 = encoded(ID)
    reads = {name: {"outcome": d002.outcome(name, moved).record()} for name in BOUNDARY}
    return boundary(d002.registration, "R0", reads)


def test_the_boundary_of_r0_says_stop_by_spread_and_memory():
    assert at_the_boundary() == ("STOP", ["spread", "memory"])
    assert encoded(ID).loaded.state.rungs == {"R0": "STOP"}
    mended = {"r0": lambda e: row(2, "vram_gib", 74.9)(row(2, "median_group_std_cm", 0.3)(e))}
    assert at_the_boundary(mended) == ("PROCEED", list(BOUNDARY))


@pytest.mark.parametrize("name", BOUNDARY)
def test_any_read_of_the_boundary_alone_can_stop_it(name):
    def both(e):
        e = row(2, "vram_gib", 74.9)(row(2, "median_group_std_cm", 0.3)(e))
        worse = {"spread": row(2, "median_group_std_cm", 0.24), "memory": row(2, "vram_gib", 75.0)}
        return worse.get(name, READS[name][1]["r0"])(e)

    assert at_the_boundary({"r0": both}) == ("STOP", [name])


def test_the_verdict_names_the_boundary_and_that_nothing_was_played_here():
    verdict = encoded(ID).loaded.state.verdict
    assert verdict["verdict"] == "INCONCLUSIVE"
    assert "the boundary of R0 says STOP (spread, memory)" in verdict["reasons"][0]
    assert "Made by other software: 4 of 4 attempts." in verdict["sentence"]


def test_the_ledger_holds_four_launches_and_their_hours():
    d002 = encoded(ID)
    ends = [(a.data["how"], a.hours) for a in d002.loaded.state.attempts]
    assert ends == [("failed", 0.9), ("out of memory", 0.95), ("out of memory", 1.0), ("finished", 0.95)]
    pool = account(d002.registration, d002.loaded.state)
    assert pool.spent["gpu_h"] == pytest.approx(3.8) and pool.limit == {"gpu_h": 35.0}
    assert pool.expected["R0"] == {"gpu_h": 5.5} and pool.shortfall("R1") is None


def test_no_addendum_changed_what_is_run_or_judged():
    effective = encoded(ID).loaded.effective
    assert [a.kind for a in effective.amendments] == ["operational"] * 3
    touched = {op["path"].partition("[")[0].partition(".")[0] for a in effective.amendments for op in a.ops}
    assert touched == {"activation", "budget"} and not effective.exploratory
    assert encoded(ID).loaded.versions[0].config_digest == effective.config_digest


# ---------------------------------------------------------------------------------------- what was documented otherwise
def refused_with(path, value):
    """What the linter says of the registration with one value as the documents had it."""
    plain = dict(encoded(ID).loaded.effective.plain)
    changed = apply([Op("set", read_path(path), lookup(plain, read_path(path)), value)], plain)
    return [f"{f.where}: {f.what}" for f in findings(start(changed, "test").registration)]


@pytest.mark.parametrize("wire", ["collapse", "knockaway"])
def test_a_wire_of_three_waves_is_refused_in_a_rung_of_two(wire):
    told = refused_with(f'ladder[R0].set["tripwires.{wire}"]', "armed")
    assert told == [
        f"config.tripwires.{wire}: the armed wire {wire} needs 3 waves, and the rung R0 has 2: it cannot fire"
    ]


def test_three_waves_in_a_row_as_a_read_of_two_are_refused_too():
    rule = {
        "kind": "window", "measurement": "r0", "metric": "knockaway_frac", "comparator": "above", "consecutive": 3,
        "line": 0.16666666666666666, "times_first": None,
    }  # fmt: skip
    assert refused_with("reads[spread].rule", rule) == [
        "reads[spread].rule: 3 rows in a row of 2 rows: it can never fire"
    ]


def test_a_primary_read_on_the_watched_scenes_is_refused():
    told = "seed 200 can confirm nothing: 200-219 served watched during training, feeds the wires"
    assert refused_with("measurements[after].seeds", "200-219")[0] == f"measurements[after].seeds: {told}"


# ------------------------------------------------------------------------------------------ reads that were never taken
def test_the_primary_read_would_have_decided_either_way():
    d002, seeds = encoded(ID), range(100)
    for after, status in ((2.0, "PASS"), (0.0, "FAIL"), (1.0, "INCONCLUSIVE")):
        found = {
            ("before", None): played("before", seeds, reward=1.0),
            ("after", None): played("after", seeds, reward=after),
        }
        assert judge(d002.registration, found, "improvement").status == status


@pytest.mark.parametrize(("share", "status"), [(0.0, "PASS"), (4 / 64, "INCONCLUSIVE"), (16 / 64, "FAIL")])
def test_knock_aways_of_the_last_five_waves_are_held_against_the_probe(share, status):
    rows = tuple({"step": i + 1, "episodes": 64, "knockaway_frac": share, "anchor_kl": 0.1} for i in range(15))
    found = {("r1", None): Evidence("r1", None, "series", rows=rows)}
    assert judge(encoded(ID).registration, found, "knockaway").status == status
    assert judge(encoded(ID).registration, found, "kl_runaway").status == "MISSING"  # its line was never set


@pytest.mark.parametrize(("line", "status"), [(0.1, "PASS"), (0.09, "FAIL")])
def test_the_line_of_the_distance_is_what_r0_would_have_set(line, status):
    plain = apply([Op("set", read_path("constants.kl_line"), None, line)], dict(encoded(ID).loaded.effective.plain))
    rows = tuple({"step": i + 1, "episodes": 64, "anchor_kl": 0.1} for i in range(15))
    found = {("r1", None): Evidence("r1", None, "series", rows=rows)}
    assert judge(start(plain, "test").registration, found, "kl_runaway").status == status
