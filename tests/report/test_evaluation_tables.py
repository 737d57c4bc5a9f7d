"""The tables and the contact sheet of an evaluation, as a person meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from vla_rl.evals.summary import summarise
from vla_rl.report.evaluation import evaluation, flags, outcome
from vla_rl.report.progress import ProgressView
from vla_rl.report.sheet import Strip, contact_sheet, save_sheet
from vla_rl.report.tables import before_and_after, evaluations, steps
from vla_rl.report.training import TrainingView
from vla_rl.rl.events import StepDone
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.sim.metrics import TickSample, episode_metrics


def sample(distance_cm: float, grip: int | None = 0, z_m: float = 0.0, upright: float = 1.0) -> TickSample:
    return TickSample(
        distance_cm / 100, z_m, upright, boat_speed_m_s=0.0, boat_spin_rad_s=0.0, max_speed=0.0, grip=grip
    )


KINDS = (
    [sample(9), *[sample(8, 3)] * 40, *[sample(1, z_m=0.012)] * 15],
    [sample(9), sample(1, 3, z_m=0.012)],
    [sample(12), sample(11, 3, z_m=0.05), sample(13.5, upright=0.1)],
    [sample(7), sample(7)],
)


def evaluated(trials: int, first_seed: int = 300) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    episodes = [
        Episode(
            EpisodeSpec(first_seed + i),
            episode_metrics(KINDS[i % 4], reset_strikes=0, terminate_on="success_strict").as_dict(),
            1, 1, 0.1,
        )
        for i in range(trials)
    ]  # fmt: skip
    scene = {"protocol": "sim100b-spawn2", "scene_hash": "0123456789abcdef", "training_scene_match": "mismatch allowed"}
    summary = summarise(episodes, {e.spec.seed: -3.21 for e in episodes}, temperature=0.7, scene=scene)
    return summary, [{"seed": e.spec.seed, **e.metrics} for e in episodes]


def printed(width: int, trials: int = 100, first_seed: int = 300) -> list[str]:
    console = Console(width=width, force_terminal=False, record=True, file=open("/dev/null", "w"))
    console.print(evaluation(*evaluated(trials, first_seed), title="bundled:tiny_start, own frames", width=width))
    return console.export_text().splitlines()


@pytest.mark.parametrize(("width", "first_seed"), [(80, 300), (120, 300), (80, 10000), (80, 700000)])
def test_every_seed_is_there_whole_at_any_width(width: int, first_seed: int) -> None:
    lines = printed(width, first_seed=first_seed)
    assert all(len(line) <= width for line in lines) and "…" not in "".join(lines)
    words = " ".join(lines).split()
    assert all(words.count(str(seed)) == 1 for seed in range(first_seed + 12, first_seed + 90))


def test_a_hundred_seeds_take_a_screen_of_lines() -> None:
    per_seed = [line for line in printed(80) if any(f" {seed} " in f" {line}" for seed in range(300, 400))]
    assert len(per_seed) <= 40
    assert len([line for line in printed(120) if any(f" {s} " in f" {line}" for s in range(300, 400))]) < len(per_seed)


def test_seeds_run_down_the_columns_in_their_order() -> None:
    line = next(line for line in printed(80, trials=12) if "300" in line)
    assert [word for word in line.split() if word.startswith("3")] == ["300", "304", "308"]


def test_the_tables_name_the_test_the_funnel_and_the_scene() -> None:
    text = "\n".join(printed(80))
    assert "25/100 by the strict test" in text and "50" in text
    assert "0.169 to 0.347" in text and "0.398 to 0.602" in text  # Clopper-Pearson of 25 and 50 in 100
    assert "100 % of touched" in text and "33 % of pinched" in text
    assert "50 timeout_holding" in text and "sim100b-spawn2, 0123456789ab" in text and "mismatch allowed" in text
    assert "-3.21 cm" in text


def test_an_outcome_is_the_strictest_test_passed_or_the_furthest_stage() -> None:
    _, episodes = evaluated(4)
    assert [outcome(e) for e in episodes] == ["strict", "one tick", "lifted", "-"]
    assert [flags(e) for e in episodes] == ["", "", "kt", ""]
    assert outcome({"success": True}) == "-"  # a simulator of another kind


def test_a_paired_table_names_its_test() -> None:
    summary, _ = evaluated(4)
    change = {"mean": 0.0, "low": -0.1, "high": 0.1}
    read = {"success_test": "success_strict", "success": change, "reward_cm": None}
    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    console.print(before_and_after(summary, summary, read))
    assert "success (strict test)" in console.export_text()


def test_evaluations_in_between_are_one_line_each_with_their_change_from_the_first() -> None:
    summary, _ = evaluated(4)
    rows = [{**summary, "step": step} for step in (0, 5, 12)]
    read = {"success": {"mean": 0.25, "low": 0.0, "high": 0.5}}
    console = Console(width=120, record=True, file=open("/dev/null", "w"))
    console.print(evaluations(rows, [read, read]))
    lines = console.export_text().splitlines()
    assert sum("+25.00 points [+0.00, +50.00]" in line for line in lines) == 2
    assert [line.split()[1] for line in lines[-4:-1]] == ["0", "5", "12"]


def test_a_step_whose_update_was_undone_says_so() -> None:
    row = {
        "step": 3, "successes": 1, "episodes": 8, "reward_mean": 2.0, "groups_kept": 1, "groups_total": 2,
        "mean_ratio": 1.0, "clip_fraction": 0.0, "grad_norm": 0.5, "rollout_s": 4.0, "update_s": 1.0,
    }  # fmt: skip
    for undone in (True, False):
        console = Console(width=100, record=True, file=open("/dev/null", "w"))
        TrainingView(ProgressView(console)).on_event(StepDone(3, 9, {**row, "rolled_back": undone}))
        console.print(steps([{**row, "rolled_back": undone}]))
        told = console.export_text().splitlines()
        assert [line.endswith("update 1 s, undone") for line in told if "step 3/9" in line] == [undone]
        assert sum("3, undone" in line for line in told) == undone


def strips(count: int) -> list[Strip]:
    colours = [np.full((96, 96, 3), level, np.uint8) for level in (10, 120, 240)]
    return [Strip((colours[0], colours[1], colours[2]), f"{300 + i} strict", i % 2 == 0) for i in range(count)]


def test_the_contact_sheet_shows_start_middle_and_end_of_every_episode(tmp_path: Path) -> None:
    save_sheet(tmp_path / "sheet.png", strips(9), "nine")
    with Image.open(tmp_path / "sheet.png") as image:
        sheet = np.asarray(image.convert("RGB"))
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    for level in (10, 120, 240):
        assert (sheet == level).all(axis=-1).sum() == pytest.approx(9 * 96 * 96, rel=0.01)
    first_row = sheet[60]
    seen = [v for v in first_row[:, 0].tolist() if v in (10, 120, 240)]
    assert seen[:288] == [10] * 96 + [120] * 96 + [240] * 96


def test_the_sheet_grows_by_rows_of_four() -> None:
    heights = [contact_sheet(strips(n), "").height for n in (1, 4, 5, 8)]
    widths = [contact_sheet(strips(n), "").width for n in (1, 4, 5)]
    assert heights[0] == heights[1] < heights[2] == heights[3] and widths[0] < widths[1] == widths[2]
