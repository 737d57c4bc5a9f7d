"""What `vla-rl sweep ID` starts: arms that go on, and gates that are asked once for all of them."""

import sys

import pytest
from test_attacks import launched_by
from test_ladder import CHILD, write

from vla_rl.cli import onejob
from vla_rl.cli.main import main
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
