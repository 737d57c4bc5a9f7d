"""`vla-rl eval` as a user meets it: the expert and the shipped base on real episodes, films, traces, the sheet."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vla_rl import paths

FUNNEL = ("touched", "pinched", "lifted", "success_documented", "success_strict")


def vla_rl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vla_rl.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("eval") / "expert"
    done = vla_rl(
        "eval", "policy=expert", "policy.workers=1", "eval.seeds=300,302", "eval.traces=true", "--video", "302",
        "--json", f"run.dir={directory}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return directory, json.loads(done.stdout)


def test_the_record_has_a_summary_episodes_and_both_tests(expert: tuple[Path, dict[str, Any]]) -> None:
    directory, record = expert
    assert json.loads((directory / "eval.json").read_text()) == record
    summary = record["summary"]
    assert (summary["episodes"], summary["successes"], summary["success_test"]) == (2, 2, "success_strict")
    assert all(summary[stage] == 2 for stage in FUNNEL) and summary["strikes"] == 0
    assert [row["seed"] for row in record["episodes"]] == [300, 302]
    assert all(row["success_documented"] and row["success_strict"] for row in record["episodes"])
    assert sum(row["episodes"] for row in summary["reach"]) == 2 and summary["carry_speed_median_cm_s"] > 1


def test_only_the_named_seed_is_filmed_and_judged_frozen(expert: tuple[Path, dict[str, Any]]) -> None:
    import av

    directory, record = expert
    assert record["files"]["videos"] == ["videos/seed000302_draw00.mp4"]
    with av.open(str(directory / record["files"]["videos"][0])) as film:
        assert film.streams.video[0].frames == record["episodes"][1]["ticks"] + 1
    assert [row["frozen"] for row in record["episodes"]] == [None, False]
    assert record["episodes"][1]["picture_motion"] > 1.41
    assert (record["summary"]["filmed"], record["summary"]["frozen"]) == (1, 0)


def test_traces_hold_every_tick_and_agree_with_the_metrics(expert: tuple[Path, dict[str, Any]]) -> None:
    directory, record = expert
    rows = [json.loads(line) for line in (directory / "traces.jsonl").read_text().splitlines()]
    assert [row["seed"] for row in rows] == [300, 302]
    for row, episode in zip(rows, record["episodes"], strict=True):
        assert len(row["distance_cm"]) == len(row["grip"]) == episode["ticks"] + 1
        assert row["distance_cm"][0] == round(episode["initial_cm"], 3)
        assert min(row["distance_cm"]) == round(episode["min_cm"], 3)
        assert row["grip"][1:].count("3") == episode["pinch_ticks"]


def test_the_contact_sheet_is_a_picture(expert: tuple[Path, dict[str, Any]]) -> None:
    directory, record = expert
    with Image.open(directory / record["files"]["contact_sheet"]) as sheet:
        assert sheet.format == "PNG" and sheet.width > 2 * 3 * 96 and len(sheet.getcolors(1_000_000) or []) > 100


@pytest.mark.slow
def test_a_policy_is_filmed_from_its_own_chunks(tmp_path: Path) -> None:
    directory = tmp_path / "policy"
    done = vla_rl(
        "eval", "eval.seeds=300-301", "sim.max_ticks=45", "pool.workers=1", "sampler.batch_rows=2", "run.device=cpu",
        f"run.dir={directory}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((directory / "eval.json").read_text())
    assert record["files"]["videos"] == ["videos/seed000300_draw00.mp4"]
    assert (directory / "videos" / "seed000300_draw00.mp4").is_file() and (directory / "contact_sheet.png").is_file()
    assert [row["frozen"] for row in record["episodes"]] == [False, None]
    assert "by the strict test" in done.stderr and "reach envelope" in done.stderr and " 300 " in done.stderr
    assert "contact_sheet.png" in done.stderr and done.stdout == ""


@pytest.mark.slow
def test_no_video_and_no_traces_run_nothing_again(tmp_path: Path) -> None:
    done = vla_rl(
        "eval", "policy=expert", "policy.workers=1", "eval.seeds=300", "--video", "none", f"run.dir={tmp_path / 'out'}"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.yaml", "contact_sheet.png", "eval.json"]
    assert "replay" not in done.stderr and "0 filmed" in done.stderr


@pytest.mark.slow
def test_a_policy_in_another_scene_needs_leave_and_its_result_says_so(tmp_path: Path) -> None:
    shutil.copytree(paths.bundled_base("tiny_start"), tmp_path / "policy")
    trained = {"protocol": "sim100b", "scene_hash": "0" * 64, "look": "another"}
    (tmp_path / "policy" / "training_scene.json").write_text(json.dumps(trained))
    arguments = [
        "eval", f"policy.checkpoint={tmp_path / 'policy'}", "eval.seeds=300", "sim.max_ticks=30", "pool.workers=1",
        "sampler.batch_rows=1", "run.device=cpu", "--video", "none", "--json", f"run.dir={tmp_path / 'out'}",
    ]  # fmt: skip
    refused = vla_rl(*arguments)
    assert refused.returncode == 2 and "policy.allow_scene_mismatch=true" in refused.stderr, refused.stderr
    assert "000000000000" in refused.stderr and not (tmp_path / "out").exists()
    allowed = vla_rl(*arguments, "policy.allow_scene_mismatch=true")
    assert allowed.returncode == 0, allowed.stderr
    summary = json.loads(allowed.stdout)["summary"]
    assert (summary["training_scene_match"], summary["protocol"]) == ("mismatch allowed", "sim100b")
    assert len(summary["scene_hash"]) == 64


def test_a_record_says_in_which_format_was_sampled(tmp_path: Path) -> None:
    done = vla_rl(
        "eval", "eval.seeds=300", "eval.slots=1", "sampler.batch_rows=1", "sampler.dtype=bfloat16", "sim.max_ticks=30",
        "pool=serial", "--json", f"run.dir={tmp_path / 'short'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["policy"]["sampled_in"] == "bfloat16"
