"""Two serving paths on the same seeds: what passes, what does not, and what is not judged at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from vla_rl.cli.main import main
from vla_rl.errors import UsageError
from vla_rl.evals.parity import Bounds, judge
from vla_rl.report.parity import parity as table

DOCUMENTED = Bounds(successes=2, interacted=0.30)
SUMMARY = {
    "protocol": "sim100b", "scene_hash": "abc", "success_test": "success_strict", "max_replans": 30, "temperature": 0.0,
    "touched": 6, "pinched": 5, "lifted": 4, "success_documented": 4, "success_strict": 3, "knockaways": 1, "tipped": 0,
    "carries": 4, "carry_speed_median_cm_s": 6.1, "expert_carry_speed_median_cm_s": 8.9, "reward_mean": 7.0,
    "nll_mean": 0.5,
}  # fmt: skip


def record(successes: int, interacted: int | None, *, n: int = 20, digest: str = "one", **changes: Any) -> dict:
    episodes = [
        {
            "seed": 300 + i, "success": i < successes, "interacted": None if interacted is None else i < interacted,
            "reward": 10.0 * (i < successes), "ticks": 100, "tokens": 60,
        }
        for i in range(n)
    ]  # fmt: skip
    summary = {**SUMMARY, "episodes": n, "successes": successes, **changes}
    return {"policy": {"name": digest, "digest": digest, "frames": "own"}, "summary": summary, "episodes": episodes}


@pytest.mark.parametrize(
    ("b", "passed"),
    [
        ((2, 20), True),
        ((4, 20), True),
        ((5, 20), False),
        ((0, 14), True),  # the documented bound lets this pass, at exactly 0.30
        ((0, 13), False),
    ],
)
def test_both_bounds_have_to_hold_and_their_edge_is_inside(b, passed):
    verdict = judge(record(2, 20), record(*b), DOCUMENTED)
    assert verdict["passed"] is passed
    assert verdict["successes_difference"] == b[0] - 2
    assert verdict["interacted_difference"] == pytest.approx((b[1] - 20) / 20)
    assert [("beyond" in reason) for reason in verdict["reasons"]] == [abs(b[0] - 2) > 2, 20 - b[1] > 6]
    assert json.loads(json.dumps(verdict, allow_nan=False)) == verdict


def test_the_bounds_are_two_sided():
    assert judge(record(5, 20), record(2, 20), DOCUMENTED)["passed"] is False
    assert judge(record(2, 13), record(2, 20), DOCUMENTED)["passed"] is False


def test_seeds_that_agree_in_every_number_are_counted_and_the_others_told():
    other = record(2, 20)
    other["episodes"][3] |= {"tokens": 61, "reward": 0.5}
    other["episodes"][4] |= {"frozen": True}  # of filming, not of the episode
    verdict = judge(record(2, 20), other, DOCUMENTED)
    assert verdict["identical"] == 19
    (row,) = [row for row in verdict["per_seed"] if not row["identical"]]
    assert row["seed"] == 303 and row["tokens"] == [60, 61] and row["reward_change_cm"] == 0.5
    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    console.print(table(verdict))
    text = console.export_text()
    assert "19 of 20" in text and "303" in text and "PASS" in text and "304" not in text


def test_a_number_that_one_side_lacks_is_a_difference():
    other = record(2, 20)
    del other["episodes"][0]["tokens"]
    assert judge(record(2, 20), other, DOCUMENTED)["identical"] == 19


@pytest.mark.parametrize("changes", [{"temperature": 0.7}, {"scene_hash": "def"}, {"max_replans": 15}])
def test_another_task_or_temperature_is_not_judged(changes):
    with pytest.raises(UsageError, match="differ in their"):
        judge(record(2, 20), record(2, 20, **changes), DOCUMENTED)


def test_other_seeds_and_missing_facts_are_refused():
    with pytest.raises(UsageError, match="different seeds"):
        judge(record(2, 20), record(2, 20, n=19), DOCUMENTED)
    with pytest.raises(UsageError, match="record B does not say which episodes interacted"):
        judge(record(2, 20), record(2, None), DOCUMENTED)


def test_the_command_judges_two_records_and_says_so_by_its_exit_code(tmp_path, capsys):
    for name, each in (("a", record(2, 20)), ("b", record(9, 20, digest="two"))):
        (tmp_path / f"{name}.json").write_text(json.dumps(each))
    a, b = (str(tmp_path / f"{name}.json") for name in "ab")
    assert main(["parity", a, b, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["successes_difference"] == 7
    assert main(["parity", a, b, "parity.max_success_difference=7"]) == 0
    assert main(["parity", a]) == 2 and main(["parity", a, b, "eval.seeds=300-301"]) == 2
    assert main(["parity", "--a", "run.max_wall_s=3", "--b", ""]) == 2
    assert main(["parity", a, b, "parity.max_interacted_difference=2"]) == 2
    assert main(["parity", a, b, f"parity.dir={tmp_path / 'out'}"]) == 2 and not (tmp_path / "out").exists()
