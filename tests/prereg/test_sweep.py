"""`vla-rl sweep ID`: what is launched of the registered arms, and what their table tells before and after a read."""

import csv
import json
import os
import shutil
import subprocess
import sys

import pytest
from bench import DRAFT, TINY, Bench, prereg
from test_attacks import RUN, launched_by
from test_lint import arm, put, with_arms

from vla_rl import paths
from vla_rl.cli import sweep
from vla_rl.cli.main import main
from vla_rl.cli.onejob import read_job
from vla_rl.prereg.amendments import Effective
from vla_rl.prereg.document import arm_id, read_registration
from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.folder import Folder, Loaded
from vla_rl.prereg.process import Process
from vla_rl.prereg.state import State
from vla_rl.report import arms as tables
from vla_rl.stats.intervals import clopper_pearson

OF_ALL = ("--set", 'measurements[after].arm="*"', "--reason", "r", "--kind", "scientific", "--data-seen", "training")
SEEDS = DRAFT.replace("wall_h: 1.0", "wall_h: 9.0") + "levers: {run.seed: [1, 2]}\n"
FIRST, SECOND = (arm_id({"run.seed": seed}) for seed in (1, 2))


def told(capsys, *arguments):
    """Exit code and all that is said, as text."""
    capsys.readouterr()
    code = main(["sweep", "E1", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def written(bench):
    """`arms.csv` as rows, `arms.md` as text."""
    place = bench.root / "outputs/prereg/E1"
    return list(csv.DictReader((place / "arms.csv").open())), (place / "arms.md").read_text()


@pytest.fixture
def measured(launched):
    """A run that has come to its end, its outcomes measured of every arm; nothing is read."""
    assert prereg("amend", "E1", *OF_ALL) == 0
    launched.commit("Amend E1")
    return launched


# ---------------------------------------------------------------------------------------------------------- the table
def test_a_table_before_the_read_tells_how_it_ended_and_no_outcome(measured, capsys):
    before, hours = measured.ledger(), measured.ledger()[-2]["data"]["wall_h"]
    code, out, err = told(capsys, "--table", "--json")
    assert (code, err) == (0, "")
    row = {"arm": "baseline", "id": "baseline", "set": {}, "attempts": 1, "end": "finished", "hours": hours}
    assert json.loads(out) == {
        "id": "E1", "rung": "main", "arms": [{**row, "measured": {"after": None}}], "exit_codes": []
    }  # fmt: skip
    rows, text = written(measured)
    assert {key: value for key, value in rows[0].items() if value and key.startswith("after")} == {} and len(rows) == 1
    assert text.splitlines()[-1] == f"| baseline | 1 | finished | {hours:.3g} | sealed |  |"
    code, out, err = told(capsys, "--table")
    assert code == 0 and "sealed outcomes are opened by: vla-rl prereg read E1 READ" in out + err
    assert measured.ledger() == before


def test_a_table_before_the_read_is_made_without_the_files_of_the_run(measured, capsys):
    """So nothing in it can depend on what came out."""
    first = told(capsys, "--table"), told(capsys, "--table", "--json"), written(measured)
    shutil.rmtree(measured.root / RUN)
    assert (told(capsys, "--table"), told(capsys, "--table", "--json"), written(measured)) == first


def test_a_table_after_the_read_has_the_outcome_with_its_interval(measured, capsys):
    assert prereg("read", "E1", "progress") == 0
    evidence = json.loads((measured.folder() / "evidence/after.json").read_text())
    k = sum(episode["success"] for episode in evidence["episodes"])
    low, high = clopper_pearson(k, 6)
    code, out, _ = told(capsys, "--table", "--json")
    shown = {"successes": k, "trials": 6, "low": low, "high": high, "change": None}
    assert code == 0 and json.loads(out)["arms"][0]["measured"] == {"after": shown}
    rows, text = written(measured)
    assert (rows[0]["after_successes"], rows[0]["after_trials"], rows[0]["after_change_mean"]) == (str(k), "6", "")
    assert f"| {k}/6 [{100 * low:.0f}, {100 * high:.0f}] % |  |" in text and "sealed" not in text


def test_a_table_of_a_closed_registration_writes_nothing_into_it(judged, capsys):
    before = judged.ledger()
    code, out, _ = told(capsys, "--table", "--json")
    assert code == 0 and [row["end"] for row in json.loads(out)["arms"]] == ["finished"]
    assert judged.ledger() == before and prereg("verify", "E1") == 0


def of_arms(document):
    """A registration of three arms, all measured, nothing run."""
    first, second = arm(optim__lr=1.0), arm(optim__lr=2.0)
    document = with_arms(put(document, "measurements[after].arm", "*"), first, second)
    effective = Effective(document, read_registration(document, "r"))
    return Loaded((effective,), (), State()), first["id"], second["id"]


def episodes(arm, *successes, first=1):
    rows = tuple({"seed": first + i, "success": bool(success)} for i, success in enumerate(successes))
    return {("after", arm): Evidence("after", arm, "episodes", episodes=rows)}


def test_a_change_is_paired_by_seed_with_the_baseline_arm(sound):
    loaded, first, second = of_arms(sound)
    found = {**episodes(None, 1, 0, 0, 0), **episodes(first, 1, 1, 1, 0)}
    rows = tables.rows(loaded, "main", found)
    assert [row["end"] for row in rows] == ["not run"] * 3 and [row["id"] for row in rows][1:] == [first, second]
    baseline, changed, sealed = (row["measured"]["after"] for row in rows)
    assert sealed is None and (baseline["successes"], baseline["trials"], baseline["change"]) == (1, 4, None)
    assert (baseline["low"], baseline["high"]) == pytest.approx((0.0063, 0.8059), abs=1e-4)
    assert (changed["low"], changed["high"]) == pytest.approx((0.1941, 0.9937), abs=1e-4)
    # Two of four pairs are won; a resampled sum is Binomial(4, 1/2), and 0 and 4 come with 1/16 each, above 2.5 %.
    assert changed["change"] == {"mean": 0.5, "low": 0.0, "high": 1.0}
    lost = tables.rows(loaded, "main", {**episodes(None, 1, 1, 1, 1), **episodes(first, 0, 0, 0, 0)})[1]
    assert lost["measured"]["after"]["change"] == {"mean": -1.0, "low": -1.0, "high": -1.0}


def test_there_is_no_change_against_other_seeds_or_a_baseline_that_is_sealed(sound):
    loaded, first, _ = of_arms(sound)
    for found in ({}, episodes(None, 1, 0, first=2)):
        row = tables.rows(loaded, "main", {**found, **episodes(first, 1, 1)})[1]
        assert row["measured"]["after"]["successes"] == 2 and row["measured"]["after"]["change"] is None


# -------------------------------------------------------------------------------------------------------- the launches
@pytest.fixture
def planned(bench, capsys, monkeypatch):
    """Three arms; a sweep that plans its jobs and runs none: their commands, by arm."""
    monkeypatch.setattr(sweep, "run_jobs", lambda *arguments: None)
    bench.frozen("E1", SEEDS)

    def plan(*arguments):
        known = set(sweeps())
        told(capsys, *arguments)
        (new,) = set(sweeps()) - known
        jobs = [read_job(new, path.stem) for path in (new / "jobs").iterdir()]
        return {job["facts"]["arm"]: job["start"] for job in jobs}

    def sweeps():
        return [path for path in (bench.root / "outputs/prereg/E1/sweeps").glob("*") if path.is_dir()]

    plan.bench = bench
    return plan


def ended(bench, number, how):
    folder = Folder(bench.experiments, "E1")
    with folder.ledger.locked():
        data = {"attempt": number, "how": how, "exit_code": 0, "why": "", "wall_h": 0.0, "gpu_h": 0.0, "files": {},
                "step": 0, "policy_digest": None, "base_digest": None}  # fmt: skip
        folder.write("attempt_ended", data, effective=folder.load().effective)


def test_every_arm_without_a_run_is_launched_by_its_id(planned):
    launch = ["prereg", "launch", "E1", "--rung", "main", "--arm"]
    assert planned() == {
        "baseline": [*launch, "baseline"], "seed=1": [*launch, FIRST], "seed=2": [*launch, SECOND]
    }  # fmt: skip


def test_an_arm_that_has_its_run_is_left_alone_and_one_that_stopped_goes_on(planned):
    """Also one that ended before there was anything of its run."""
    for number, (name, how) in enumerate([("baseline", "finished"), (FIRST, "paused")], 1):
        launched_by(planned.bench, Process.own().body(), number, arm=name, run=f"outputs/prereg/E1/run{number}")
        ended(planned.bench, number, how)
    launch = ["prereg", "launch", "E1", "--rung", "main", "--arm"]
    assert planned() == {"seed=1": [*launch, FIRST, "--resume"], "seed=2": [*launch, SECOND]}


def test_arms_against_which_something_stands_are_refused_together(planned, capsys):
    bench = planned.bench
    launched_by(bench, Process.own().body(), arm=SECOND)
    before = bench.ledger()
    code, _, err = told(capsys)
    assert code == 4 and "1 thing stands against sweeping E1 (main)" in err
    assert "seed=2: this rung and arm is running" in err
    (bench.root / "src/pkg/code.py").write_text("VALUE = 2\n")
    code, _, err = told(capsys)
    assert code == 4 and "2 things stand against sweeping E1 (main)" in err
    assert "pkg is not what was frozen" in err and "seed=2: this rung and arm is running" in err
    assert bench.ledger() == before and not (bench.root / "outputs/prereg/E1/sweeps").exists()


@pytest.mark.parametrize("mode", [(), ("--table",)])
@pytest.mark.parametrize(
    "override", ["optim.lr=1e-3", "run.steps=2", "+x=1", "~reads", "hydra.sweep.dir=x", "hydra/job_logging=none"]
)
def test_no_value_is_typed_beside_those_that_are_registered(active, capsys, override, mode):
    before = active.ledger()
    code, out, err = told(capsys, override, *mode)
    assert code == 2 and f"{override!r} is not possible here" in err and "values come from the registration" in err
    assert active.ledger() == before and not (active.root / "outputs/prereg").exists()


@pytest.mark.parametrize("launcher", ["hydra/launcher=nothing", "hydra.launcher.nothing=1"])
def test_a_launcher_that_hydra_does_not_know_is_refused_before_anything_is_made(active, capsys, launcher):
    assert told(capsys, launcher)[0] == 2 and not (active.root / "outputs/prereg").exists()


# ------------------------------------------------------------------------------------------------------ from end to end
class Checkout(Bench):
    """A checkout of this very package: what is started in it, and what that starts, runs its code."""

    @classmethod
    def make(cls, root):
        made, ours = super().make(root), paths.PACKAGE.parent.parent
        shutil.copytree(paths.PACKAGE, root / "src/vla_rl", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ours / "pyproject.toml", root)
        made.commit("the package")
        return made

    def run(self, *arguments):
        """Exit code, stdout and stderr of a command."""
        environment = {name: value for name, value in os.environ.items() if name != "VLA_RL_EXPERIMENTS"}
        done = subprocess.run(
            [sys.executable, "-m", "vla_rl.cli.main", *arguments], cwd=self.root, capture_output=True, text=True,
            env={**environment, "PYTHONPATH": str(self.root / "src")},
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr


TWO = (
    DRAFT.replace("{id: after, policy: trained}", '{id: after, policy: trained, arm: "*"}')
    .replace("{kind: paired_bootstrap,", "{kind: cluster_bootstrap,")
    .replace("unit: episode", "unit: training_seed")
    + "levers: {run.seed: [1]}\n"
)


@pytest.mark.slow
@pytest.mark.skipif(paths.repo_root() is None, reason="a wheel is no checkout")
def test_a_sweep_runs_every_arm_once_and_its_table_opens_with_the_read(tmp_path):
    made = Checkout.make(tmp_path / "repo")
    made.draft(TWO)
    for command in (("freeze", "E1", *TINY), ("activate", "E1")):
        code, _, err = made.run("prereg", *command)
        assert code == 0, err
        made.commit(command[0])
    code, out, err = made.run("sweep", "E1", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["exit_codes"] == [0, 0], err
    assert [(row["arm"], row["attempts"], row["end"], row["measured"]) for row in answer["arms"]] == [
        ("baseline", 1, "finished", {"after": None}), ("seed=1", 1, "finished", {"after": None}),
    ]  # fmt: skip
    assert "seed=1 ended with 0" in err and "(2 of 2)" in err
    assert made.events().count("launched") == 2
    policies = {line["data"]["policy_digest"] for line in made.ledger() if line["event"] == "attempt_ended"}
    assert len(policies) == 2, "each arm trained with its own value"

    before = made.ledger()
    code, out, err = made.run("sweep", "E1", "--json")
    assert code == 0 and json.loads(out) == {**answer, "exit_codes": []} and "every arm has its run" in err
    assert made.ledger() == before and len(list((made.root / "outputs/prereg/E1/sweeps").iterdir())) == 1

    code, _, err = made.run("prereg", "read", "E1", "progress")
    assert code == 0, err
    code, out, err = made.run("sweep", "E1", "--table", "--json")
    baseline, other = (row["measured"]["after"] for row in json.loads(out)["arms"])
    assert code == 0 and baseline["trials"] == other["trials"] == 6 and baseline["change"] is None
    assert other["change"]["mean"] == pytest.approx((other["successes"] - baseline["successes"]) / 6)
    assert made.run("prereg", "verify", "E1")[0] == 0
