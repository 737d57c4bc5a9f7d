"""Sampler, pool, reward, loss and evaluator of a run come from a package outside the repository, from its wheel."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vla_rl.rl.checkpoint import load_checkpoint
from vla_rl.rollout import store

pytestmark = pytest.mark.slow
SOURCE = Path(__file__).with_name("four_plugins")
RUN = (
    "experiment=quickstart geometry.seeds=1 geometry.draws=2 run.steps=1 eval.slots=2 sim.max_ticks=30 run.device=cpu "
    "checkpoint.keep_rows=true sampler=shifted pool=named reward=alternating token_loss=reinforce evaluator=digest "
    "plugins=[four_plugins] run.dir=run"
).split()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a run with the plug-ins; the package is imported from its wheel."""
    place = tmp_path_factory.mktemp("plugins")
    shutil.copytree(SOURCE, place / "source")
    pip = "pip install --quiet --no-index --no-deps --no-build-isolation --target site ./source".split()
    subprocess.run([sys.executable, "-m", *pip], check=True, cwd=place)
    shutil.rmtree(place / "source")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place / "site"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "vla_rl.cli.main", "train", *RUN]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place, env=environment)
    assert done.returncode == 0, done.stderr
    return place / "run"


def rows(run, name):
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]


def test_the_sampler_s_random_keys_are_the_plug_in_s(run):
    stored = [row for _, episode in store.read_wave(store.wave_dir(run, 1)) for row in episode]
    assert stored and {row.rng_key[0] for row in stored} == {1000}


def test_the_pool_s_word_is_in_the_manifest(run):
    assert json.loads((run / "manifest.json").read_text())["launches"][0]["scene"]["pool"] == "quiet pond"


def test_the_reward_s_terms_are_in_the_rows(run):
    assert [(row["reward_turn"], row["advantage"]) for row in rows(run, "episodes")] == [(3.0, 1.0), (0.0, -1.0)]


def test_the_loss_is_the_plug_in_s(run):
    (first, a), (second, b) = store.read_wave(store.wave_dir(run, 1))
    logp = [sum(float(row.logp.sum()) for row in episode) for episode in (a, b)]
    assert (first.spec.draw, second.spec.draw) == (0, 1)
    by_hand = -(logp[0] / first.tokens - logp[1] / second.tokens) / 2  # every episode weighs the same in the quickstart
    assert rows(run, "train")[0]["loss"] == pytest.approx(by_hand, abs=1e-5)


def test_the_evaluator_s_rows_say_that_the_weights_moved(run):
    before, after = rows(run, "eval")
    assert before["step"] == 0 and before["digest"] == (run / "base_policy.sha256").read_text().strip()
    assert after["step"] == 1 and after["digest"] != before["digest"]
    assert after["digest"] == load_checkpoint(run / "checkpoints" / "step_0001").state["policy_digest"]
