"""`vla-rl train -m` as a user meets it: real jobs in processes of their own, some of which fail."""

import csv
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from vla_rl.cli import manyjobs, onejob
from vla_rl.cli.jobs import check_launcher, job_task, plan_jobs, run_jobs
from vla_rl.cli.main import main
from vla_rl.cli.onejob import Job, job_file, log_tail, read_job, replan
from vla_rl.errors import UsageError
from vla_rl.paths import bundled_base
from vla_rl.prereg.process import Process

SMALL = (
    "experiment=quickstart geometry.seeds=1 geometry.draws=2 run.steps=0 eval.seeds=300,301 eval.slots=2 "
    "sim.max_ticks=30 pool=serial run.device=cpu run.threads=1"
).split()
LIGHT = ("compare", "--help")  # a command that ends well within a second
WRONG = ("eval", "eval.seeds=x", "--json")  # one that ends with 2


def vla_rl(*arguments, **kwargs):
    command = [sys.executable, "-m", "vla_rl.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, **kwargs)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Four jobs: the base of two of them is not there, one is over its budget before it begins, one is fine."""
    place = tmp_path_factory.mktemp("sweeps")
    bases = f"policy.checkpoint={place / 'base'},bundled:tiny_start"
    arguments = [*SMALL, "run.steps=1", bases, "budget.env_ticks=1,null", f"run.dir={place / 'sweep'}"]
    return place, vla_rl("train", "-m", *arguments, "--json")


@pytest.mark.slow
def test_a_failed_job_is_shown_at_once_and_stops_no_other(swept):
    place, done = swept
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    record = json.loads(done.stdout)
    assert [row["exit_code"] for row in record["rows"]] == [2, 2, 3, 0]
    assert record == json.loads((place / "sweep" / "sweep.json").read_text())
    failed, later = done.stderr.index("job 00 failed (2)"), done.stderr.index("job 03 started")
    assert failed < done.stderr.index("  | ") < later and str(place / "base") in done.stderr[failed:later]
    assert "job 03 started: policy.checkpoint=bundled:tiny_start budget.env_ticks=null" in done.stderr
    assert f"go on with: vla-rl train -m run.resume={place / 'sweep'}" in done.stderr


@pytest.mark.slow
def test_every_job_has_a_directory_a_log_and_a_file_of_its_own(swept):
    place, _ = swept
    sweep = place / "sweep"
    names = [f"sweep-{number:02}" for number in range(4)]
    assert [(sweep / name).exists() for name in names] == [False, False, True, True]  # a refused launch leaves none
    for number in range(4):
        job = read_job(sweep, f"{number:02}")
        assert job["state"] == "ended" and job["attempts"] == 1 and job["seconds"] > 0
        assert job["facts"]["overrides"][0] == "experiment=quickstart"
    assert "the budget of environment ticks is spent" in (sweep / "jobs" / "02.log").read_text()
    assert read_job(sweep, "03")["summary"]["run_dir"] == str(sweep / "sweep-03")
    assert not list(sweep.rglob(".hydra")) and not list(sweep.rglob("*.pkl"))


@pytest.mark.slow
def test_the_summary_has_a_line_a_job_with_what_is_known_of_it(swept):
    place, done = swept
    lines = list(csv.DictReader((place / "sweep" / "summary.csv").read_text().splitlines()))
    assert [line["budget.env_ticks"] for line in lines] == ["1", "null", "1", "null"]
    assert [line["before_trials"] for line in lines] == ["", "", "2", "2"]
    assert [line["after_trials"] for line in lines] == ["", "", "", "2"]
    assert lines[3]["change_mean"] == "0.0" and lines[3]["steps"] == "1" and lines[3]["run_dir"].endswith("sweep-03")
    text = (place / "sweep" / "summary.md").read_text()
    assert "| 02 |" in text and "stopped itself (3)" in text
    assert "stopped itself" in done.stderr


@pytest.mark.slow
def test_a_directory_that_is_in_use_is_refused(swept):
    place, _ = swept
    before = (place / "sweep" / "sweep.json").read_bytes()
    again = vla_rl("train", "-m", *SMALL, f"run.dir={place / 'sweep'}")
    assert again.returncode == 2 and "not empty" in again.stderr
    assert (place / "sweep" / "sweep.json").read_bytes() == before


@pytest.mark.slow
def test_a_multirun_goes_on_with_the_jobs_that_are_not_done(swept, tmp_path):
    place, _ = swept
    shutil.copytree(bundled_base("tiny_start"), place / "base")
    ended = read_job(place / "sweep", "03")["ended_utc"]
    done = vla_rl("train", "-m", f"run.resume={place / 'sweep'}", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [row["exit_code"] for row in rows] == [3, 0, 3, 0] and done.returncode == 3, done.stderr
    assert [read_job(place / "sweep", row["job"])["attempts"] for row in rows] == [2, 2, 1, 1]
    assert read_job(place / "sweep", "03")["ended_utc"] == ended
    for wrong in (["optim.lr=1"], ["hydra/launcher=basic"]):
        assert vla_rl("train", "-m", f"run.resume={place / 'sweep'}", *wrong).returncode == 2
    assert vla_rl("train", "-m", f"run.resume={tmp_path}").returncode == 2


@pytest.mark.slow
def test_a_run_of_another_configuration_than_planned_is_no_success(swept, tmp_path):
    sweep = Path(shutil.copytree(swept[0] / "sweep", tmp_path / "sweep"))
    row = manyjobs.job_row(sweep, "03", ["budget.env_ticks"])
    assert row["fault"] is None and manyjobs.exit_code([row]) == 0
    body = read_job(sweep, "03")
    body["facts"]["config_digest"] = "0" * 64  # what the job was to play, when conf/ was another
    job_file(sweep, "03").write_text(json.dumps(body))
    row = manyjobs.job_row(sweep, "03", [])
    assert "conf/ has changed" in row["fault"] and manyjobs.exit_code([row]) == 1


def test_the_exit_code_says_whether_all_is_well_or_jobs_stopped_themselves():
    ended = {"state": "ended", "fault": None}
    codes = {(0, 0): 0, (0, 3): 3, (3, 3): 3, (3, 2): 1, (0, -9): 1, (0, 5): 1}
    for pair, expected in codes.items():
        assert manyjobs.exit_code([ended | {"exit_code": code} for code in pair]) == expected, pair
    assert manyjobs.exit_code([{"state": "planned", "exit_code": None, "fault": None}]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["surface=full,lora", "surface.rank=4"], "job 0 (surface=full)"),
        (["run.steps=1,2", "optim.lr=1e-3,x"], "job 1 (run.steps=1 optim.lr=x)"),
        (["eval.seeds='300','200000-200003'", "run.steps=1"], "job 1 (eval.seeds=200000-200003)"),
        (["hydra.sweep.dir=elsewhere"], "hydra.sweep.dir is not for the command line"),
        (["hydra/launcher=nosuch"], "this launcher is not installed"),
        (["hydra.launcher.n_jobs=2"], "cannot be set up"),
        (["run.dir=a,b"], "run.dir takes one value"),
        (["run.resume=a,b"], "there is no multirun here"),
        (["run.seed=1,2", "reward=v9"], "no option 'v9'"),
    ],
)
def test_what_one_job_cannot_do_is_refused_before_any_starts(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "-m", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_job_that_fails_is_shown_before_the_next_one_starts_and_counted(tmp_path, capsys):
    jobs = [Job(f"{i:02}", argv, facts={"values": {"x": str(i)}}) for i, argv in enumerate((WRONG, LIGHT))]
    manyjobs.write_record(tmp_path / "sweep", jobs, swept=["x"], launcher=[], title="Jobs", go_on="again")
    assert main(["train", "-m", f"run.resume={tmp_path / 'sweep'}", "--json"]) == 1
    told = capsys.readouterr()
    assert [row["exit_code"] for row in json.loads(told.out)["rows"]] == [2, 0]
    assert told.err.index("job 00 failed (2)") < told.err.index("  | ") < told.err.index("job 01 ")
    assert [line.split(",")[:4] for line in (tmp_path / "sweep" / "summary.csv").read_text().splitlines()[1:]] == [
        ["00", "0", "ended", "2"], ["01", "1", "ended", "0"],
    ]  # fmt: skip


@pytest.mark.slow
def test_jobs_that_fail_are_counted_and_tabled(tmp_path, capsys):
    given = [*SMALL, f"policy.checkpoint={tmp_path / 'a'},{tmp_path / 'b'}", f"run.dir={tmp_path / 'sweep'}"]
    assert main(["train", "-m", *given, "--json"]) == 1
    told = capsys.readouterr()
    assert [row["exit_code"] for row in json.loads(told.out)["rows"]] == [2, 2]
    for name in "ab":
        assert f"started: policy.checkpoint={tmp_path / name}" in told.err
    assert told.err.index("job 00 failed (2)") < told.err.index("  | ") < told.err.index("job 01 ")
    lines = (tmp_path / "sweep" / "summary.csv").read_text().splitlines()
    assert len(lines) == 3 and lines[1].startswith(f"00,{tmp_path / 'a'},ended,2,")


def test_several_values_without_m_point_to_it(capsys):
    assert main(["train", "optim.lr=1e-3,1e-4"]) == 2
    assert "vla-rl train -m" in capsys.readouterr().err


def test_hydra_leaves_handlers_arguments_and_a_host_alone(tmp_path):
    handlers, argv = list(logging.getLogger().handlers), list(sys.argv)
    told = []
    plan_jobs(tmp_path, [Job("a", LIGHT), Job("b-1", WRONG), Job("03", LIGHT)])
    run_jobs(tmp_path, ["a", "b-1", "03"], [], lambda job: told.append((job["name"], job["state"], job["exit_code"])))
    assert [entry for entry in told if entry[1] == "ended"] == [
        ("a", "ended", 0),
        ("b-1", "ended", 2),
        ("03", "ended", 0),
    ]
    assert "no seed" in log_tail(tmp_path, "b-1", 3)
    assert logging.getLogger().handlers == handlers and sys.argv == argv
    assert not GlobalHydra.instance().is_initialized()


def test_names_and_paths_reach_a_job_as_they_are(tmp_path):
    odd = tmp_path / "it's, [odd] = x"
    odd.mkdir()
    plan_jobs(odd, [Job("0123", LIGHT), Job("12e3", LIGHT)])
    run_jobs(odd, ["0123", "12e3"], [], lambda job: None)
    assert [read_job(odd, name)["exit_code"] for name in ("0123", "12e3")] == [0, 0]


def test_a_multirun_with_nothing_left_to_do_starts_nothing_and_tells_its_table_again(tmp_path, capsys):
    jobs = [Job("00", LIGHT, facts={"values": {"x": "1"}}), Job("01", LIGHT, facts={"values": {"x": "2"}})]
    manyjobs.write_record(tmp_path / "sweep", jobs, swept=["x"], launcher=[], title="Light jobs", go_on="again")
    resume = ["train", "-m", f"run.resume={tmp_path / 'sweep'}", "--json"]
    assert [main(resume), main(resume)] == [0, 0]
    told = capsys.readouterr()
    assert "2 jobs to run" in told.err and "0 jobs to run" in told.err and "Traceback" not in told.err
    assert [read_job(tmp_path / "sweep", name)["attempts"] for name in ("00", "01")] == [1, 1]
    assert (tmp_path / "sweep" / "summary.md").read_text().startswith("Light jobs\n\n| job | x |")


def test_a_job_is_planned_once_and_its_name_is_one_for_a_file(tmp_path):
    plan_jobs(tmp_path, [Job("a", LIGHT)])
    for job in (Job("a", LIGHT), Job("a b", LIGHT), Job("../a", LIGHT)):
        with pytest.raises(UsageError):
            plan_jobs(tmp_path, [job])


def test_a_job_has_the_thread_limits_of_the_command_and_further_arguments_of_its_attempt(tmp_path, monkeypatch):
    class Node:
        directory, job, threads = str(tmp_path), "a", {"MKL_NUM_THREADS": "3"}

    seen, real = [], subprocess.Popen
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **kwargs: seen.append((args, kwargs)) or real(*args, **kwargs)
    )
    plan_jobs(tmp_path, [Job("a", ("compare",))])
    replan(tmp_path, "a", ["--help"])
    job_task(Node)
    ((command,), kwargs) = seen[0]
    assert command[-2:] == ["compare", "--help"] and read_job(tmp_path, "a")["exit_code"] == 0
    assert kwargs["env"]["MKL_NUM_THREADS"] == "3" and "OMP_NUM_THREADS" not in kwargs["env"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_job_under_way_and_starts_no_other(tmp_path, monkeypatch, capsys, number):
    """A job that would sleep for minutes."""
    monkeypatch.setattr(onejob, "_python", lambda: [sys.executable, "-c", "import time; time.sleep(300)"])
    sweep, seen = tmp_path / "sweep", []
    jobs = [Job(name, LIGHT, facts={"values": {"x": name}}) for name in ("00", "01")]
    manyjobs.write_record(sweep, jobs, swept=["x"], launcher=[], title="Light jobs", go_on="come back")

    def send():
        while not (job_file(sweep, "00").exists() and (process := read_job(sweep, "00")["process"])):
            time.sleep(0.02)
        seen.append(Process.of_body(process))
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert main(["train", "-m", f"run.resume={sweep}"]) == 130
    sender.join()
    told = capsys.readouterr().err
    assert "come back" in told and "Traceback" not in told and not seen[0].alive()
    assert [read_job(sweep, name)["state"] for name in ("00", "01")] == ["interrupted", "planned"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_an_interrupt_ends_the_job_under_way_starts_no_other_and_says_how_to_go_on(tmp_path, number):
    interrupted(tmp_path / "sweep", number)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_in_its_own_directory(tmp_path):
    sweep = tmp_path / "sweep"
    interrupted(sweep, signal.SIGINT)
    done = vla_rl("train", "-m", f"run.resume={sweep}", "budget.wall_h=8")
    assert done.returncode == 0, done.stderr
    assert [read_job(sweep, name)["attempts"] for name in ("00", "01")] == [2, 1]
    launches = [
        json.loads((sweep / f"sweep-{name}" / "manifest.json").read_text())["launches"] for name in ("00", "01")
    ]
    assert list(map(len, launches)) == [2, 1]
    assert all(entry[-1]["argv"][-1] == "budget.wall_h=8" for entry in launches)


def interrupted(sweep, number):
    """A multirun of two jobs that a signal ends in its first one."""
    command = [sys.executable, "-m", "vla_rl.cli.main", "train", "-m", *SMALL, "run.seed=0,1", f"run.dir={sweep}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    child = working(sweep, "00")
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert not child.alive() and "Traceback" not in said
    assert [read_job(sweep, name)["state"] for name in ("00", "01")] == ["interrupted", "planned"]
    assert f"go on with: vla-rl train -m run.resume={sweep}" in said and "not run" in said


def working(sweep, name):
    """The process of a job, when its log shows that it has come to its own work."""
    for _ in range(600):
        if job_file(sweep, name).exists() and (process := read_job(sweep, name)["process"]):
            if "run directory" in log_tail(sweep, name, 5):
                return Process.of_body(process)
        time.sleep(0.1)
    raise AssertionError("the job has not started")


def test_jobs_of_joblib_run_side_by_side_in_processes_of_their_own(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    plan_jobs(tmp_path, [Job(name, LIGHT) for name in "abc"] + [Job("d", WRONG)])
    run_jobs(tmp_path, list("abcd"), ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], lambda job: None)
    assert [read_job(tmp_path, name)["exit_code"] for name in "abcd"] == [0, 0, 0, 2]
    check_launcher(["hydra/launcher=joblib"])
