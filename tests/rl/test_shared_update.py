"""Updates that two processes share under torchrun: those of one process, to 1e-10 in double precision."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from one_update import sampled_rows
from team_run import CASES, UPDATES, gradients_alone, updates

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
