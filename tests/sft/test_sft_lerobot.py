"""The dataset's files are LeRobot v3.0's, by schema alone; `check_with_lerobot.py` asks the package itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sft_support import TASK, dataset_digest, fake_episode, recipe

from vla_rl.errors import IntegrityError
from vla_rl.sft import lerobot
from vla_rl.sft.demos import count
from vla_rl.sft.feature_stats import picture_histogram, picture_stats, vector_stats
from vla_rl.sft.merge import is_merged, merge
from vla_rl.sft.recipe import DemoRecipe
from vla_rl.sft.shards import STAGING, shard_paths, write_shard

PX = 8


SHARDS = [
    [fake_episode(100003, 9), fake_episode(100004, 5, failure="dropped")],
    [fake_episode(100005, 7), fake_episode(100006, 12)],
]
KEPT = [episode for episodes in SHARDS for episode in episodes if episode.failure is None]
SCHEMA = lerobot.data_schema(lerobot.features(PX))


def stage(directory: Path, *, success_only: bool = True) -> DemoRecipe:
    """Shards of hand-made episodes, not merged yet."""
    what = recipe(seeds="100003-100006", shard_episodes=2, success_only=success_only)
    what.scene["image_px"] = PX
    (directory / STAGING).mkdir(parents=True)
    for index, episodes in enumerate(SHARDS):
        write_shard(directory, index, episodes, SCHEMA, success_only=success_only)
    return what


def build(directory: Path, *, file_mb: float = 100.0) -> None:
    """The dataset of those shards."""
    what = stage(directory)
    merge(directory, what, count(directory, what), file_mb=file_mb)


def test_the_layout_is_that_of_lerobot(tmp_path: Path) -> None:
    build(tmp_path)
    info = json.loads((tmp_path / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_episodes"], info["total_frames"]) == ("v3.0", 30, 3, 28)
    assert (info["splits"], info["total_tasks"]) == ({"train": "0:3"}, 1)
    data = pq.ParquetFile(tmp_path / info["data_path"].format(chunk_index=0, file_index=0))
    assert data.num_row_groups == 3 and set(data.schema_arrow.names) == set(info["features"])
    assert info["features"]["observation.images.wrist"] == {
        "dtype": "image", "shape": [PX, PX, 3], "names": ["height", "width", "channels"],
    }  # fmt: skip
    assert info["features"]["action"]["names"][5] == "gripper.pos"
    described = json.loads(data.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    assert described["observation.images.top"] == {"_type": "Image"}
    assert described["action"] == {"feature": {"dtype": "float32", "_type": "Value"}, "length": 6, "_type": "List"}
    assert data.schema_arrow.field("observation.state").type == pa.list_(pa.float32(), 6)
    tasks = pq.read_table(tmp_path / "meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0], "task": [TASK]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    assert not (tmp_path / STAGING).exists() and is_merged(tmp_path)


def test_rows_are_the_kept_episodes_in_seed_order(tmp_path: Path) -> None:
    build(tmp_path)
    table = pq.read_table(tmp_path / "data/chunk-000/file-000.parquet")
    assert table["index"].to_pylist() == list(range(28))
    assert table["episode_index"].to_pylist() == [0] * 9 + [1] * 7 + [2] * 12
    assert table["seed"].unique().to_pylist() == [100003, 100005, 100006]
    assert table["frame_index"].to_pylist() == [*range(9), *range(7), *range(12)]
    assert np.array_equal(table["timestamp"].to_numpy(), (table["frame_index"].to_numpy() / 30).astype(np.float32))
    for name, field in (("observation.state", "state_deg"), ("action", "targets_deg")):
        expected = np.concatenate([getattr(episode, field) for episode in KEPT]).astype(np.float32)
        assert np.array_equal(lerobot.joint_values(table[name], 6), expected)
    assert table["taught"].to_pylist() == [t < len(e) - 2 for e in KEPT for t in range(len(e))]
    assert table["next.done"].to_pylist() == [t == len(e) - 1 for e in KEPT for t in range(len(e))]
    assert table["next.success"].to_pylist() == [t >= len(e) - 2 for e in KEPT for t in range(len(e))]


def test_reward_terms_add_up_to_both_documented_rewards(tmp_path: Path) -> None:
    build(tmp_path)
    table = pq.read_table(tmp_path / "data/chunk-000/file-000.parquet").slice(0, 9)
    sums = {name: float(table[name].to_numpy().sum()) for name in table.schema.names if "reward" in name}
    # Nine pinched ticks of 1 cm each, and success: 9 + 10 under v1 and under v2.
    assert sums["reward.progress"] == sums["reward.earned"] == pytest.approx(9.0, abs=1e-4)
    assert (sums["reward.success"], sums["reward.shoved"], sums["reward.tip"], sums["reward.strike"]) == (10, 0, 0, 0)
    assert sums["next.reward"] == pytest.approx(19.0, abs=1e-4)
    assert table["reward.success"].to_pylist().index(10.0) == 7


def test_pictures_are_lossless(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    assert np.array_equal(lerobot.decode_picture(lerobot.encode_png(picture)), picture)


def test_files_stay_below_their_limit_and_episodes_say_where_they_are(tmp_path: Path) -> None:
    build(tmp_path / "one")
    build(tmp_path / "many", file_mb=0.01)
    files = sorted((tmp_path / "many/data/chunk-000").iterdir())
    assert [path.name for path in files] == ["file-000.parquet", "file-001.parquet", "file-002.parquet"]
    rows = pa.concat_tables([pq.read_table(path) for path in files])
    assert rows.equals(pq.read_table(tmp_path / "one/data/chunk-000/file-000.parquet"))
    episodes = pq.read_table(tmp_path / "many/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for episode in episodes:
        path = f"data/chunk-{episode['data/chunk_index']:03d}/file-{episode['data/file_index']:03d}.parquet"
        own = pq.read_table(tmp_path / "many" / path)
        assert own["index"][0].as_py() == episode["dataset_from_index"]
        assert own["index"][-1].as_py() == episode["dataset_to_index"] - 1
    assert [(e["seed"], e["noisy"], e["taught_frames"]) for e in episodes] == [
        (100003, True, 7), (100005, True, 5), (100006, False, 10),
    ]  # fmt: skip


def test_statistics_are_those_of_the_values(tmp_path: Path) -> None:
    build(tmp_path)
    stats = json.loads((tmp_path / "meta/stats.json").read_text())
    actions = np.concatenate([e.targets_deg for e in KEPT]).astype(np.float32).astype(np.float64)
    assert stats["action"]["q10"] == pytest.approx(np.quantile(actions, 0.1, axis=0).tolist())
    assert stats["action"]["std"] == pytest.approx(actions.std(axis=0).tolist())
    assert stats["action"]["count"] == [28] and stats["taught"]["mean"] == pytest.approx([22 / 28])
    frames = np.stack([lerobot.decode_picture(data) for e in KEPT for data in e.pictures["wrist"]]) / 255.0
    wrist = stats["observation.images.wrist"]
    assert np.shape(wrist["mean"]) == (3, 1, 1) and wrist["count"] == [28]
    for name, value in (("mean", frames.mean((0, 1, 2))), ("std", frames.std((0, 1, 2)))):
        assert np.ravel(wrist[name]) == pytest.approx(value)
    assert np.ravel(wrist["q90"]) == pytest.approx(np.quantile(frames.reshape(-1, 3), 0.9, axis=0))
    own = pq.read_table(tmp_path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()[1]
    assert own["stats/action/max"] == pytest.approx(KEPT[1].targets_deg.max(axis=0).tolist(), rel=1e-6)


def test_a_bimodal_column_has_exact_quantiles() -> None:
    values = np.array([0.0] * 50 + [100.0] * 51)[:, None]
    assert vector_stats(values)["q50"] == [100.0] and vector_stats(values)["q01"] == [0.0]
    picture = np.zeros((1, 4, 3), np.uint8)
    picture[0, :, 0] = (0, 0, 255, 255)
    stats = picture_stats(picture_histogram(picture), 1)
    assert np.ravel(stats["q50"]).tolist() == [0.5, 0.0, 0.0] and np.ravel(stats["max"]).tolist() == [1.0, 0.0, 0.0]


def test_a_merge_that_was_killed_starts_again_from_the_shards(tmp_path: Path) -> None:
    build(tmp_path / "whole")
    broken = tmp_path / "broken"
    what = stage(broken)

    def killed(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(broken, what, count(broken, what), on_episode=killed)
    assert not is_merged(broken)
    (broken / "data").mkdir()  # the other moment to be killed in: between the two renames
    (broken / "data" / "junk.parquet").write_text("x")
    merge(broken, what, count(broken, what))
    assert dataset_digest(broken) == dataset_digest(tmp_path / "whole")


def test_a_damaged_shard_is_noticed(tmp_path: Path) -> None:
    what = stage(tmp_path)
    rows = shard_paths(tmp_path, 1)[0]
    rows.write_bytes(rows.read_bytes()[:-100])
    with pytest.raises(IntegrityError, match="cannot be read"):
        merge(tmp_path, what, count(tmp_path, what))
    write_shard(tmp_path, 0, SHARDS[1], SCHEMA, success_only=True)
    shard_paths(tmp_path, 0)[0].replace(rows)
    write_shard(tmp_path, 0, SHARDS[1], SCHEMA, success_only=True)
    outcome = shard_paths(tmp_path, 0)[1]
    outcome.write_text(outcome.read_text().replace('"length": 7', '"length": 8'))
    with pytest.raises(IntegrityError, match="disagree"):
        merge(tmp_path, what, count(tmp_path, what))


def test_failed_episodes_are_stored_on_demand_and_counted_always(tmp_path: Path) -> None:
    for name, success_only, kept, rows in (("some", True, 3, 28), ("all", False, 4, 33)):
        what = stage(tmp_path / name, success_only=success_only)
        counts = count(tmp_path / name, what)
        assert (counts["attempts"], counts["kept"], counts["rows"]) == (4, kept, rows)
        assert counts["failures"] == {"dropped": 1} and counts["noisy"] == [2, 2]
