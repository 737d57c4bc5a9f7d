"""Recycled rollouts: stored tokens are decoded and replayed; what does not come out again bit for bit is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from sft_support import ENV, TASK, record

from vla_rl.config.build import build
from vla_rl.errors import ConfigError, UsageError
from vla_rl.policy.chunks import ChunkCodec
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.sources import CODEC_DIR
from vla_rl.rollout.records import Episode, EpisodeSpec, Row
from vla_rl.rollout.store import read_episode, write_episode
from vla_rl.sft import lerobot
from vla_rl.sft.recipe import DemoRecipe
from vla_rl.sft.recycle import recorded_rollouts, rollout_recipe
from vla_rl.sft.sources import NOT_SUCCESSFUL, OTHER_EPISODE, open_source, same_metrics
from vla_rl.sim.expert import ScriptedExpert

SEED = 200000


def chunks_of(targets_deg: np.ndarray) -> np.ndarray:
    """[replan, 30, 6]: targets cut into chunks, the last one held."""
    padded = np.concatenate([targets_deg, np.repeat(targets_deg[-1:], -len(targets_deg) % 30, axis=0)])
    return padded.reshape(-1, 30, 6)


def play(chunks_deg: np.ndarray, streams: list[np.ndarray], seed: int) -> tuple[Episode, list[Row], int]:
    """A rollout as the pool plays it, with its rows; and how many ticks it took."""
    env = build(ENV)
    observation, _ = env.reset(seed=seed)
    rows: list[Row] = []
    for replan, (chunk_deg, bins) in enumerate(zip(chunks_deg, streams, strict=True)):
        frames = np.stack([observation["top"], observation["wrist"]])
        logp, legal = np.zeros(len(bins), np.float32), np.zeros((len(bins), 1), np.uint8)
        spec = EpisodeSpec(seed, 0)
        rows.append(Row(spec, replan, frames, observation["state"], bins, logp, legal, (0, 0, seed, replan), "d"))
        observation, _, terminated, truncated, _ = env.step(chunk_deg)
        if terminated or truncated:
            break
    return Episode(EpisodeSpec(seed, 0), env.metrics().as_dict(), len(rows), 0, 0.0), rows, env.ticks


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of two rollouts: the expert's motion through a fine codec, which succeeds, and its reverse."""
    root = tmp_path_factory.mktemp("recycle")
    expert = ScriptedExpert(build(ENV)).run(SEED, noise=None, record_every=10**6, render=False)
    chunks = chunks_of(expert.targets_deg)
    flat = chunks.reshape(-1, 6)
    stats = NormStats.fit(flat, flat, tag="test", quantile=0.0, horizon=30)
    codec = FastCodec.fit(stats.action.normalise(chunks), scale=40.0, vocabulary=512)
    policy = root / "policy"
    codec.save(policy / CODEC_DIR)
    stats.save(policy)
    (policy / "config.json").write_text("{}")
    way = ChunkCodec(codec, stats)
    run = root / "run"
    for seed, planned in ((SEED, chunks), (SEED + 1, chunks[::-1])):
        streams = [way.encode(chunk) for chunk in planned]
        episode, rows, _ = play(np.stack([way.decode(stream) for stream in streams]), streams, seed)
        write_episode(run / "waves/step_0001", 1, episode, rows)
    config = {"sim": ENV, "plugins": [], "policy": {"checkpoint": str(policy)}, "eval": {"seeds": "300-319"}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def rollouts(run: Path, **changes: Any) -> DemoRecipe:
    settings: dict[str, Any] = {"task": TASK, "success_only": True, "shard_episodes": 10}
    return rollout_recipe(str(run), **(settings | changes))


def test_a_successful_rollout_becomes_the_same_episode_tick_by_tick(run_dir: Path, tmp_path: Path) -> None:
    summary = record(tmp_path, rollouts(run_dir))
    assert (summary.attempts, summary.kept) == (2, 1)
    assert summary.failures == {NOT_SUCCESSFUL: 1}
    episode, rows = read_episode(run_dir / f"waves/step_0001/seed{SEED}_draw00.npz")
    table = pq.read_table(tmp_path / "data/chunk-000/file-000.parquet")
    assert len(table) == episode.metrics["ticks"] == summary.taught and table["next.success"][-1].as_py()
    state, action = (lerobot.joint_values(table[name], 6) for name in (lerobot.STATE, lerobot.ACTION))
    way = ChunkCodec.of_policy({"checkpoint": str(run_dir.parent / "policy")})
    for replan, row in enumerate(rows):
        tick = 30 * replan
        chunk = way.decode(row.bins)[: len(table) - tick]
        assert np.array_equal(action[tick : tick + 30], chunk.astype(np.float32))
        assert np.array_equal(state[tick], row.state_deg.astype(np.float32))
        for frame, name in zip(row.frames, lerobot.PICTURES, strict=True):
            assert np.array_equal(lerobot.decode_picture(table[name][tick].as_py()["bytes"]), frame)
    stored = pq.read_table(tmp_path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(e["seed"], e["draw"], e["step"], e["success"]) for e in stored] == [(SEED, 0, 1, True)]


def test_a_failed_rollout_is_recorded_on_demand_and_never_taught(run_dir: Path) -> None:
    job = f"step_0001/seed{SEED + 1}_draw00"
    left_out = open_source(rollouts(run_dir)).record(job)
    assert len(left_out) == 0 and left_out.failure == NOT_SUCCESSFUL
    stored = open_source(rollouts(run_dir, success_only=False)).record(job)
    assert len(stored) > 0 and not stored.taught_T.any() and stored.failure == NOT_SUCCESSFUL


def test_a_replay_with_other_metrics_is_refused_and_counted(run_dir: Path, tmp_path: Path) -> None:
    name = f"step_0001/seed{SEED}_draw00"
    episode, rows = read_episode(run_dir / "waves" / f"{name}.npz")
    other = dict(episode.metrics) | {"final_cm": np.nextafter(episode.metrics["final_cm"], 1.0)}
    write_episode(tmp_path / "waves/step_0001", 1, Episode(episode.spec, other, episode.replans, 0, 0.0), rows)
    (tmp_path / "config.yaml").write_text((run_dir / "config.yaml").read_text())
    refused = open_source(rollouts(tmp_path)).record(name)
    assert len(refused) == 0 and refused.failure == OTHER_EPISODE
    assert same_metrics({"a": 0.1, "b": float("nan")}, {"a": 0.1, "b": float("nan"), "new": 1})
    assert not same_metrics({"a": 0.1, "gone": 1}, {"a": 0.1})


def test_a_recording_that_goes_on_keeps_to_the_rollouts_it_began_with(run_dir: Path, tmp_path: Path) -> None:
    assert recorded_rollouts(tmp_path) is None
    begun = rollouts(run_dir)
    jobs = begun.rollouts
    begun = replace(begun, rollouts=replace(jobs, episodes=jobs.episodes[:1], files_sha256=jobs.files_sha256[:1]))
    record(tmp_path, begun, max_wall_s=0.0)
    assert rollouts(run_dir) != begun
    assert rollouts(run_dir, only=recorded_rollouts(tmp_path)) == begun


def test_rollouts_with_other_content_are_another_recipe(run_dir: Path, tmp_path: Path, monkeypatch) -> None:
    """A run of the same name may hold anything, and who pins the digest of a recipe pins what is learned from."""
    for name in ("one", "other"):
        shutil.copytree(run_dir, tmp_path / name / "run")
    path = tmp_path / f"other/run/waves/step_0001/seed{SEED}_draw00.npz"
    episode, rows = read_episode(path)
    path.unlink()
    write_episode(path.parent, 1, episode, rows[:-1])
    told = []
    for name in ("one", "other", "one"):
        monkeypatch.chdir(tmp_path / name)
        told.append(rollouts(Path("run")))
    assert told[0] == told[2] and told[0].digest != told[1].digest
    assert told[0].rollouts.episodes == told[1].rollouts.episodes and told[0].rollouts.run == told[1].rollouts.run


def test_recording_processes_stay_light() -> None:
    code = "import sys, vla_rl.sft.demos, vla_rl.sft.sources; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_what_cannot_be_recycled_says_why(run_dir: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((run_dir / "config.yaml").read_text())

    def run(name: str, episode: str | None = f"seed{SEED}_draw00", **changes: Any) -> Path:
        directory = tmp_path / name
        (directory / "waves/step_0001").mkdir(parents=True)
        if episode:
            (directory / "waves/step_0001" / f"{episode}.npz").write_text("")
        (directory / "config.yaml").write_text(yaml.safe_dump(config | changes))
        return directory

    with pytest.raises(UsageError, match="kept no rows") as caught:
        rollouts(run("bare", None))
    assert "checkpoint.keep_rows=true" in (caught.value.remedy or "")
    with pytest.raises(ConfigError, match="seed 300 may not be used for train"):
        rollouts(run("held_out", "seed000300_draw00"))
    with pytest.raises(ConfigError, match="both trained on and held out"):
        rollouts(run("both", "seed000500_draw00", eval={"seeds": "500-509"}))
    with pytest.raises(UsageError, match="names no checkpoint"):
        rollouts(run("other", policy={"_target_": "mine.Policy"}))
    with pytest.raises(ConfigError, match="no policy checkpoint"):
        rollouts(run("gone", policy={"checkpoint": "/nowhere"}))
    with pytest.raises(UsageError, match="no training run here"):
        rollouts(tmp_path)
    (tmp_path / "eval.json").write_text(json.dumps({}))
    with pytest.raises(UsageError, match="an evaluation keeps no rows"):
        rollouts(tmp_path)
