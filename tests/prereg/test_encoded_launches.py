"""The drafts of the encoded R2 (D004) and replay parity (D005), frozen anew: what they refuse and wait for."""

import json

import pytest
from bench import prereg, refused
from encoded import EXPERIMENTS, encoded

R2, PARITY = "D004-grpo-r2", "D005-replay-parity"


def frozen(bench, id: str):
    """The draft alone, in a repository of its own, frozen with nothing of its policy here."""
    bench.draft((EXPERIMENTS / id / "draft.yaml").read_text(), id)
    assert prereg("freeze", id, "--absent", *overrides(id)) == 0
    bench.commit("Freeze")
    return bench


def overrides(id: str) -> list[str]:
    return encoded(id).loaded.versions[0].registration.meta.composed_from.overrides


@pytest.fixture
def draft(bench):
    return frozen(bench, R2)


@pytest.fixture
def parity(bench):
    frozen(bench, PARITY)
    assert prereg("activate", PARITY) == 0
    return bench


def activated(bench) -> None:
    done = [f"--done={item.id}=x" for item in encoded(R2).loaded.versions[0].registration.activation.checklist]
    assert prereg("activate", R2, *done) == 0


def exam(bench, wins: int, head: str = "ar") -> str:
    path = bench.root / "outputs" / "exam.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"counts": {"success": [wins, 100]}, "head": head, "temperature": 0.0}))
    return str(path)


def test_a_verdict_on_the_flow_head_is_not_taken_for_the_exam(draft, capsys):
    activated(draft)
    says = "of the head flow, and base_count is registered for ar"
    refused(capsys, 2, "read", R2, "competence", "--from", exam(draft, 44, "flow"), says=says)


def test_without_the_checkpoint_a_launch_says_exactly_what_is_missing(draft, capsys):
    activated(draft)
    told = refused(capsys, 4, "launch", R2, "--check", says="2 things stand against launching")
    assert "grasp-sft-stage-c-endpoint is not there" in told and "the gate competence is not judged" in told


def test_with_a_checkpoint_it_is_launchable_once_the_exam_is_passed(draft, capsys):
    activated(draft)
    words = ("--reason", "the checkpoint is here", "--kind", "scientific", "--data-seen", "none")
    assert prereg("amend", R2, "--set", "config.policy.checkpoint=bundled:tiny_full", "--repin", *words) == 0
    draft.commit("Amend")
    assert prereg("read", R2, "competence", "--from", exam(draft, 20)) == 0
    assert prereg("launch", R2, "--check") == 0


@pytest.mark.slow  # bands are tried in test_d004; here each holds back a launch
@pytest.mark.parametrize("wins", [19, 4])
def test_an_exam_that_is_not_passed_holds_the_run_back(draft, capsys, wins):
    activated(draft)
    assert prereg("read", R2, "competence", "--from", exam(draft, wins)) == 0
    refused(capsys, 4, "launch", R2, "--check", says="the gate competence says " + ("BAND" if wins == 19 else "ABORT"))
    refused(capsys, 4, "override", R2, "competence", "--reason", "x")  # none is registered in the draft


def test_a_hypothesis_cannot_follow_the_bar_down(draft, capsys):
    lower = ("amend", R2, "--set", "claim.hypothesis=From 7 of 100 on", "--reason", "A3", "--kind", "scientific")
    refused(capsys, 2, *lower, "--data-seen", "none", says="claim.hypothesis is closed for good")


def test_another_clutter_than_the_stated_one_is_refused(draft, capsys):
    draft.draft((EXPERIMENTS / R2 / "draft.yaml").read_text(), "E2")
    patched = [*overrides(R2), "sim.look.clutter=patches"]
    says = "the run does not render the look 'documented_v3': clutter differ"
    refused(capsys, 2, "freeze", "E2", "--absent", "--check", *patched, says=says)


@pytest.mark.slow  # as the same of R2
def test_without_checkpoint_and_codec_a_launch_says_exactly_what_is_missing(parity, capsys):
    told = refused(capsys, 4, "launch", PARITY, "--check", says="2 things stand against launching")
    assert "allenai/MolmoAct2-SO100_101 is not there" in told
    assert "allenai/MolmoAct2-FAST-Tokenizer is not there" in told


@pytest.mark.slow  # as the same of R2
def test_with_both_it_is_launchable_once_their_files_are_pinned(parity):
    for name in ("MolmoAct2-SO100_101", "MolmoAct2-FAST-Tokenizer"):
        (parity.root / "allenai" / name).mkdir(parents=True)
        (parity.root / "allenai" / name / "file").write_text(name)
    (parity.root / ".gitignore").write_text("outputs/\nallenai/\n")
    words = ("--reason", "the release is here", "--kind", "operational", "--data-seen", "none")
    assert prereg("amend", PARITY, "--repin", *words) == 0
    parity.commit("Amend")
    assert prereg("launch", PARITY, "--check") == 0


def test_a_bound_may_not_be_moved_without_saying_that_its_outcome_was_seen(parity, capsys):
    file = parity.root / "outputs" / "handed.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"values": {"worst_token_v1": 4.4e-5, "worst_token_v2": 5.7e-5}}')
    assert prereg("read", PARITY, "bound_v1", "--from", str(file)) == 0
    move = ("amend", PARITY, "--set", "constants.same_decomposition=1.0e-4", "--reason", "x", "--kind", "scientific")
    refused(capsys, 2, *move, "--data-seen", "none", says="outcomes were opened")
    assert prereg(*move, "--data-seen", "outcomes") == 0
    refused(capsys, 0, "read", PARITY, "bound_v1", says="FAIL: worst_token_v1 4.4e-05, not <= 1e-05")
    assert prereg("read", PARITY, "bound_v2") == 0  # which is exploratory now
    last = parity.ledger(PARITY)[-1]["data"]
    assert last["read"] == "bound_v2" and last["outcome"]["status"] == "PASS" and last["exploratory"] is True
