"""`vla-rl train` as a user meets it: the shipped base, real episodes, a kill, a second try."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from vla_rl.policy.logprob import score_rows
from vla_rl.policy.policy import load_policy
from vla_rl.policy.prompt import Observation
from vla_rl.rl.checkpoint import load_checkpoint
from vla_rl.rollout import store

TINY_RUN = (
    "experiment=quickstart geometry.seeds=2 geometry.draws=2 run.steps=2 eval.seeds=300-301 eval.slots=4 "
    "sampler.batch_rows=4 sim.max_ticks=150 checkpoint.keep_rows=true pool.workers=1 run.device=cpu"
).split()


def vla_rl(*arguments, **kwargs):
    command = [sys.executable, "-m", "vla_rl.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, **kwargs)


def rows(directory, name):
    """Rows of a JSONL file without its times."""
    return [without_times(json.loads(line)) for line in (directory / name).read_text().splitlines()]


def without_times(row):
    return {k: v for k, v in row.items() if not k.endswith("_s") and not k.endswith("_per_s")}


def weights(directory):
    return {name: w.numpy() for name, w in load_checkpoint(directory / "checkpoints" / "step_0002").weights.items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One tiny run of two steps that nothing disturbed."""
    directory = tmp_path_factory.mktemp("runs") / "undisturbed"
    done = vla_rl("train", *TINY_RUN, f"run.dir={directory}", "--json")
    assert done.returncode == 0, done.stderr
    return directory, json.loads(done.stdout)


def test_a_run_writes_the_files_of_the_contract(finished):
    directory, summary = finished
    for name in ("config.yaml", "manifest.json", "train.jsonl", "episodes.jsonl", "eval.jsonl", "heartbeat.json"):
        assert (directory / name).is_file(), name
    assert [row["step"] for row in rows(directory, "train.jsonl")] == [1, 2]
    assert [row["step"] for row in rows(directory, "eval.jsonl")] == [0, 2]
    scene = json.loads((directory / "manifest.json").read_text())["launches"][0]["scene"]
    assert scene["scene_hash"] and scene["max_replans"] == 5  # 150 ticks, 30 at a time
    for row in rows(directory, "eval.jsonl"):
        assert (row["protocol"], row["scene_hash"]) == (scene["protocol"], scene["scene_hash"])
    episodes = rows(directory, "episodes.jsonl")
    assert [e["phase"] for e in episodes].count("train") == 8 and [e["phase"] for e in episodes].count("eval") == 4
    assert summary["finished"] and summary["read"]["success"]["pairs"] == 2
    assert all(np.isfinite(v) for row in summary["steps"] for v in row.values() if isinstance(v, float))


def test_the_first_update_has_ratio_one_and_clips_nothing(finished):
    for row in rows(finished[0], "train.jsonl"):
        assert row["mean_ratio"] == pytest.approx(1, abs=1e-4)
        assert row["clip_fraction"] == 0
        assert row["rollout_gap"] <= 1e-5


def test_stored_log_probabilities_are_those_of_the_trainer(finished):
    policy = load_policy(checkpoint="bundled:tiny_start", device="cpu", serve_head="ar", task=TASK)
    stored = [row for _, episode in store.read_wave(store.wave_dir(finished[0], 1)) for row in episode]
    assert len(stored) > 8
    observations = [Observation(row.frames, row.state_deg) for row in stored]
    scores = score_rows(policy, observations, [row.bins for row in stored], temperature=0.7)
    for row, logp in zip(stored, scores.logp_RT.detach().numpy(), strict=True):
        assert np.abs(logp[: len(row.logp)] - row.logp).max() <= 1e-5
        assert np.array_equal(policy.grammar.packed_masks(row.bins), row.legal_packed)


TASK = "Pick up the toy boat and place it on the wooden disk."


def test_a_directory_that_is_in_use_is_refused_with_the_remedy(finished):
    again = vla_rl("train", *TINY_RUN, f"run.dir={finished[0]}")
    assert again.returncode == 2
    assert "not empty" in again.stderr and "run.resume=" in again.stderr and "Traceback" not in again.stderr


def test_a_finished_run_can_be_resumed_and_changes_nothing(finished):
    directory, _ = finished
    before = {p.name: p.read_bytes() for p in directory.glob("*.jsonl")}
    assert vla_rl("train", f"run.resume={directory}").returncode == 0
    assert {p.name: p.read_bytes() for p in directory.glob("*.jsonl")} == before


def test_an_edit_of_the_stored_configuration_is_found_at_resume(finished, tmp_path):
    edited = tmp_path / "edited"
    shutil.copytree(finished[0], edited)
    config = edited / "config.yaml"
    config.write_text(config.read_text().replace("lr: 3.0e-05", "lr: 0.5"))
    done = vla_rl("train", f"run.resume={edited}")
    assert done.returncode == 5 and "config.yaml" in done.stderr, done.stderr


def test_a_refused_launch_leaves_no_directory(tmp_path):
    done = vla_rl("train", *TINY_RUN, "surface=patch_only", "optim.weight_decay=0.1", f"run.dir={tmp_path / 'out'}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_keeps_its_own_configuration(finished):
    done = vla_rl("train", f"run.resume={finished[0]}", "optim.lr=1e-3")
    assert done.returncode == 2 and "optim.lr" in done.stderr


@pytest.mark.slow
def test_the_same_command_twice_gives_the_same_numbers_whatever_the_workers(finished, tmp_path):
    directory, _ = finished
    again = tmp_path / "again"
    assert vla_rl("train", *TINY_RUN, "pool.workers=2", f"run.dir={again}").returncode == 0
    for name in ("train.jsonl", "episodes.jsonl", "eval.jsonl"):
        assert rows(again, name) == rows(directory, name), name
    first, second = weights(directory), weights(again)
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_the_serial_pool_gives_the_same_run(finished, tmp_path):
    arguments = [a for a in TINY_RUN if not a.startswith("pool.")]
    assert vla_rl("train", *arguments, "pool=serial", f"run.dir={tmp_path / 'serial'}").returncode == 0
    assert rows(tmp_path / "serial", "episodes.jsonl") == rows(finished[0], "episodes.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["step 1: update", "step 2: episodes", "step 1/2"])
def test_a_killed_run_ends_in_the_weights_of_one_that_was_not(finished, tmp_path, moment):
    directory, _ = finished
    killed = tmp_path / "killed"
    kill_at(moment, ["train", *TINY_RUN, f"run.dir={killed}"])
    resumed = vla_rl("train", f"run.resume={killed}")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("train.jsonl", "episodes.jsonl", "eval.jsonl"):
        assert rows(killed, name) == rows(directory, name), name
    first, second = weights(directory), weights(killed)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def kill_at(moment, arguments):
    """Start a command and SIGKILL it, workers included, when it first prints `moment`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vla_rl.cli.main", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if moment in line:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return
    raise AssertionError(f"the run ended before it printed {moment!r}")


def test_the_wall_limit_stops_cleanly_and_says_how_to_go_on(tmp_path):
    directory = tmp_path / "short"
    started = time.monotonic()
    done = vla_rl("train", *TINY_RUN, f"run.dir={directory}", "run.max_wall_s=0.1", "eval.seeds=300")
    assert done.returncode == 0 and time.monotonic() - started < 400
    assert f"run.resume={directory}" in done.stderr
    assert Path(directory / "config.yaml").is_file()
