"""Training windows: where they start, what their labels decode to, whose pictures they gather, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from vla_rl.errors import ConfigError, IntegrityError, MachineError, UsageError
from vla_rl.policy.normalise import JOINTS
from vla_rl.policy.policy import VlaPolicy
from vla_rl.sft import frames, lerobot
from vla_rl.sft.dataset import Demonstrations, open_demonstrations, training_rows, window_starts
from vla_rl.sft.frames import MappedFrames, ResidentFrames
from vla_rl.sft.reading import open_dataset

CPU = torch.device("cpu")


def test_windows_start_at_every_nth_taught_tick_with_a_phase_per_episode() -> None:
    episode_N = np.repeat([0, 1, 2], [20, 31, 7])
    taught_N = np.ones(58, bool)
    taught_N[25:40] = False
    every, _ = window_starts(episode_N, taught_N, 1)
    assert np.array_equal(every, np.flatnonzero(taught_N))
    starts, lasts = window_starts(episode_N, taught_N, 5)
    assert taught_N[starts].all() and len(set(starts)) == len(starts)
    phases = []
    for episode, (first, end) in enumerate([(0, 20), (20, 51), (51, 58)]):
        own = starts[(starts >= first) & (starts < end)] - first
        phases.append(set(own % 5))
        assert len(phases[-1]) == 1 and (lasts[(starts >= first) & (starts < end)] == end - 1).all(), episode
    assert np.array_equal(window_starts(episode_N, taught_N, 5)[0], starts)
    many = window_starts(np.repeat(np.arange(60), 5), np.ones(300, bool), 5)[0]
    assert set(many % 5) == set(range(5))


def test_the_first_episodes_alone_can_be_taken(demo_dir: Path) -> None:
    every = open_demonstrations(demo_dir, chunk_ticks=30, frame_stride=2)
    held = np.unique(every.dataset.episode_N)
    for count in range(1, len(held) + 1):
        some = open_demonstrations(demo_dir, chunk_ticks=30, frame_stride=2, episodes=count)
        kept = np.isin(every.dataset.episode_N[every.frame_N], held[:count])
        assert np.array_equal(some.frame_N, every.frame_N[kept])
        assert np.array_equal(some.targets_deg, every.targets_deg[kept])
    with pytest.raises(UsageError, match=f"has {len(held)} episodes, not {len(held) + 1}"):
        open_demonstrations(demo_dir, chunk_ticks=30, frame_stride=2, episodes=len(held) + 1)


def test_labels_decode_to_the_demonstrated_chunks(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> None:
    rows = training_rows(demos, twin.stats, twin.codec, CPU, scratch=tmp_path, threads=1)
    errors_deg = []
    for row in rows.usable[::5]:
        bins = rows.bins_NT[row, : rows.length_N[row]].numpy()
        assert np.array_equal(bins, twin.encode_chunk(demos.targets_deg[row]))
        errors_deg.append(np.abs(twin.decode_chunk(bins) - demos.targets_deg[row]).mean())
    assert 0 < np.mean(errors_deg) < 1.0
    assert np.array_equal(rows.state_bins_NJ.numpy(), twin.state_bins(demos.state_deg))


def test_streams_longer_than_the_padding_are_never_sampled(
    demos: Demonstrations, twin: VlaPolicy, tmp_path: Path
) -> None:
    rows = training_rows(demos, twin.stats, twin.codec, CPU, scratch=tmp_path, threads=1)
    assert (rows.length_N[rows.usable] <= rows.bins_NT.shape[1]).all()
    assert len(rows.usable) >= 0.99 * len(demos)


def test_every_row_gathers_its_own_pictures(demos: Demonstrations, twin: VlaPolicy, tmp_path: Path) -> None:
    rows = training_rows(demos, twin.stats, twin.codec, CPU, scratch=tmp_path, threads=2)
    table = pa.concat_tables([pq.read_table(path) for path in demos.dataset.files])
    order = np.random.default_rng(0).permutation(len(demos))[:20]
    gathered = rows.frames.gather(order).numpy()
    for row, pictures in zip(order, gathered, strict=True):
        for picture, name in zip(pictures, lerobot.PICTURES, strict=True):
            data = table[name][int(demos.frame_N[row])].as_py()["bytes"]
            assert np.array_equal(picture, lerobot.decode_picture(data))
    assert not list(tmp_path.iterdir())  # the pictures lie in a file without a name


def test_both_frame_sources_gather_what_was_filled_in(tmp_path: Path) -> None:
    everything = np.random.default_rng(0).integers(0, 256, (9, 2, 4, 4, 3), dtype=np.uint8)
    order = np.array([8, 0, 3, 3, 5])
    for source in (MappedFrames(everything.shape, tmp_path), ResidentFrames(everything.shape, CPU)):
        source.fill(0, everything[:4])
        source.fill(4, everything[4:])
        assert np.array_equal(source.gather(order).numpy(), everything[order])


def test_a_full_disk_is_told_before_it_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(MachineError, match="decoded pictures"):
        MappedFrames((9, 2, 4, 4, 3), tmp_path)


# -------------------------------------------------------------------------------------------- datasets of other people
def other(demo_dir: Path, directory: Path, **info: Any) -> Path:
    """The demonstrations as somebody else would have stored them: joints in another order, no columns of ours."""
    shutil.copytree(demo_dir, directory)
    (directory / "meta/vla_rl.json").unlink()
    (path,) = (directory / "data").glob("*/*.parquet")
    table = pq.read_table(path)
    ours = [name for name in table.schema.names if name in ("taught", "seed") or "reward" in name]
    table = table.drop_columns(ours)
    for name in (lerobot.STATE, lerobot.ACTION):
        position = table.schema.get_field_index(name)
        reversed_joints = lerobot.joint_rows(lerobot.joint_values(table[name], 6)[:, ::-1])
        table = table.set_column(position, name, reversed_joints)
    pq.write_table(table, path, row_group_size=100)
    stored = json.loads((directory / lerobot.INFO).read_text())
    for name in ours:
        del stored["features"][name]
    stored["features"][lerobot.STATE]["names"] = {"motors": [f"main_{joint}" for joint in reversed(JOINTS)]}
    stored["features"][lerobot.ACTION]["names"] = list(reversed(JOINTS))
    (directory / lerobot.INFO).write_text(json.dumps(stored | info))
    return directory


def change(directory: Path, **features: Any) -> Path:
    """Edit single features of `info.json`; None removes one."""
    stored = json.loads((directory / lerobot.INFO).read_text())
    edited = {**stored["features"], **{name.replace("__", "."): value for name, value in features.items()}}
    stored["features"] = {name: value for name, value in edited.items() if value is not None}
    (directory / lerobot.INFO).write_text(json.dumps(stored))
    return directory


def test_another_dataset_with_the_same_features_loads(
    demo_dir: Path, demos: Demonstrations, twin: VlaPolicy, tmp_path: Path
) -> None:
    theirs = open_demonstrations(other(demo_dir, tmp_path / "theirs"), chunk_ticks=30, frame_stride=10)
    assert len(theirs) > len(demos)  # every tick is taught where the dataset does not say
    same = np.isin(theirs.frame_N, demos.frame_N)
    assert np.array_equal(theirs.targets_deg[same], demos.targets_deg)
    assert np.array_equal(theirs.state_deg[same], demos.state_deg)
    assert theirs.dataset.scene is None and theirs.dataset.task == demos.dataset.task
    ours, rows = (training_rows(d, twin.stats, twin.codec, CPU, scratch=tmp_path, threads=1) for d in (demos, theirs))
    everything = np.arange(len(demos))
    assert torch.equal(rows.frames.gather(np.flatnonzero(same)), ours.frames.gather(everything))


def test_what_cannot_be_learned_from_is_refused_by_name(demo_dir: Path, tmp_path: Path) -> None:
    picture = {"dtype": "image", "shape": [32, 32, 3], "names": None}
    joints = {"dtype": "float32", "shape": [6], "names": ["x", "y", "z", "roll", "pitch", "yaw"]}
    cases = [
        ("v2.1", {"codebase_version": "v2.1"}, {}),
        ("25 frames a second", {"fps": 25}, {}),
        ("no observation.images.wrist; its cameras are observation.images.top, observation.images.side", {},
         {"observation__images__wrist": None, "observation__images__side": picture}),
        ("stored as video", {}, {"observation__images__top": picture | {"dtype": "video"}}),
        ("no action", {}, {"action": None}),
        ("named .*roll.* not the six joints", {}, {"action": joints}),
    ]  # fmt: skip
    for number, (message, info, features) in enumerate(cases):
        directory = change(other(demo_dir, tmp_path / str(number), **info), **features)
        with pytest.raises(UsageError, match=message) as caught:
            open_dataset(directory)
        assert caught.value.remedy and str(directory) in (caught.value.where or "")


def test_held_out_seeds_damaged_files_and_several_tasks_are_refused(demo_dir: Path, tmp_path: Path) -> None:
    directory = tmp_path / "held_out"
    shutil.copytree(demo_dir, directory)
    (path,) = (directory / "data").glob("*/*.parquet")
    table = pq.read_table(path)
    seeds = table["seed"].to_numpy().copy()
    seeds[-1] = 300
    pq.write_table(table.set_column(table.schema.get_field_index("seed"), "seed", pa.array(seeds)), path)
    with pytest.raises(ConfigError, match="seed 300"):
        open_dataset(directory)
    pq.write_table(table.slice(0, 50), path)
    with pytest.raises(IntegrityError, match="the files hold 50"):
        open_dataset(directory)
    path.write_bytes(b"PAR1")
    with pytest.raises(IntegrityError, match="cannot be read"):
        open_dataset(directory)
    (directory / lerobot.INFO).write_text("{}")
    with pytest.raises(IntegrityError, match="not the info.json"):
        open_dataset(directory)
    tasks = pa.table({"task_index": [0, 1], "task": ["push", "pull"]})
    pq.write_table(tasks, other(demo_dir, tmp_path / "tasks") / lerobot.TASKS)
    with pytest.raises(UsageError, match="2 instructions"):
        _ = open_dataset(tmp_path / "tasks").task


def test_a_directory_without_demonstrations_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no LeRobot dataset"):
        open_dataset(tmp_path)
    (tmp_path / "demos.json").write_text("{}")
    with pytest.raises(UsageError, match="older format"):
        open_dataset(tmp_path)


def test_pictures_must_be_there_and_square(demo_dir: Path, tmp_path: Path) -> None:
    for name, size, error in (("wide", (8, 16), UsageError), ("gone", None, IntegrityError)):
        directory = other(demo_dir, tmp_path / name)
        (path,) = (directory / "data").glob("*/*.parquet")
        table = pq.read_table(path)
        data = None if size is None else lerobot.encode_png(np.zeros((*size, 3), np.uint8))
        for column in lerobot.PICTURES:
            pictures = pa.array([{"bytes": data, "path": "a.png"}] * len(table), table.schema.field(column).type)
            table = table.set_column(table.schema.get_field_index(column), column, pictures)
        pq.write_table(table, path)
        with pytest.raises(error, match="square|not in the data files"):
            open_demonstrations(directory, chunk_ticks=30, frame_stride=4)
