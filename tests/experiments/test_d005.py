"""D005: replay parity. Published: masks equal on all 1,903 and 1,904 rows, PASS; a bound of 1e-5 that 4.4e-5 and 5.7e-5
do not meet, moved to 1e-4 with a reason."""

import math

import pytest
from bench import Bench, prereg, refused
from encoded import EXPERIMENTS, count, encoded, number

from vla_rl.prereg.judging import verdict_of
from vla_rl.prereg.pins import Place

ID = "D005-replay-parity"
TURNS = {
    "masks_v1": ("PASS", {"wave_v1": count("masks_equal", 1902)}, "FAIL"),
    "masks_v2": ("PASS", {"wave_v2": count("masks_equal", 1903)}, "FAIL"),
    "bound_v1": ("FAIL", {"old_and_new": number("worst_token_v1", 1e-5)}, "PASS"),
    "bound_v2": ("FAIL", {"old_and_new": number("worst_token_v2", 1e-5)}, "PASS"),
    "moved_v1": ("PASS", {"old_and_new": number("worst_token_v1", 1.01e-4)}, "FAIL"),
    "moved_v2": ("PASS", {"old_and_new": number("worst_token_v2", 1.01e-4)}, "FAIL"),
    "decade": ("PASS", {"old_and_new": number("worst_token_v2", 1e-3)}, "FAIL"),
    "consumer": ("PASS", {"operation": number("ratio_shift_at_bound", math.expm1(2.1e-4))}, "FAIL"),
    "clip_share": ("0.141", {"operation": number("clip_fraction", 0.2)}, "0.2"),
    "median_v1": ("0.568", {"stored_and_new": number("median_v1", 0.6)}, "0.6"),
    "p90_v1": ("1.29", {"stored_and_new": number("p90_v1", 1.3)}, "1.3"),
    "max_v1": ("3.92", {"stored_and_new": number("max_v1", 4.0)}, "4"),
    "median_v2": ("0.552", {"stored_and_new": number("median_v2", 0.6)}, "0.6"),
    "p90_v2": ("1.58", {"stored_and_new": number("p90_v2", 1.6)}, "1.6"),
    "max_v2": ("8.84", {"stored_and_new": number("max_v2", 9.0)}, "9"),
}


def test_every_read_is_listed():
    registration = encoded(ID).registration
    assert {*TURNS} == {item.id for item in (*registration.reads, *registration.gates)}


@pytest.mark.parametrize("name", TURNS)
def test_the_published_decision_follows_from_the_evidence_and_turns_with_it(name):
    published, moved, then = TURNS[name]
    d005 = encoded(ID)
    assert d005.recorded(name) == d005.decision(name) == published
    assert d005.decision(name, moved) == then != published


def test_all_rows_of_both_waves_were_compared():
    assert [encoded(ID).outcome(f"masks_{wave}").n for wave in ("v1", "v2")] == [1903, 1904]


def test_a_bound_that_moved_after_its_outcome_was_seen_is_exploratory_and_the_first_outcome_stays():
    d005 = encoded(ID)
    (amendment,) = d005.loaded.effective.amendments
    assert amendment.data_seen == "outcomes" and amendment.effects == [
        "clip_share", "consumer", "decade", "moved_v1", "moved_v2",
    ]  # fmt: skip
    assert d005.loaded.state.reads["bound_v1"]["outcome"]["status"] == "FAIL"
    assert d005.registration.constants == {
        "same_decomposition": 1e-5, "across_decompositions": 1e-4, "rationalised": 1e-3,
        "thousandth_of_clip_band": 2e-4,
    }  # fmt: skip


def test_the_instrument_holds_and_the_sentence_says_of_what():
    state = encoded(ID).loaded.state
    assert state.name == "CLOSED" and state.verdict is not None and state.verdict["verdict"] == "SUPPORTED"
    assert "for this instrument on what it was checked on" in state.verdict["sentence"]
    assert "Handed in and not played here: old_and_new, operation, wave_v1, wave_v2." in state.verdict["sentence"]
    reads = dict(state.reads)
    outcome = encoded(ID).outcome("masks_v2", TURNS["masks_v2"][1])
    reads["masks_v2"] = {**reads["masks_v2"], "outcome": outcome.record()}
    changed = type(state)(**{**vars(state), "reads": reads})
    assert verdict_of(encoded(ID).loaded.effective, changed).verdict == "REFUTED"


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """The draft alone, in a repository of its own, frozen with nothing of the policy here."""
    made = Bench.make(tmp_path / "repo")
    monkeypatch.setenv("VLA_RL_EXPERIMENTS", str(made.experiments))
    monkeypatch.setattr(Place, "here", classmethod(lambda cls: made.place()))
    monkeypatch.chdir(made.root)
    made.draft((EXPERIMENTS / ID / "draft.yaml").read_text(), ID)
    overrides = encoded(ID).loaded.versions[0].registration.meta.composed_from.overrides
    assert prereg("freeze", ID, "--absent", *overrides) == 0
    made.commit("Freeze")
    assert prereg("activate", ID) == 0
    return made


def test_without_checkpoint_and_codec_a_launch_says_exactly_what_is_missing(draft, capsys):
    told = refused(capsys, 4, "launch", ID, "--check", says="2 things stand against launching")
    assert "allenai/MolmoAct2-SO100_101 is not there" in told
    assert "allenai/MolmoAct2-FAST-Tokenizer is not there" in told


def test_with_both_it_is_launchable_once_their_files_are_pinned(draft):
    for name in ("MolmoAct2-SO100_101", "MolmoAct2-FAST-Tokenizer"):
        (draft.root / "allenai" / name).mkdir(parents=True)
        (draft.root / "allenai" / name / "file").write_text(name)
    (draft.root / ".gitignore").write_text("outputs/\nallenai/\n")
    words = ("--reason", "the release is here", "--kind", "operational", "--data-seen", "none")
    assert prereg("amend", ID, "--repin", *words) == 0
    draft.commit("Amend")
    assert prereg("launch", ID, "--check") == 0


def test_a_bound_may_not_be_moved_without_saying_that_its_outcome_was_seen(draft, capsys):
    file = draft.root / "outputs" / "handed.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"values": {"worst_token_v1": 4.4e-5, "worst_token_v2": 5.7e-5}}')
    assert prereg("read", ID, "bound_v1", "--from", str(file)) == 0
    move = ("amend", ID, "--set", "constants.same_decomposition=1.0e-4", "--reason", "x", "--kind", "scientific")
    refused(capsys, 2, *move, "--data-seen", "none", says="outcomes were opened")
    assert prereg(*move, "--data-seen", "outcomes") == 0
    refused(capsys, 0, "read", ID, "bound_v1", says="FAIL: worst_token_v1 4.4e-05, not <= 1e-05")  # as it was judged
    assert prereg("read", ID, "bound_v2") == 0  # which is exploratory now
    last = draft.ledger(ID)[-1]["data"]
    assert last["read"] == "bound_v2" and last["outcome"]["status"] == "PASS" and last["exploratory"] is True
