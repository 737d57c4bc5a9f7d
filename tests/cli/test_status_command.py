"""`vla-rl status` over real runs: one that works, one that is killed, one that has ended."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from vla_rl.cli.main import main
from vla_rl.prereg import watch
from vla_rl.prereg.process import Process
from vla_rl.prereg.watch import Probe, WatchGates

SMALL = (
    "experiment=quickstart geometry.seeds=1 geometry.draws=2 run.steps=1 eval.seeds=300,301 eval.slots=2 "
    "sim.max_ticks=30 pool=serial run.device=cpu run.threads=1"
).split()
GONE = dataclasses.replace(Process.own(), started=1)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def status(capsys, *arguments):
    code = main(["status", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_an_empty_list_says_why(capsys):
    assert main(["status"]) == 0 and "none has been started" in capsys.readouterr().err
    entry = watch.open(watch.Path("runs/one"))
    watch.close(entry, exit_code=3, how="tripped after step 2")
    assert main(["status"]) == 0
    assert (
        "the last one, one, ended at" in (said := capsys.readouterr().err)
        and "tripped after step 2 (exit code 3)" in said
    )


def test_the_exit_code_tells_death_and_crossed_limits(capsys, here):
    watch.open(here / "fine")
    assert status(capsys)[0] == 0
    watch.open(here / "dead", process=GONE)
    code, told = status(capsys)
    assert code == 1 and sorted(run["state"] for run in told["runs"]) == ["dead", "live"]
    assert status(capsys, "fine")[0] == 0 and status(capsys, str(here / "dead"))[0] == 1
    watch.open(here / "late", gates=WatchGates(probe=Probe("reward_mean", 0.0, 0)))
    assert status(capsys)[0] == 3 and status(capsys, "late")[1]["runs"][0]["crossed"] == ["probe"]
    assert main(["status"]) == 3 and "CROSSED probe" in capsys.readouterr().err.replace("\n", " ")


def test_a_dead_run_can_be_taken_off_the_list_and_a_live_one_cannot(capsys, here):
    watch.open(here / "fine")
    watch.open(here / "dead", process=GONE)
    assert main(["status", "--forget", "fine"]) == 2 and "alive" in capsys.readouterr().err
    assert main(["status", "--forget", "dead"]) == 0
    assert [entry.run for entry in watch.entries()] == ["fine"] and watch.last()["run"] == "dead"
    assert main(["status", "nobody"]) == 2 and "no such run" in capsys.readouterr().err


def test_it_needs_neither_torch_nor_mujoco():
    code = (
        "import sys; from vla_rl.cli.main import main; main(['status']); "
        "print([m for m in ('torch', 'mujoco', 'hydra', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_training_run_is_on_the_list_while_it_works(capsys, here):
    command = [sys.executable, "-m", "vla_rl.cli.main", "train", *SMALL, "run.steps=50", f"run.dir={here / 'run'}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(600):
        if (here / "run" / "heartbeat.json").exists() and watch.entries():
            break
        time.sleep(0.1)
    code, told = status(capsys)
    assert code == 0 and [(run["entry"]["run"], run["state"]) for run in told["runs"]] == [("run", "live")]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    code, told = status(capsys)
    assert code == 1 and told["runs"][0]["state"] == "dead"
    resumed = [sys.executable, "-m", "vla_rl.cli.main", "train", f"run.resume={here / 'run'}", "run.max_wall_s=0"]
    assert subprocess.run(resumed, capture_output=True).returncode == 0
    code, told = status(capsys)
    assert code == 0 and told["runs"] == [] and told["last_ended"]["how"].startswith("stopped at step")


def test_how_a_run_ended_is_kept(capsys, here):
    assert main(["train", *SMALL, "run.steps=0", f"run.dir={here / 'run'}", "--json"]) == 0
    capsys.readouterr()
    assert main(["train", *SMALL, "budget.env_ticks=1", f"run.dir={here / 'second'}"]) == 3
    assert watch.entries() == []
    last = watch.last()
    assert (last["run"], last["exit_code"], last["how"]) == ("second", 3, "tripped at step 1")
