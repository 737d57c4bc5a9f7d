"""What the commands tell: the next step that is admissible, refusals with their remedies, one JSON object."""

import json
from dataclasses import replace

import pytest
from bench import DRAFT, TINY, prereg
from test_recovery import spend

from vla_rl.cli.prereg import launching
from vla_rl.prereg.budget import account
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.process import Process

GATE = """\
gates:
  - id: preflight
    text: hours
    override: true
    rule:
      kind: bands
      measurement: spend
      metric: hours
      statistic: value
      bands:
        - {label: ABORT, status: FAIL, below: 0.1}
        - {label: BAND, status: INCONCLUSIVE, at_least: 0.1, below: 1.0}
        - {label: PASS, status: PASS, at_least: 1.0}
"""
CHECKS = "activation:\n  checklist: [{id: plan, text: a plan was made}]\n"
WORDS = ("--set", "summary=other words", "--reason", "r", "--data-seen", "outcomes")


def told(capsys, *arguments):
    capsys.readouterr()
    code = prereg(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)


def begun(bench, process, *, exploratory=False):
    """A ledger with an attempt of a process."""
    folder = Folder(bench.experiments, "E1")
    data = {
        "attempt": 1, "rung": "main", "arm": "baseline", "run": "outputs/prereg/E1/main-baseline/attempt_01",
        "resume": False, "exploratory": exploratory, "set": {}, "process": process.body(), "on_gpu": False,
    }  # fmt: skip
    with folder.ledger.locked():
        folder.write("launched", data, effective=folder.load().effective)
    return folder


def test_every_answer_is_one_json_object(launched, capsys):
    for arguments in (("status",), ("status", "E1"), ("diff", "E1"), ("verify", "--all"), ("read", "E1", "clip")):
        assert isinstance(told(capsys, *arguments)[1], dict), arguments
    code, answer = told(capsys, "launch", "E1", "--check")
    assert code == 4 and answer["refusals"][0]["remedy"].startswith("vla-rl prereg read E1")


def test_an_option_is_written_out(bench):
    with pytest.raises(SystemExit) as ended:
        prereg("launch", "E1", "--det")
    assert ended.value.code == 2


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5])
def test_a_detached_launch_ends_with_the_code_of_its_process(active, monkeypatch, tmp_path, code, capsys):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho said; exit {code}\n")
    script.chmod(0o755)
    monkeypatch.setattr(launching.sys, "executable", str(script))
    assert prereg("launch", "E1", "--detach") == code
    assert "said" in capsys.readouterr().err


def test_the_next_step_before_activation_can_be_taken(bench, capsys):
    bench.draft(DRAFT + CHECKS)
    assert prereg("freeze", "E1", *TINY) == 0
    bench.commit()
    assert told(capsys, "status", "E1")[1]["next"] == "vla-rl prereg activate E1 --done plan=..."
    assert prereg("object", "E1", "--text", "why") == 0
    assert told(capsys, "status", "E1")[1]["next"] == "vla-rl prereg object E1 --answer 1 --text ..."
    assert prereg("object", "E1", "--answer", "1", "--text", "because") == 0
    assert prereg("activate", "E1", "--done", "plan=made") == 0


def test_the_next_step_after_a_kill_is_to_go_on(active, capsys):
    begun(active, replace(Process.own(), started=1))
    answer = told(capsys, "status", "E1")[1]
    assert answer["next"] == "vla-rl prereg launch E1 --resume" and "gone" in answer["because"]


def test_the_next_step_while_it_runs_is_to_look_after_it(active, capsys):
    begun(active, Process.own())
    assert told(capsys, "status", "E1")[1]["next"] == "vla-rl status"


def test_hours_of_a_run_that_has_not_ended_are_nobody_elses(active):
    loaded = begun(active, Process.own()).load()
    pool = account(loaded.registration, loaded.state)
    assert pool.reserved == {"wall_h": 0.1} and pool.left == {"wall_h": 0.9}
    tight = replace(loaded.registration, budget=replace(loaded.registration.budget, wall_h=0.15))
    assert "0.1 are reserved" in (account(tight, loaded.state).shortfall("main") or "")


def test_an_exploratory_run_does_not_stand_against_a_verdict(active, capsys):
    begun(active, Process.own(), exploratory=True)
    assert told(capsys, "verdict", "E1")[1]["verdict"] == "INCONCLUSIVE"
    assert prereg("close", "E1") == 4 and "stop it first" in capsys.readouterr().err


@pytest.mark.slow
def test_an_override_holds_for_what_was_launched_under_it(bench, capsys):
    bench.frozen("E1", DRAFT + GATE)
    assert prereg("read", "E1", "preflight", "--from", spend(bench)) == 0
    assert told(capsys, "verdict", "E1")[1]["verdict"] == "INVALID"
    assert prereg("override", "E1", "preflight", "--reason", "decided") == 0
    assert told(capsys, "verdict", "E1")[1]["verdict"] == "INCONCLUSIVE"
    assert prereg("amend", "E1", *WORDS, "--kind", "clerical") == 0
    bench.commit()
    assert prereg("launch", "E1", "--check") == 0, "a word changes nothing"
    assert prereg("amend", "E1", "--set", "config.run.steps=2", *WORDS[2:], "--kind", "operational") == 0
    bench.commit()
    assert prereg("launch", "E1", "--check") == 4, "another run needs another decision"
    assert told(capsys, "verdict", "E1")[1]["verdict"] == "INCONCLUSIVE", "what was decided before was decided"


def test_a_corrected_word_does_not_lead_back_from_a_halt(active, capsys):
    folder = begun(active, Process.own())
    with folder.ledger.locked():
        folder.write("tripwire", {"attempt": 1, "wires": ["collapse"], "why": "w"}, effective=folder.load().effective)
    assert prereg("amend", "E1", *WORDS, "--kind", "clerical") == 0
    assert told(capsys, "status", "E1")[1]["state"] == "HALTED"
    gentle = ("--fallback", "gentle", "--reason", "r", "--data-seen", "outcomes", "--kind", "scientific")
    assert prereg("amend", "E1", *gentle) == 0
    assert told(capsys, "status", "E1")[1]["state"] == "ACTIVE"


def test_a_registered_run_differs_in_nothing_from_its_registration(launched, capsys):
    run = Folder(launched.experiments, "E1").load().state.attempts[0].data["run"]
    assert told(capsys, "diff", "E1", run)[1]["deltas"][0]["ops"] == []


def test_the_list_tells_of_what_is_written_down_and_not_frozen(launched, capsys):
    launched.draft(id="E2")
    code, answer = told(capsys, "status")
    rows = {row["id"]: (row["state"], row["next"]) for row in answer["registrations"]}
    assert code == 0 and rows["E2"] == ("DRAFT", "vla-rl prereg freeze E2") and rows["E1"][0] == "ACTIVE"


def test_the_list_tells_of_the_others_when_one_is_broken(launched, capsys):
    launched.draft(id="E2")
    assert prereg("freeze", "E2", *TINY) == 0
    path = launched.folder("E1") / "registration.yaml"
    path.write_text(path.read_text() + "#\n")
    code, answer = told(capsys, "status")
    assert code == 5 and [row["state"] for row in answer["registrations"]] == ["BROKEN", "REGISTERED"]
    assert "registration.yaml" in answer["registrations"][0]["fault"] and prereg("status") == 5
