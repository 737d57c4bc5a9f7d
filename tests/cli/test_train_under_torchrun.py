"""`vla-rl train` with its updates shared by two processes, as a user starts and resumes it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from vla_rl.cli.main import main
from vla_rl.prereg.process import Process

TINY_RUN = (
    "experiment=quickstart geometry.seeds=2 geometry.draws=2 run.steps=3 eval.seeds=300 eval.slots=4 "
    "sampler.batch_rows=4 sim.max_ticks=60 pool.workers=1 run.device=cpu run.threads=1"
).split()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def start(*arguments):
    command = [*TORCHRUN, "-m", "vla_rl.cli.main", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(path, name):
    return [json.loads(line) for line in (path / name).read_text().splitlines()] if (path / name).exists() else []


def rank_of(pid):
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((int(each[5:]) for each in variables if each.startswith(b"RANK=")), None)


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_run_whose_helper_is_killed_names_it_and_goes_on_alone(tmp_path):
    path = tmp_path / "run"
    with start(*TINY_RUN, "distributed=fsdp2", f"run.dir={path}") as torchrun:
        until = time.monotonic() + 200
        while not lines(path, "train.jsonl"):
            assert torchrun.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        leader, helper = sorted(children(torchrun.pid), key=rank_of)
        os.kill(helper, signal.SIGKILL)
        told = torchrun.communicate(timeout=100)[1]
    assert torchrun.returncode != 0 and f"rank 1 (process {helper}) of the 2 that share the update has ended" in told
    assert "run.resume" in told and Process.of(leader) is None
    done = [row["step"] for row in lines(path, "train.jsonl")]
    assert done in ([1], [1, 2])
    assert main(["train", f"run.resume={path}", "distributed.update=none", "--json"]) == 0
    assert [row["step"] for row in lines(path, "train.jsonl")] == [1, 2, 3]
    keys = [(e["phase"], e["step"], e["seed"], e["draw"]) for e in lines(path, "episodes.jsonl")]
    assert len(set(keys)) == len(keys) == 3 * 4 + 2
    assert yaml.safe_load((path / "config.yaml").read_text())["distributed"]["update"] == "fsdp2"


def test_torchrun_and_the_configuration_must_agree(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run"
    assert main(["train", *TINY_RUN, "distributed=fsdp2", f"run.dir={path}"]) == 2
    assert "torchrun --nproc-per-node" in capsys.readouterr().err
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    for command in (["train", *TINY_RUN, f"run.dir={path}"], ["train", "-m", *TINY_RUN, f"run.dir={path}"]):
        assert main(command) == 2
        assert "torchrun has started 2 processes" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("text", ["fsdp", "2"])
def test_who_computes_an_update_is_one_of_the_known(text, capsys):
    assert main(["train", *TINY_RUN, f"distributed.update={text}"]) == 2
    assert "none, fsdp2" in capsys.readouterr().err
