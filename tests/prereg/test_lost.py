"""`vla-rl prereg lost`: the end of an attempt whose machine will never report, by the word of somebody who says so."""

import dataclasses
import json

import pytest
from bench import prereg, refused
from test_attacks import RUN, edit, launched_by

from vla_rl.prereg.budget import account
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.process import Process
from vla_rl.prereg.sections import Budget

GONE = ("--reason", "the machine was taken away")


@pytest.fixture
def away(active):
    """An attempt that was begun on another machine."""
    launched_by(active, {**Process.own().body(), "node": "elsewhere"})
    return active


def spent(bench):
    """Of a pool of both units."""
    loaded = Folder(bench.experiments, "E1").load()
    both = dataclasses.replace(loaded.registration, budget=Budget(gpu_h=9.0, wall_h=9.0))
    return account(both, loaded.state).spent


def lose(hours, number="1"):
    return prereg("lost", "E1", number, f"--hours={hours}", *GONE)


def test_a_lost_attempt_has_its_end_and_what_it_cost_at_most(away, capsys):
    capsys.readouterr()
    assert prereg("lost", "E1", "1", "--hours", "0.25", *GONE, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"id": "E1", "state": "ACTIVE", "attempt": 1, "how": "lost"}
    assert away.events()[-2:] == ["launched", "attempt_ended"]
    assert away.ledger()[-1]["data"] == {
        "attempt": 1, "how": "lost", "exit_code": None, "why": "the machine was taken away", "wall_h": 0.25,
        "gpu_h": 0.0, "files": {}, "step": 0, "policy_digest": None, "base_digest": None,
    }  # fmt: skip
    assert spent(away) == {"wall_h": 0.25, "gpu_h": 0.0} and prereg("verify", "E1") == 0


def test_hours_on_a_gpu_are_gpu_hours(active):
    launched_by(active, {**Process.own().body(), "node": "elsewhere"}, on_gpu=True)
    assert lose(1.5) == 0 and spent(active) == {"wall_h": 1.5, "gpu_h": 1.5}


def test_a_lost_run_can_go_on_and_is_not_begun_anew(away, capsys):
    refused(capsys, 4, "launch", "E1", "--resume", "--check", says="of machine elsewhere")
    assert lose(0.25) == 0
    assert prereg("launch", "E1", "--resume", "--check") == 0
    refused(capsys, 4, "launch", "E1", "--check", says=("attempt 1 of it can go on", "--resume"))
    prereg("status", "E1", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["next"], told["because"]) == ("vla-rl prereg launch E1 --resume", "attempt 1 ended: lost")


def test_what_a_lost_attempt_may_have_cost_is_not_spent_again(away, capsys):
    """The pool has one hour, and a launch should cost a tenth."""
    assert lose(0.95) == 0
    refused(capsys, 4, "launch", "E1", "--resume", "--check", says="0.95 wall_h are spent")


def test_what_there_is_of_a_lost_run_is_what_it_goes_on_from(away, capsys):
    (away.root / RUN).mkdir(parents=True)
    (away.root / RUN / "config.yaml").write_text("a: 1\n")
    assert lose(0.25) == 0 and list(away.ledger()[-1]["data"]["files"]) == ["config.yaml"]
    assert prereg("launch", "E1", "--resume", "--check") == 0
    edit(away.root / RUN / "config.yaml", "1", "2")
    refused(capsys, 4, "launch", "E1", "--resume", "--check", says=f"{RUN}/config.yaml")


def test_an_attempt_is_lost_once(away, capsys):
    assert lose(0.25) == 0
    before = away.ledger()
    refused(capsys, 2, "lost", "E1", "1", "--hours", "0.5", *GONE, says=("has its end", "without an end: none"))
    refused(capsys, 2, "lost", "E1", "2", "--hours", "0.5", *GONE, says="attempt 2 has its end, or was never begun")
    assert away.ledger() == before


@pytest.mark.parametrize(
    "hours, says", [("-0.5", "hours are positive"), ("nan", "hours are positive"), ("-inf", "hours"), ("inf", "inf")]
)
def test_hours_that_are_no_cost_are_refused(away, capsys, hours, says):
    before = away.ledger()
    refused(capsys, 2, "lost", "E1", "1", f"--hours={hours}", *GONE, says=says)
    assert away.ledger() == before


def test_what_a_lost_attempt_cost_is_said_and_not_left_open(away):
    before = away.ledger()
    with pytest.raises(SystemExit) as ended:
        prereg("lost", "E1", "1", *GONE)
    assert ended.value.code == 2 and away.ledger() == before


def test_an_attempt_that_lives_here_is_not_lost(active, capsys):
    launched_by(active, Process.own().body())
    before = active.ledger()
    refused(capsys, 4, "lost", "E1", "1", "--hours", "0.5", *GONE, says="its process runs on this machine")
    assert active.ledger() == before


def test_an_attempt_that_died_here_is_buried_with_what_it_cost_not_with_what_is_said(active, capsys):
    launched_by(active, {**Process.own().body(), "started": 1})
    refused(capsys, 2, "lost", "E1", "1", "--hours", "0", *GONE, says="attempt 1 has its end")
    assert active.ledger()[-1]["data"]["how"] == "killed"
