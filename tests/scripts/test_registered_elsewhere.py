"""A frozen experiment on a machine of its own: from a copy without history to a verdict that is taken over."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = (
    "experiment=quickstart run.steps=1 geometry.seeds=2 geometry.draws=2 sim.max_ticks=90 eval.seeds=300-301 "
    "eval.slots=2 sampler.batch_rows=4 pool=serial run.device=cpu run.threads=1"
).split()
DRAFT = """\
title: A tiny one
author: Ada
summary: |
  Does one step change anything?
claim:
  hypothesis: One step moves the boat farther.
  direction: increase
  smallest_effect: 0.5
  unit: training_seed
  population: boat to disk
  head: ar
  protocol: sim100b
  look: plain
  data_seen: nothing
arms:
  - {label: seed1, set: {run.seed: 1}}
measurements:
  - {id: before, policy: base, played_by: read, seeds: 10990-10991, temperature: 0.0}
  - {id: after, policy: trained, played_by: read, seeds: 10990-10991, temperature: 0.0, arm: "*"}
  - {id: after0, policy: trained, played_by: read, seeds: 10990-10991, temperature: 0.0}
reads:
  - id: progress
    role: primary
    question: Does the boat end nearer?
    rule:
      kind: cluster_bootstrap
      before: before
      after: after
      metric: progress_final_cm
      after_arms: [baseline, seed1]
budget: {wall_h: 1.0, expected: {main: {wall_h: 0.1}}}
"""
SETTLED = """\
  - id: anchor
    role: record
    question: How far does the base bring the boat?
    rule: {kind: record, measurement: before, metric: progress_final_cm, statistic: mean}
  - id: less
    role: secondary
    question: Does any scene end below that?
    rule:
      {kind: threshold, measurement: after0, metric: progress_final_cm, statistic: min, comparator: below, line: anchor}
constants: {anchor: null}
deferred:
  - {id: anchor, read: anchor, by: main}
"""  # a constant that is read before anything is launched


def run(place: Path, *command: str, code: int = 0) -> str:
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(place / "src")}
    done = subprocess.run(
        command, cwd=place, env={**environment, "PYTHON": sys.executable, "HOME": str(place)}, text=True,
        capture_output=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def vla_rl(place: Path, *arguments: str) -> str:
    return run(place, sys.executable, "-m", "vla_rl.cli.main", *arguments)


def frozen(tmp_path: Path, draft: str) -> Path:
    """A checkout with a frozen E9."""
    here = tmp_path / "here"
    run(tmp_path, "git", "clone", "-q", str(ROOT), str(here))
    for key in ("user.name", "user.email"):
        run(here, "git", "config", key, "ada@localhost")
    (here / "experiments/E9").mkdir()
    (here / "experiments/E9/draft.yaml").write_text(draft)
    vla_rl(here, "prereg", "freeze", "E9", *TINY)
    run(here, "git", "add", "experiments/E9")
    run(here, "git", "commit", "-qm", "Freeze E9")
    return here


def copied(here: Path, there: Path) -> Path:
    """What is committed, without history."""
    run(here, "git", "archive", "-o", f"{there}.tar", "HEAD")
    with tarfile.open(f"{there}.tar") as copy:
        copy.extractall(there, filter="data")
    return there


LAUNCHED_ELSEWHERE = """
from pathlib import Path
from vla_rl.prereg.folder import Folder

folder = Folder(Path("experiments"), "E9")
last = folder.ledger.read()[-1]
data = {
    "attempt": 1, "rung": "main", "arm": "baseline", "run": "outputs/prereg/E9/main-baseline/attempt_01",
    "resume": False, "exploratory": False, "set": {}, "on_gpu": False, "gpus": 0,
    "process": {"node": "elsewhere", "boot": "another", "pid": 7, "started": 7},
}
folder.ledger.append("launched", data, registration=last.registration, config=last.config)
"""


@pytest.mark.slow  # a clone and some ten programs
def test_a_second_machine_pins_itself_and_says_that_training_was_seen(tmp_path):
    """The first one was lost with what it had launched, and the code has changed since."""
    there, script = copied(frozen(tmp_path, DRAFT), tmp_path / "there"), "scripts/registered_elsewhere.sh"
    command = (script, "E9", str(tmp_path / "results"), "hydra/launcher=nothing")
    run(there, *command, code=2)
    run(there, sys.executable, "-c", LAUNCHED_ELSEWHERE)
    vla_rl(there, "prereg", "lost", "E9", "1", "--hours", "0.01", "--reason", "the machine was taken away")
    with open(there / "src/vla_rl/seeds.py", "a") as source:
        source.write("# changed since\n")
    run(there, *command, code=2)
    (made,) = (there / "experiments/E9/amendments").iterdir()
    text = made.read_text()
    assert all(told in text for told in ("data_seen: training\n", "kind: operational\n", "pins.code.package_tree\n"))
    assert "E9: ok" in vla_rl(there, "prereg", "verify", "E9")


@pytest.mark.slow  # two runs, three evaluations and half a dozen programs
def test_a_frozen_experiment_runs_whole_without_history_and_is_taken_over(tmp_path):
    here, unpacked = frozen(tmp_path, DRAFT.replace("budget:", SETTLED + "budget:")), tmp_path / "unpacked"
    there = copied(here, tmp_path / "there")

    script = "scripts/registered_elsewhere.sh"
    assert "without hydra/launcher jobs run one after the other" in run(
        there, script, "E9", str(tmp_path / "results"), "hydra/launcher=nothing", code=2
    )
    assert (tmp_path / "results/E9.tar.gz").is_file()  # also of one that failed
    for _ in range(2):  # the second time everything is done
        assert "wrote" in run(there, script, "E9", str(tmp_path / "results"))
    with tarfile.open(tmp_path / "results/E9.tar.gz") as results:
        results.extractall(unpacked, filter="data")
    assert list(unpacked.glob("outputs/prereg/E9/main-*/attempt_*/train.jsonl"))

    assert "E9 is COMPLETE" in vla_rl(here, "prereg", "import", "E9", "--from", str(unpacked / "experiments/E9"))
    assert "E9: ok" in vla_rl(here, "prereg", "verify", "E9")
    settled = [path.read_text() for path in sorted((here / "experiments/E9/amendments").iterdir())]
    assert sum("settles: anchor\n" in text for text in settled) == 1  # before the runs that were held against it
