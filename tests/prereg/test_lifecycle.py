"""From a draft to a verdict, with the real trainer on real episodes."""

import json
import os

import pytest
from bench import DRAFT, TINY, prereg

from vla_rl.cli.prereg import launching
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.ledger import Ledger


def said(capsys, *arguments):
    """Exit code and the JSON object that a command prints."""
    capsys.readouterr()
    code = prereg(*arguments, "--json")
    out = capsys.readouterr().out
    return code, json.loads(out) if out.strip() else None


def test_a_new_draft_can_be_frozen_as_it_stands(bench, capsys):
    assert prereg("new", "E7") == 0
    assert prereg("freeze", "E7", "experiment=quickstart", "--check") == 0
    assert not (bench.folder("E7") / "registration.yaml").exists()
    assert prereg("new", "E7") == 2


def test_a_registration_is_run_read_and_judged(judged, capsys):
    assert judged.events() == [
        "registered", "activated", "launched", "attempt_ended", "look", "look", "read", "look", "read", "look", "read",
        "verdict", "closed", "reported",
    ]  # fmt: skip
    assert prereg("verify", "--all") == 0
    code, told = said(capsys, "status", "E1")
    assert (code, told["state"], told["next"]) == (0, "CLOSED", "")
    assert told["verdict"] in ("SUPPORTED", "REFUTED", "INCONCLUSIVE")
    assert 0 < told["budget"]["spent"]["wall_h"] < told["budget"]["limit"]["wall_h"]
    for read in told["reads"]:
        assert set(read["outcome"]) >= {"n", "interval", "power", "sentence"}
    report = (judged.folder() / "REPORT.md").read_text()
    assert told["verdict"] in report and "the loop runs" in report and "Generated" in report.splitlines()[0]


def test_the_run_is_the_registered_one_and_says_so(judged):
    run = judged.root / "outputs/prereg/E1/main-baseline/attempt_01"
    manifest = json.loads((run / "manifest.json").read_text())["launches"][0]["registered"]
    frozen = judged.ledger()[0]
    assert (manifest["id"], manifest["digest"]) == ("E1", frozen["registration"])
    assert (manifest["rung"], manifest["arm"], manifest["exploratory"]) == ("main", "baseline", False)
    ended = judged.ledger()[3]["data"]
    assert ended["how"] == "finished" and ended["wall_h"] > 0 and ended["gpu_h"] == 0 and ended["step"] == 1
    evidence = json.loads((judged.folder() / "evidence/after.json").read_text())
    assert evidence["policy_digest"] == ended["policy_digest"] != ended["base_digest"]
    assert [row["seed"] for row in evidence["episodes"]] == list(range(10000, 10006))


def test_outcomes_of_a_registered_run_are_sealed_until_they_are_read(launched, capsys):
    run = launched.root / "outputs/prereg/E1/main-baseline/attempt_01"
    assert (run / "eval.jsonl").exists()
    code, told = said(capsys, "status", "E1")
    assert all(read["outcome"] is None for read in told["reads"]) and told["next"] == "vla-rl prereg read E1 progress"


def test_reading_again_shows_what_is_on_record_and_adds_nothing(judged, capsys):
    before = judged.events()
    code, told = said(capsys, "read", "E1", "progress")
    assert code == 0 and judged.events() == before
    assert told["outcome"] == next(e["data"]["outcome"] for e in judged.ledger() if e["event"] == "read")


def test_a_second_run_of_the_same_arm_is_refused(launched, capsys):
    assert prereg("launch", "E1") == 4
    assert "has its run" in capsys.readouterr().err
    assert launched.events()[-1] == "gate_refused"
    refusal = launched.ledger()[-1]["data"]
    assert refusal["gate"] is None and any("has its run" in each["what"] for each in refusal["refusals"])


def test_a_launch_lists_everything_that_stands_against_it(bench, capsys):
    bench.draft()
    assert prereg("freeze", "E1", *TINY) == 0
    (bench.root / "src/pkg/code.py").write_text("VALUE = 2\n")
    assert prereg("launch", "E1", "--set", "optim.lr=1e-3") == 4
    told = capsys.readouterr().err
    for each in ("not active", "not committed", "package_tree", "code.py", "optim.lr may change what the run computes"):
        assert each in told, each
    assert told.count("remedy:") >= 4
    assert bench.events() == ["registered", "gate_refused"]
    assert prereg("launch", "E1", "--check") == 4 and bench.events() == ["registered", "gate_refused"]


def test_activation_waits_for_checklist_objections_and_their_answers(bench, capsys):
    text = DRAFT + "activation: {checklist: [{id: receipt, text: the base has a receipt}], objection_h: 0.0}\n"
    bench.draft(text)
    assert prereg("freeze", "E1", *TINY) == 0
    bench.commit()
    assert prereg("activate", "E1") == 4 and "the base has a receipt" in capsys.readouterr().err
    assert prereg("object", "E1", "--text", "the seeds were seen", "--by", "Grace") == 0
    shows = "exported/base: sha256=0123, [made by hand"
    assert prereg("activate", "E1", "--done", f"receipt={shows}") == 4
    assert Folder(bench.experiments, "E1").load().state.checked == {"receipt": shows}, "as it was said, no YAML"
    assert "Grace" in capsys.readouterr().err
    number = next(e["seq"] for e in bench.ledger() if e["event"] == "objected")
    assert prereg("object", "E1", "--answer", str(number), "--text", "they were not") == 0
    assert prereg("activate", "E1") == 0
    assert bench.events()[-1] == "activated"


def test_a_detached_launch_that_lives_is_told_with_its_process_and_log(active, capsys, monkeypatch):
    """The other process is not told that the bench is the place: it checks by itself, and refuses."""
    monkeypatch.setattr(launching, "PROOF_OF_LIFE_S", 0.0)
    code, lives = said(capsys, "launch", "E1", "--detach")
    os.waitpid(lives["pid"], 0)
    (log,) = (active.root / "outputs/prereg/E1").iterdir()
    assert code == 0 and log.name == "main-baseline.1.log" and lives["log"] == str(log)
    assert "against launching E1" in log.read_text()


def test_the_objection_window_has_to_pass(bench, capsys):
    bench.draft(DRAFT + "activation: {objection_h: 24.0}\n")
    assert prereg("freeze", "E1", *TINY) == 0
    bench.commit()
    assert prereg("activate", "E1") == 4
    assert "objections are possible until" in capsys.readouterr().err


@pytest.mark.slow
def test_an_exploratory_run_is_labelled_and_proves_nothing(active, capsys):
    assert prereg("launch", "E1", "--exploratory", "--set", "optim.lr=1e-4", "--set", "run.steps=0") == 0
    attempt = next(e["data"] for e in active.ledger() if e["event"] == "launched")
    assert attempt["exploratory"] and "exploratory" in attempt["run"] and attempt["set"]["optim.lr"] == 1e-4
    assert prereg("read", "E1", "progress") == 4
    assert "sealed" in capsys.readouterr().err
    code, told = said(capsys, "status", "E1")
    assert told["budget"]["spent"]["wall_h"] > 0, "what was spent was spent"


def test_withdrawn_and_superseded_registrations_keep_their_ledger(active):
    active.frozen("E2")
    assert prereg("supersede", "E1", "--by", "E9", "--reason", "none") == 2
    assert prereg("supersede", "E1", "--by", "E2", "--reason", "another base") == 0
    assert prereg("withdraw", "E2", "--reason", "the simulator was wrong") == 0
    assert active.events("E1")[-1] == "superseded" and active.events("E2")[-1] == "withdrawn"
    assert prereg("launch", "E2") == 4 and prereg("amend", "E2", "--set", "config.optim.lr=1e-6", "--reason", "x",
                                                  "--kind", "scientific", "--data-seen", "none") == 2  # fmt: skip
    assert prereg("erratum", "E2", "--text", "it was right after all", "--disputes") == 0
    assert prereg("verify", "--all") == 0


def test_a_clone_at_the_pinned_trees_launches_like_the_original(active, use, tmp_path, capsys):
    active.commit("Activate E1")
    active.git("clone", "-q", str(active.root), str(tmp_path / "clone"))
    use(type(active)(tmp_path / "clone"))
    assert prereg("launch", "E1", "--check") == 0


def test_ledger_and_evidence_come_back_by_the_prefix_rule(launched, use, tmp_path, capsys):
    here = use(launched.copy(tmp_path / "here"))
    there = use(launched)
    assert prereg("read", "E1", "clip") == 0
    use(here)
    assert prereg("import", "E1", "--from", str(there.folder())) == 0
    assert here.events()[-1] == "read" and (here.folder() / "evidence/training.json").exists()
    assert prereg("verify", "E1") == 0
    use(there)
    assert prereg("read", "E1", "progress") == 0
    assert prereg("report", "E1") == 0
    use(here)
    assert prereg("import", "E1", "--from", str(there.folder())) == 0, "again, once it has gone on there"
    assert here.events() == there.events() and prereg("verify", "E1") == 0
    for bench in (here, there):
        use(bench)
        assert prereg("erratum", "E1", "--text", bench.root.name) == 0
    assert prereg("import", "E1", "--from", str(here.folder())) == 5, "both have gone on"


@pytest.mark.parametrize("id", ["../E1", "E 1", "", ".", "a/b", "E1\n"])
def test_what_is_no_id_never_becomes_a_path(bench, id):
    assert prereg("status", id) == 2


def test_two_writers_make_one_chain(tmp_path):
    folder = tmp_path / "E1"
    folder.mkdir()
    for i in range(3):
        Ledger(folder).append("objected", {"n": i}, registration="r", config="c")
    assert [entry.seq for entry in Ledger(folder).read()] == [0, 1, 2]
