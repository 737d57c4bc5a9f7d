"""`policy=lerobot` as a user meets it where LeRobot is not installed; with it, see `make test-lerobot`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from vla_rl.cli.sampling import sampler_of
from vla_rl.config.compose import compose
from vla_rl.policy.heads import LEROBOT
from vla_rl.policy.lerobot import LeRobotSampler


def vla_rl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vla_rl.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


@pytest.mark.skipif(importlib.util.find_spec("lerobot") is not None, reason="LeRobot is installed")
def test_without_lerobot_an_evaluation_ends_with_the_remedy_and_leaves_nothing(tmp_path: Path) -> None:
    done = vla_rl("eval", "policy=lerobot", "policy.checkpoint=DIR", "eval.seeds=300", f"run.dir={tmp_path / 'run'}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "needs the package lerobot" in done.stderr and "pip install 'vla-rl[lerobot]'" in done.stderr
    assert not (tmp_path / "run").exists()


def test_training_on_one_is_refused(tmp_path: Path) -> None:
    done = vla_rl("train", "policy=lerobot", "policy.checkpoint=DIR", f"run.dir={tmp_path / 'run'}")
    assert done.returncode == 2 and "can be evaluated, nothing else" in done.stderr


def test_a_checkpoint_must_be_named() -> None:
    done = vla_rl("eval", "policy=lerobot", "eval.seeds=300")
    assert done.returncode == 2 and "policy.checkpoint" in done.stderr


def test_the_token_samplers_default_stands_for_one_that_knows_no_tokens() -> None:
    reader = compose("eval", ["policy=lerobot", "policy.checkpoint=DIR"])
    assert isinstance(sampler_of(reader, object(), LEROBOT, run_seed=0), LeRobotSampler)
