"""The names that the linter knows are those that a run writes."""

import json

from bench import DRAFT, TINY, prereg

from vla_rl.cli.prereg.collecting import LEFT_OUT
from vla_rl.prereg.metrics import EPISODE, SERIES


def test_the_known_names_are_those_of_a_real_run(launched):
    run = launched.root / "outputs/prereg/E1/main-baseline/attempt_01"
    row = json.loads((run / "train.jsonl").read_text().splitlines()[0])
    assert {name for name, value in row.items() if not isinstance(value, list | dict | str)} == SERIES
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    played = {name for row in episodes if row["phase"] == "eval" for name in row if not name.startswith("reward_")}
    assert played - LEFT_OUT == EPISODE


def test_a_misspelt_metric_is_named_before_anything_runs(bench, capsys):
    bench.draft(DRAFT.replace("metric: progress_final_cm", "metric: progress_finl_cm").replace("clip_fraction", "clip"))
    assert prereg("freeze", "E1", *TINY) == 2
    told = capsys.readouterr().err
    assert "progress_finl_cm" in told and "did you mean progress_final_cm?" in told and "'clip'" in told


def test_an_attempt_that_can_go_on_is_not_begun_anew(active, capsys):
    assert prereg("launch", "E1", "--set", "run.max_wall_s=0") == 0  # ends at once, and can go on
    assert prereg("launch", "E1", "--check") == 4
    assert "a fresh start would be a choice between runs" in capsys.readouterr().err
    assert prereg("launch", "E1", "--resume", "--check") == 0
