"""Recording: what a shard holds depends on the recipe alone, and a stopped recording goes on."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from sft_support import ENV, SEEDS, record

from vla_rl.config.build import build
from vla_rl.errors import ConfigError, IntegrityError, UsageError
from vla_rl.sft.demos import NOISE_DEG, START_JITTER_DEG, episode_rows
from vla_rl.sft.shards import read_recipe, read_shard, shard_paths
from vla_rl.sim.expert import DemoNoise, ScriptedExpert


def _bytes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("shard_*"))}


def _same_rows(a: Path, b: Path) -> bool:
    for index in range(3):
        left, right = read_shard(a, index), read_shard(b, index)
        names = ("frames", "state_deg", "targets_deg", "seed", "tick")
        if not all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names):
            return False
    return True


def test_two_workers_record_the_same_shards_as_one(demo_dir: Path, tmp_path: Path) -> None:
    record(tmp_path, workers=2)
    assert _same_rows(demo_dir, tmp_path)
    outcomes = [json.loads(shard_paths(d, i)[2].read_text()) for d in (demo_dir, tmp_path) for i in range(3)]
    assert outcomes[:3] == outcomes[3:]


def test_a_stopped_recording_records_only_what_is_missing(demo_dir: Path, tmp_path: Path) -> None:
    nothing = record(tmp_path, max_wall_s=0.0)
    assert (nothing.shards_done, nothing.attempts, nothing.complete) == (0, 0, False)
    indices = []
    record(tmp_path, on_event=lambda event: indices.append(event.index))
    assert indices == [0, 1, 2]
    shard_paths(tmp_path, 1)[2].unlink()
    untouched = _bytes(tmp_path)
    indices.clear()
    summary = record(tmp_path, on_event=lambda event: indices.append(event.index))
    assert indices == [1] and summary.complete and summary.attempts == len(SEEDS)
    assert all(_bytes(tmp_path)[name] == data for name, data in untouched.items() if "00001" not in name)
    assert _same_rows(demo_dir, tmp_path)


def test_the_shard_of_a_killed_worker_is_recorded_again(demo_dir: Path, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_first(event: object) -> None:
        if not killed:
            (worker,) = multiprocessing.active_children()
            killed.append(worker.pid or 0)
            worker.kill()

    assert record(tmp_path, on_event=kill_first).complete and killed
    assert _same_rows(demo_dir, tmp_path)


def test_rows_are_what_the_expert_saw_and_did_next(demo_dir: Path) -> None:
    shard = read_shard(demo_dir, 0)
    noise = DemoNoise(noisy_share=0.5, noise_deg=NOISE_DEG, start_jitter_deg=START_JITTER_DEG, miss_share=0.35)
    expert = ScriptedExpert(build(ENV))
    seed = int(shard.seed[0])
    episode = expert.run(seed, noise=noise, record_every=20, render=True)
    mine = shard.seed == seed
    for row in np.flatnonzero(mine):
        tick = int(shard.tick[row])
        seen = next(frame for frame in episode.observations if frame.tick == tick)
        assert seen.frames is not None and np.array_equal(shard.frames[row], seen.frames)
        assert np.array_equal(shard.state_deg[row], seen.state_deg)
        expected = [episode.targets_deg[min(tick + k, len(episode.targets_deg) - 1)] for k in range(30)]
        assert np.array_equal(shard.targets_deg[row], np.array(expected, dtype=np.float32))
    assert mine.sum() == len(episode_rows(episode, seed, chunk_ticks=30)) > 5


def test_only_strict_successes_are_kept(demo_dir: Path) -> None:
    for index in range(3):
        attempts = json.loads(shard_paths(demo_dir, index)[2].read_text())["attempts"]
        assert {int(seed) for seed in read_shard(demo_dir, index).seed} == {a["seed"] for a in attempts if a["kept"]}
        assert all((a["failure"] is None) == a["kept"] for a in attempts)


def test_another_recipe_and_a_foreign_directory_are_refused(demo_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="record_every"):
        record(demo_dir, record_every=7)
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        record(tmp_path)
    with pytest.raises(ConfigError, match="may not be used for demos"):
        record(tmp_path / "new", seeds=(300, 301))
    assert not (tmp_path / "new").exists()


def test_a_damaged_shard_is_noticed(tmp_path: Path) -> None:
    record(tmp_path, seeds=SEEDS[:2])
    frames_path = shard_paths(tmp_path, 0)[0]
    frames_path.write_bytes(frames_path.read_bytes()[:-1000])
    assert read_recipe(tmp_path).seeds == "100000-100001"
    with pytest.raises(IntegrityError, match="cannot be read"):
        read_shard(tmp_path, 0)
