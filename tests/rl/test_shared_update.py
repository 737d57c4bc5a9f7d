"""Updates that two processes share under torchrun: those of one process, to 1e-10 in double precision."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from guarded_run import wave
from one_update import sampled_rows
from team_run import CASES, UPDATES, gradients_alone, updates
from test_trainer import evidence, finish, read
from toy_run import STEPS, toy_trainer

from vla_rl.errors import StoppedRun
from vla_rl.rl.team import Team

HERE = Path(__file__).parent
PATHS = [str(HERE.parents[1] / "src"), str(HERE), str(HERE.parent / "rollout")]


def torchrun(*arguments, processes=2):
    """Start the program of the tests and wait for it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, str(HERE / "team_run.py"), *map(str, arguments)],
        capture_output=True, text=True, timeout=300, env=env,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared")
    done = torchrun("compare", directory)
    assert done.returncode == 0, done.stderr
    return lambda name: torch.load(directory / f"{name}.pt", weights_only=False)


@pytest.fixture(scope="module")
def rows():
    return sampled_rows()


def assert_equal(found, expected):
    """Tensor by tensor, relative to the tensor's norm; what is zero but for rounding, relative to all of them."""
    assert found.keys() == expected.keys() and found
    whole = float(sum(value.double().square().sum() for value in expected.values()) ** 0.5)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        off = float((found[name].double() - value.double()).norm())
        assert off <= 1e-10 * max(float(value.double().norm()), 1e-6 * whole), (name, off)


@pytest.mark.parametrize("index", range(len(CASES)), ids=["-".join(map(str, case)) for case in CASES])
def test_the_gradient_of_two_processes_is_that_of_one(shared, rows, index):
    found, sums = shared(f"gradients_{index}")
    expected, alone = gradients_alone(rows, CASES[index])
    assert_equal(found, expected)
    assert (sums.stats.tokens, sums.stats.outside) == (alone.stats.tokens, alone.stats.outside)
    assert sums.loss == pytest.approx(alone.loss, abs=1e-6) and sums.entropy == pytest.approx(alone.entropy, rel=1e-6)
    assert sums.gap == pytest.approx(alone.gap, abs=1e-6)


@pytest.mark.parametrize("name", UPDATES)
def test_updates_of_two_processes_are_those_of_one_with_moments_undoing_and_going_back(shared, rows, name):
    found, expected = shared(name), updates(rows, name)
    assert found["tokens"] == expected["tokens"] and found["stopped"] and expected["stopped"]
    for moment in ("dry", "second", "third", "undone", "stopped", "restored"):
        assert_equal(found[f"{moment} weights"], expected[f"{moment} weights"])
        if moment != "dry":
            assert_equal(found[f"{moment} moments"], expected[f"{moment} moments"])
    assert not found["dry moments"]
    assert all(torch.equal(w, found["undone weights"][n]) for n, w in found["second weights"].items())
    assert all(torch.equal(w, found["stopped weights"][n]) for n, w in found["undone weights"].items())
    assert any(not torch.equal(w, found["third weights"][n]) for n, w in found["second weights"].items())
    for mine, alone in zip(found["results"], expected["results"], strict=True):
        assert mine.keys() == alone.keys() and mine["optimizer_steps"] == alone["optimizer_steps"] > 0
        assert (mine["rows"], mine["tokens"]) == (alone["rows"], alone["tokens"])
        for key in ("loss", "grad_norm", "rollout_gap", "anchor_k3", "entropy", "chosen_nll"):
            assert mine[key] == (None if alone[key] is None else pytest.approx(alone[key], rel=1e-5, abs=1e-6)), key
        assert mine["ratios"] == pytest.approx(alone["ratios"], rel=1e-5, abs=1e-6)
    assert found["told"] == expected["told"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two processes that nothing disturbed."""
    path = tmp_path_factory.mktemp("whole") / "run"
    done = torchrun("train", path, STEPS, "never")
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The same, whose second process was killed in the middle of the second update."""
    path = tmp_path_factory.mktemp("killed") / "run"
    return path, torchrun("train", path, STEPS, "1:6")


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_with_its_name_and_the_remedy(killed):
    path, done = killed
    assert done.returncode != 0 and "Traceback" not in done.stderr.partition("torch/distributed")[0]
    assert re.search(r"rank 1 \(process \d+\) of the 2 that share the update has ended", done.stderr)
    assert "run.resume" in done.stderr
    assert [row["step"] for row in read(path, "train.jsonl")] == [1]
    assert sorted(os.listdir(path / "checkpoints")) == ["step_0001"] and wave(path, 2)


@pytest.mark.slow
def test_after_a_killed_rank_the_resumed_run_ends_in_the_same_bytes(killed, whole, tmp_path):
    path = shutil.copytree(killed[0], tmp_path / "run")
    done = torchrun("train", path, STEPS, "never")
    assert done.returncode == 0, done.stderr
    assert evidence(path) == evidence(whole)


@pytest.mark.slow
def test_what_two_processes_began_one_goes_on_with(killed, whole, tmp_path):
    path = shutil.copytree(killed[0], tmp_path / "run")
    finish(toy_trainer(path, steps=2))
    assert_same_step(path, whole, 2)


@pytest.mark.slow
def test_what_one_process_began_two_go_on_with(whole, tmp_path):
    path = tmp_path / "run"
    finish(toy_trainer(path, steps=1))
    alone = shutil.copytree(path, tmp_path / "alone")
    done = torchrun("train", path, 2, "never")
    assert done.returncode == 0, done.stderr
    finish(toy_trainer(alone, steps=2))
    assert_same_step(path, alone, 2)
    assert_same_step(path, whole, 1)


def assert_same_step(path, other, step):
    """The same episodes were played, and the update was the same to single precision."""
    mine, theirs = (next(row for row in read(p, "train.jsonl") if row["step"] == step) for p in (path, other))
    for key in ("episodes", "reward_mean", "rows", "tokens", "groups_kept"):
        assert mine[key] == theirs[key], key
    assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    assert mine["update_kl"] == pytest.approx(theirs["update_kl"], rel=1e-2) and mine["update_kl"] > 0
    assert not mine["step_skipped"]


HELPER = """
import sys
from vla_rl.rl.team import Team
team = Team()
print("here", flush=True)
assert team.published()[1] == "cpu"
while (command := team.receive())[0] != "end":
    print(command[0], flush=True)
"""


@pytest.fixture
def team_of_two(monkeypatch):
    """This process as a leader, and a helper that does nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    env = {**os.environ, "RANK": "1", "PYTHONPATH": os.pathsep.join(PATHS)}
    with subprocess.Popen([sys.executable, "-c", HELPER], env=env, stdout=subprocess.PIPE, text=True) as helper:
        try:
            team = Team()
            assert helper.stdout.readline() == "here\n"
            yield team, helper
        finally:
            helper.kill()


@pytest.mark.parametrize("end", [StoppedRun("a wire"), KeyboardInterrupt(), ValueError("a bug")], ids=repr)
def test_helpers_end_when_the_leader_does_however_it_ends(team_of_two, end):
    team, helper = team_of_two
    team.publish({}, "cpu", 1.0)
    with pytest.raises(type(end)), team.led():
        team.send("something")
        assert helper.stdout.readline() == "something\n"
        raise end
    assert helper.wait(timeout=20) == 0


def test_a_run_of_one_process_imports_nothing_of_it():
    code = (
        "import sys, vla_rl.rl.trainer, vla_rl.cli.train;"
        "print([m for m in ('team', 'student', 'sharedlearner') if f'vla_rl.rl.{m}' in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"
