"""Recording: a dataset depends on its recipe alone, and a recording that was stopped or killed goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sft_support import ENV, EXPERT, SEEDS, dataset_digest, fake_episode, recipe, record

from vla_rl.config.build import build
from vla_rl.errors import ConfigError, UsageError
from vla_rl.seeds import parse_seeds
from vla_rl.sft import demos, lerobot
from vla_rl.sft.dataset import open_demonstrations
from vla_rl.sft.events import ShardRecorded
from vla_rl.sft.frames import decode_windows
from vla_rl.sft.shards import STAGING, shard_paths, write_shard
from vla_rl.sft.sources import open_source
from vla_rl.sim.expert import DemoNoise, ScriptedExpert
from vla_rl.sim.frames import CAMERAS

KILLED = """
import sys
from pathlib import Path
if __name__ == "__main__":  # its recording processes do without these modules
    sys.path.insert(0, {helpers!r})
    from sft_support import record
    record(Path({directory!r}))
"""


def expert_episodes() -> list:
    """(seed, pictures and states before every tick, episode) of the kept seeds, taken without the recorder."""
    found = []
    settings = {name: EXPERT[name] for name in ("noise_deg", "start_jitter_deg", "miss_share")}
    noise = DemoNoise(noisy_share=EXPERT["noise_share"], **settings)
    for seed in parse_seeds(SEEDS):
        env = build(ENV)
        seen = []
        act = env.tick

        def tick(target_deg, env=env, seen=seen, act=act):
            frames = np.stack([env.get_frame(camera, env.image_px, env.image_px) for camera in CAMERAS])
            seen.append((frames, env.state_deg))
            return act(target_deg)

        env.tick = tick
        episode = ScriptedExpert(env).run(seed, noise=noise, record_every=1, render=False)
        if episode.ok:
            found.append((seed, seen, episode))
    return found


def test_windows_are_what_the_expert_saw_and_did_next(demo_dir: Path) -> None:
    demos = open_demonstrations(demo_dir, chunk_ticks=30, frame_stride=1)
    blocks = decode_windows(demos.dataset, demos.frame_N, image_px=32, threads=2, taken=lambda data: None)
    pictures = np.concatenate(list(blocks))
    table = pq.read_table(demos.dataset.files[0])
    episodes = expert_episodes()
    assert len(episodes) >= 2 and table["seed"].unique().to_pylist() == [seed for seed, _, _ in episodes]
    window, first = 0, 0
    for _, seen, episode in episodes:
        last = len(episode.targets_deg) - 1
        assert table["taught"].slice(first, last + 1).to_pylist() == episode.trainable_T.tolist()
        for tick in np.flatnonzero(episode.trainable_T):
            frames, state_deg = seen[tick]
            assert np.array_equal(pictures[window], frames)
            assert np.array_equal(demos.state_deg[window], state_deg.astype(np.float32))
            expected = [episode.targets_deg[min(tick + k, last)] for k in range(30)]
            assert np.array_equal(demos.targets_deg[window], np.array(expected, dtype=np.float32))
            assert demos.frame_N[window] == first + tick
            window += 1
        first += last + 1
    assert window == len(demos) and first == len(demos.dataset)


@pytest.mark.slow
def test_a_wrongly_calibrated_arm_does_the_same_and_reports_other_angles(demo_dir: Path, tmp_path: Path) -> None:
    error_deg = (2.5, -2.5, 0.0, 1.0, 0.0, 0.0)
    record(tmp_path, recipe(calibration_error_deg=error_deg))
    columns = {}
    for directory in (demo_dir, tmp_path):
        table = pq.read_table(directory / "data/chunk-000/file-000.parquet")
        columns[directory] = {name: table[name].to_pylist() for name in table.column_names}
    true, reported = columns[demo_dir], columns[tmp_path]
    for name in ("action", "observation.state"):
        off_deg = np.array(reported.pop(name)) - np.array(true.pop(name))
        assert np.allclose(off_deg, error_deg, atol=1e-4)
    assert reported == true
    # What a policy is taught, in units of the dataset's own quantiles, is the same but for rounding.
    normalised = []
    for directory in (demo_dir, tmp_path):
        demos = open_demonstrations(directory, chunk_ticks=30, frame_stride=1)
        low, high = np.quantile(demos.targets_deg, (0.001, 0.999), axis=(0, 1))
        normalised.append((demos.targets_deg - low) / (high - low))
    assert np.allclose(*normalised, atol=1e-4)


@pytest.mark.slow
def test_two_workers_record_the_same_dataset_as_one(demo_dir: Path, tmp_path: Path) -> None:
    summary = record(tmp_path, workers=2)
    assert summary.complete and summary.attempts == 3
    assert dataset_digest(tmp_path) == dataset_digest(demo_dir)


def test_an_interrupted_recording_goes_on_to_the_same_dataset(demo_dir: Path, tmp_path: Path) -> None:
    recorded = []

    def interrupt(event: object) -> None:
        if isinstance(event, ShardRecorded):
            recorded.append(event.index)
            if len(recorded) == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(tmp_path, on_event=interrupt)
    assert not (tmp_path / "meta").exists()
    summary = record(tmp_path, on_event=interrupt)
    assert recorded == [0, 1, 2], "a finished shard is not recorded again"
    assert summary.complete and dataset_digest(tmp_path) == dataset_digest(demo_dir)


@pytest.mark.slow
def test_a_killed_recording_goes_on_to_the_same_dataset(demo_dir: Path, tmp_path: Path) -> None:
    script = tmp_path.parent / "killed_recording.py"
    script.write_text(KILLED.format(helpers=str(Path(__file__).parent), directory=str(tmp_path)))
    recorder = subprocess.Popen([sys.executable, str(script)])
    while not shard_paths(tmp_path, 0)[1].exists():
        assert recorder.poll() is None
        time.sleep(0.05)
    recorder.kill()
    recorder.wait()
    assert not (tmp_path / "meta").exists()
    recorded, killed = [], []

    def kill_first(event: object) -> None:
        if isinstance(event, ShardRecorded):
            recorded.append(event.index)
        if not killed:  # the worker, which has just been given the last shard
            (worker,) = multiprocessing.active_children()
            killed.append(worker.pid)
            worker.kill()

    summary = record(tmp_path, on_event=kill_first)
    assert recorded == [1, 2] and killed  # a finished shard is not recorded again
    assert summary.complete and dataset_digest(tmp_path) == dataset_digest(demo_dir)
    stored = json.loads((tmp_path / "summary.json").read_text())
    assert stored["complete"] and stored["rows"] == summary.rows > summary.taught > 0


@pytest.mark.slow
def test_a_recorder_that_hangs_is_replaced(demo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demos, "SILENT_S", 20.0)
    stopped = []

    def stop_first(event: object) -> None:
        if not stopped:  # the worker, which has just been given its second shard
            (worker,) = multiprocessing.active_children()
            stopped.append(worker.pid)
            os.kill(worker.pid, signal.SIGSTOP)

    summary = record(tmp_path, on_event=stop_first)
    assert stopped and summary.complete and dataset_digest(tmp_path) == dataset_digest(demo_dir)


def test_the_wall_limit_starts_no_further_shard(tmp_path: Path) -> None:
    nothing = record(tmp_path, max_wall_s=0.0)
    assert (nothing.shards_done, nothing.attempts, nothing.complete) == (0, 0, False)
    with pytest.raises(UsageError, match="not finished"):
        open_demonstrations(tmp_path, chunk_ticks=30, frame_stride=4)


def test_a_complete_dataset_is_left_alone(demo_dir: Path) -> None:
    before = dataset_digest(demo_dir)
    (demo_dir / STAGING).mkdir()  # as a process that was killed right after its merge leaves it
    events: list[object] = []
    summary = record(demo_dir, on_event=events.append)
    assert summary.complete and not events and dataset_digest(demo_dir) == before
    assert not (demo_dir / STAGING).exists()


def test_another_recipe_and_a_foreign_directory_are_refused(demo_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"differs in expert\.miss_share"):
        record(demo_dir, recipe(miss_share=0.1))
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        record(tmp_path)
    with pytest.raises(ConfigError, match="may not be used for demos"):
        recipe(seeds="300-301")
    with pytest.raises(ConfigError, match="no range of noise"):
        recipe(noise_deg=(2.0, 0.5))
    with pytest.raises(ConfigError, match="no angle for each of six joints"):
        recipe(calibration_error_deg=(2.5, -2.5))


def test_nothing_kept_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    (tmp_path / STAGING).mkdir()
    schema = lerobot.data_schema(lerobot.features(ENV["image_px"]))
    write_shard(tmp_path, 0, [fake_episode(100004, 5, failure="dropped")], schema, success_only=True)
    with pytest.raises(UsageError, match="none of 1 episodes was kept: {'dropped': 1}"):
        record(tmp_path, recipe(seeds="100004"))


def test_the_noise_settings_reach_the_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DemoNoise] = []

    class Asked(Exception):
        pass

    def run(self: ScriptedExpert, seed: int, *, noise: DemoNoise, record_every: int, render: bool) -> None:
        asked.append(noise)
        raise Asked

    monkeypatch.setattr(ScriptedExpert, "run", run)
    source = open_source(recipe(noise_share=0.25, miss_share=0.75, noise_deg=(1.0, 1.5), start_jitter_deg=4.0))
    with pytest.raises(Asked):
        source.record(100005)
    assert asked == [DemoNoise(noisy_share=0.25, noise_deg=(1.0, 1.5), start_jitter_deg=4.0, miss_share=0.75)]
