"""D001: the token pathway of the released policy, 100 scenes. Published: it goes on; masked decoding improves it."""

import pytest
from encoded import count, encoded, episode, number

ID = "D001-discrete-pathway"

# read: (published, what is moved, what it then says)
READS = {
    "success": ("PASS", {"arm_a": episode(73, "success_documented", False)}, "FAIL"),
    "strikes": ("PASS", {"arm_a": episode(5, "reset_strikes", 1)}, "FAIL"),
    "pace": ("PASS", {"numbers_a": number("wall_h", 2.51)}, "FAIL"),
    "fallback": (f"{202 / 2991:g}", {"predicts_a": count("zero_fallbacks", 203)}, f"{203 / 2991:g}"),
    "engaged": ("13", {"counts_a": count("engaged", 14)}, "14"),
    "knockaway": ("27", {"counts_a": count("knockaway", 26)}, "26"),
    "progress": ("-0.87", {"numbers_a": number("progress_final_mean_cm", 0.1)}, "0.1"),
    "overlap": ("1", {"arm_a": episode(42, "success_documented", True)}, "2"),
    "delta": ("PASS", {"change_b": number("progress_final_cm_low", -0.001)}, "INCONCLUSIVE"),
    "success_b": ("1", {"arm_b": episode(73, "success_documented", True)}, "2"),
    "strikes_b": ("PASS", {"arm_b": episode(0, "reset_strikes", 1)}, "FAIL"),
    "fallback_b": ("PASS", {"predicts_b": count("zero_fallbacks", 1)}, "FAIL"),
    "knockaway_b": ("13", {"counts_b": count("knockaway", 27)}, "27"),
    "progress_b": ("-0.14", {"numbers_b": number("progress_final_mean_cm", -0.87)}, "-0.87"),
    "overlap_b": ("0", {"arm_b": episode(73, "success_documented", True)}, "1"),
}


def test_every_read_is_listed():
    registration = encoded(ID).registration
    assert set(READS) == {item.id for item in (*registration.reads, *registration.gates)}


@pytest.mark.parametrize("name", READS)
def test_the_published_decision_follows_from_the_evidence_and_turns_with_it(name):
    published, moved, then = READS[name]
    d001 = encoded(ID)
    assert d001.recorded(name) == d001.decision(name) == published
    assert d001.decision(name, moved) == then != published


def test_the_interval_of_the_difference_is_the_published_one_and_reaches_to_its_line():
    delta = encoded(ID).outcome("delta")
    assert (delta.estimate, delta.interval, delta.n) == (0.728, (0.147, 1.325), 100)
    below = {"change_b": lambda e: number("progress_final_cm_high", -0.1)(
        number("progress_final_cm", -0.2)(number("progress_final_cm_low", -0.3)(e)))}  # fmt: skip
    assert encoded(ID).decision("delta", below) == "FAIL"


def test_the_arms_succeed_on_different_scenes_and_one_of_them_is_among_the_flow_heads():
    assert encoded(ID).outcome("overlap").details["both"] == [73]
    assert encoded(ID).outcome("overlap_b").details == {
        "both": [],
        "only_ours": [73],
        "only_theirs": [1],
        "expected": 0.01,
    }


def test_the_lane_goes_on_and_nothing_pretends_to_have_been_played_here():
    state = encoded(ID).loaded.state
    assert state.name == "CLOSED" and state.verdict["verdict"] == "SUPPORTED"
    assert "Handed in and not played here: arm_a, numbers_a" in state.verdict["sentence"]
    assert "Made by other software: 2 of 2 attempts." in state.verdict["sentence"]
    assert [(a.arm == "baseline", a.hours, a.finished) for a in state.attempts] == [
        (True, 1.15, True),
        (False, 1.05, True),
    ]


def test_the_arm_that_came_after_outcomes_were_seen_confirms_nothing():
    d001 = encoded(ID)
    later = {read.id for read in d001.registration.reads if read.id.endswith("_b")} | {"delta"}
    assert set(d001.loaded.effective.exploratory) == later
    assert [a.data_seen for a in d001.loaded.effective.amendments] == ["outcomes"]
