"""What `vla-rl sweep ID` starts: arms that go on, and gates that are asked once for all of them."""

import sys

import pytest
from bench import DRAFT
from test_attacks import launched_by
from test_ladder import CHILD, write

from vla_rl.cli import onejob
from vla_rl.cli.main import main
from vla_rl.prereg import launchgates, pins
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.launchgates import Request
from vla_rl.prereg.process import Process


@pytest.fixture
def launching(monkeypatch):
    """Jobs take a bench for the place where everything happens, as the test does."""

    def launching(bench):
        code = CHILD.replace('prereg("launch", "E1", *sys.argv[2:])', "main(sys.argv[2:])")
        code = code.replace(
            "from bench import Bench, prereg", "from bench import Bench\nfrom vla_rl.cli.main import main"
        )
        monkeypatch.setattr(onejob, "_python", lambda: [sys.executable, "-c", code, str(bench.root)])
        monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
        return bench

    return launching


@pytest.mark.slow
def test_an_arm_that_failed_before_it_had_a_directory_runs_in_the_next_sweep(active, launching, capsys):
    bench = launching(active)
    launched_by(bench, {**Process.own().body(), "started": 1})
    write(bench, "attempt_ended", {
        "attempt": 1, "how": "failed", "exit_code": 2, "why": "no such base", "wall_h": 0.0, "gpu_h": 0.0, "files": {},
        "step": 0, "policy_digest": None, "base_digest": None,
    })  # fmt: skip
    assert main(["sweep", "E1"]) == 0, capsys.readouterr().err
    launched, ended = (line["data"] for line in bench.ledger()[-2:])
    assert (launched["resume"], launched["run"]) == (True, "outputs/prereg/E1/main-baseline/attempt_02")
    assert (ended["attempt"], ended["how"]) == (2, "finished")


def test_what_concerns_the_whole_registration_is_asked_and_told_once_for_all_arms(bench, monkeypatch, capsys):
    """Three arms; changed code, which concerns all of them, and one arm that runs already."""
    bench.frozen("E1", DRAFT.replace("wall_h: 1.0", "wall_h: 9.0") + "levers: {run.seed: [1, 2]}\n")
    (bench.root / "src/pkg/code.py").write_text("VALUE = 2\n")
    launched_by(bench, Process.own().body())
    calls = dict.fromkeys(("files of the checkpoint", "history", "findings"), 0)

    def counted(name, real):
        def call(*arguments):
            calls[name] += 1
            return real(*arguments)

        return call

    monkeypatch.setattr(pins, "file_hashes", counted("files of the checkpoint", pins.file_hashes))
    monkeypatch.setattr(launchgates.History, "of", counted("history", launchgates.History.of))
    monkeypatch.setattr(launchgates, "findings", counted("findings", launchgates.findings))
    assert main(["sweep", "E1"]) == 4
    assert calls == dict.fromkeys(calls, 1)
    told = capsys.readouterr().err
    assert told.count("pkg is not what was frozen: code.py") == 1 and "2 things stand against sweeping E1" in told
    assert "baseline: this rung and arm is running" in told


def test_a_launch_is_refused_for_what_concerns_all_arms_and_for_what_concerns_its_own(bench):
    bench.frozen("E1", DRAFT.replace("wall_h: 1.0", "wall_h: 9.0") + "levers: {run.seed: [1]}\n")
    (bench.root / "src/pkg/code.py").write_text("VALUE = 2\n")
    launched_by(bench, Process.own().body())
    folder = Folder(bench.experiments, "E1")
    loaded = folder.load()
    free, busy = (Request("main", arm.id) for arm in reversed(loaded.registration.arms))
    (code,) = launchgates.refusals(folder, loaded, free, bench.place())
    assert code.what == "pkg is not what was frozen: code.py"
    found = launchgates.refusals(folder, loaded, busy, bench.place())
    assert found[0] == code and "this rung and arm is running" in found[1].what
