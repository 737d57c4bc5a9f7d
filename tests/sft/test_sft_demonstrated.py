"""Rows of an update from real demonstrations: what the dataset holds, in the policy's words, and nothing by chance."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sft_support import TINY, recipe, record

from vla_rl.errors import ConfigError, IntegrityError, UsageError
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.normalise import NormStats, QuantileTable
from vla_rl.policy.policy import VlaPolicy, new_twin
from vla_rl.rl.rowchecks import check_rows
from vla_rl.rl.rundir import RunDir
from vla_rl.sft import lerobot
from vla_rl.sft.dataset import Demonstrations
from vla_rl.sft.demonstrated import DemonstratedRows, check_recipe, check_scene
from vla_rl.sft.merge import OWN_META

ERROR_DEG = (2.5, -2.5, 0.0, 0.0, 0.0, 0.0)


def rows_of(directory: Path, policy: VlaPolicy, **changes: Any) -> DemonstratedRows:
    return DemonstratedRows(directory, policy, **({"seed": 3, "count": 16, "threads": 1} | changes))


def keys(rows: list[Any]) -> list[tuple[int, int]]:
    return [(row.spec.seed, row.replan) for row in rows]


def test_an_update_gets_other_rows_each_time_and_the_same_ones_again(demo_dir: Path, twin: VlaPolicy) -> None:
    rows = rows_of(demo_dir, twin)
    first, second, again, other = rows(1), rows(2), rows_of(demo_dir, twin)(1), rows_of(demo_dir, twin, seed=4)(1)
    assert keys(first) == keys(again) and len({*keys(first)}) == 16
    assert keys(first) != keys(second) and keys(first) != keys(other)
    for one, same in zip(first, again, strict=True):
        assert np.array_equal(one.frames, same.frames) and np.array_equal(one.bins, same.bins)
    every = rows_of(demo_dir, twin, count=len(rows.demos))(1)
    assert len({*keys(every)}) == len(rows.demos)  # without replacement: all of them


def test_a_row_is_what_was_seen_at_a_taught_tick_and_what_came_after(
    demo_dir: Path, demos: Demonstrations, twin: VlaPolicy
) -> None:
    table = pq.read_table(demo_dir / "data/chunk-000/file-000.parquet").to_pylist()
    frames = {(row["seed"], row["frame_index"]): row for row in table}
    last = {row["seed"]: row["frame_index"] for row in table}
    rows = rows_of(demo_dir, twin, count=40)(1)
    check_rows(twin, rows)
    for row in rows:
        seen = frames[row.spec.seed, row.replan]
        assert seen["taught"] and row.rng_key == (3, 0, row.spec.seed, row.replan)
        assert np.allclose(row.state_deg, seen["observation.state"]) and row.state_deg.dtype == np.float64
        for picture, name in zip(row.frames, lerobot.PICTURES, strict=True):
            assert np.array_equal(picture, lerobot.decode_picture(seen[name]["bytes"]))
        ticks = [min(row.replan + tick, last[row.spec.seed]) for tick in range(twin.horizon)]
        chunk = np.array([frames[row.spec.seed, tick]["action"] for tick in ticks])
        assert np.array_equal(row.bins, twin.encode_chunk(chunk))


def test_demonstrations_of_a_misjudging_arm_are_for_its_policy_what_true_ones_are_for_the_true_policy(
    demo_dir: Path, tmp_path: Path, twin: VlaPolicy
) -> None:
    """`tiny_start` is `tiny_full` with tables that are moved by the error, and so are its demonstrations."""
    record(tmp_path, recipe(calibration_error_deg=ERROR_DEG))

    def moved(table: QuantileTable) -> QuantileTable:
        return replace(table, low_deg=table.low_deg + ERROR_DEG, high_deg=table.high_deg + ERROR_DEG)

    stats: NormStats = replace(twin.stats, state=moved(twin.stats.state), action=moved(twin.stats.action))
    start = new_twin(codec=twin.codec, stats=stats, task=twin.task, seed=0, architecture=TINY)
    count = 3 * len(rows_of(demo_dir, twin).demos) // 4
    true, misjudged = rows_of(demo_dir, twin, count=count)(1), rows_of(tmp_path, start, count=count)(1)
    assert keys(true) == keys(misjudged)
    other = rows_of(tmp_path, twin, count=count)(1)
    alike, told_apart = (
        np.mean([np.array_equal(a.bins, b.bins) for a, b in zip(true, rows, strict=True)])
        for rows in (misjudged, other)
    )
    assert alike > 0.98 and told_apart < 0.1  # rounding moves a level now and then
    states = [twin.state_bins(np.stack([row.state_deg for row in true]))]
    states.append(start.state_bins(np.stack([row.state_deg for row in misjudged])))
    assert np.abs(states[0] - states[1]).max() <= 1 and np.mean(states[0] == states[1]) > 0.99
    assert all(np.array_equal(a.frames, b.frames) for a, b in zip(true, misjudged, strict=True))


def test_the_record_names_the_recipe_and_whatever_changes_in_the_files(
    demo_dir: Path, tmp_path: Path, twin: VlaPolicy
) -> None:
    record_ = rows_of(demo_dir, twin).record
    summary = json.loads((demo_dir / "summary.json").read_text())
    assert record_["recipe_sha256"] == recipe().digest == summary["recipe_sha256"]
    assert record_["recipe"] == recipe().as_dict() and record_["episodes"] == 3
    assert recipe(miss_share=0.1).digest != recipe().digest
    check_recipe(record_, None)
    check_recipe(record_, recipe().digest)
    with pytest.raises(IntegrityError, match="not 00ff"):
        check_recipe(record_, "00ff")
    copy = tmp_path / "copy"
    shutil.copytree(demo_dir, copy)
    path = copy / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=50)  # the same numbers and pictures in other files
    other = rows_of(copy, twin).record
    same = {name for name in record_ if record_[name] == other[name]}
    assert set(record_) - same == {"directory", "files_sha256"}
    run = RunDir.create(tmp_path / "run", config={}, manifest={})
    run.record_demonstrations(record_)
    run.close()
    run = RunDir.resume(tmp_path / "run", config={}, manifest={}, free=())
    with pytest.raises(IntegrityError, match="files_sha256"):
        run.record_demonstrations(other)
    run.record_demonstrations({**record_, "directory": "elsewhere"})
    run.close()


def test_what_is_no_teacher_of_this_run_is_refused(demo_dir: Path, tmp_path: Path, twin: VlaPolicy) -> None:
    rows = rows_of(demo_dir, twin)
    with pytest.raises(ConfigError, match="ticks of the demonstrations are taught"):
        rows_of(demo_dir, twin, count=len(rows.demos) + 1)
    scene = recipe().scene
    check_scene(rows.demos, scene)
    for name, value in (("scene_hash", "0" * 64), ("image_px", 112), ("protocol", "sim100")):
        with pytest.raises(ConfigError, match=f"another scene: {name}"):
            check_scene(rows.demos, {**scene, name: value})
    foreign = tmp_path / "foreign"
    shutil.copytree(demo_dir, foreign)
    (foreign / OWN_META).unlink()
    with pytest.raises(UsageError, match="does not say how it was recorded"):
        rows_of(foreign, twin)


@pytest.mark.parametrize("text", ["{", "[]", '{"recipe": {}}', '{"recipe": {"scene": {"protocol": "sim100b"}}}'])
def test_a_dataset_whose_recipe_cannot_be_read_says_so(demo_dir: Path, tmp_path: Path, twin: VlaPolicy, text) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(demo_dir, copy)
    (copy / OWN_META).write_text(text)
    with pytest.raises(IntegrityError, match="does not say how the dataset was recorded") as refused:
        rows_of(copy, twin)
    assert str(copy / OWN_META) in str(refused.value.where) and refused.value.remedy


def test_a_chunk_that_the_policys_codec_cannot_write_is_told_before_anything_is_drawn(
    demo_dir: Path, demos: Demonstrations, twin: VlaPolicy
) -> None:
    chunks = twin.stats.action.normalise(demos.targets_deg[:3])
    codec = FastCodec.fit(chunks, scale=8, vocabulary=512, byte_level=True)  # knows the levels of three chunks
    narrow = new_twin(codec=codec, stats=twin.stats, task=twin.task, seed=0, architecture=TINY)
    with pytest.raises(ConfigError, match="no symbol for") as refused:
        rows_of(demo_dir, narrow)
    assert "experience.demos" in str(refused.value)
