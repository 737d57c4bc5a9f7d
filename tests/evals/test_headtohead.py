"""Two records head to head: what is told, what it is called, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from vla_rl.cli.main import main
from vla_rl.errors import UsageError
from vla_rl.evals.headtohead import head_to_head
from vla_rl.report.headtohead import head_to_head as table

SUMMARY = {
    "protocol": "sim100b", "scene_hash": "abc", "success_test": "success_strict", "max_replans": 30, "temperature": 0.0,
    "episodes": 6, "successes": 3, "touched": 6, "pinched": 5, "lifted": 4, "success_documented": 4,
    "success_strict": 3, "knockaways": 1, "tipped": 0, "carries": 4, "carry_speed_median_cm_s": 6.1,
    "expert_carry_speed_median_cm_s": 8.9, "reward_mean": 7.0, "nll_mean": 0.5,
}  # fmt: skip
A_WINS, B_WINS = (300, 301, 302), (301, 303, 304, 305)


def record(wins: tuple[int, ...], digest: str | None = "one", seeds: Any = range(300, 306), **changes: Any) -> dict:
    episodes = [{"seed": seed, "success": seed in wins, "reward": 10.0 * (seed in wins)} for seed in seeds]
    policy = {"name": digest or "scripted expert", "digest": digest, "frames": "own"}
    return {"policy": policy, "summary": {**SUMMARY, **changes}, "episodes": episodes}


def test_it_tells_who_solves_what_and_whether_that_could_be_chance() -> None:
    got = head_to_head(record(A_WINS), record(B_WINS, "two", successes=4))
    assert got["kind"] == "two policies" and got["seeds"] == "300-305" and got["success_test"] == "success_strict"
    assert (got["only_a"], got["only_b"], got["both"], got["neither"]) == ([300, 302], [303, 304, 305], 1, 0)
    assert got["mcnemar_p"] == 1.0  # 2 against 3: P(X <= 2) of 5 is one half
    assert got["success"]["mean"] == pytest.approx(1 / 6) and got["reward_cm"]["mean"] == pytest.approx(10 / 6)
    assert (got["a"]["successes"], got["b"]["successes"], got["a"]["carry_speed_median_cm_s"]) == (3, 4, 6.1)
    assert json.loads(json.dumps(got, allow_nan=False)) == got


@pytest.mark.parametrize(
    ("digests", "temperatures", "kind"),
    [
        (("one", "one"), (0.0, 0.7), "greedy-sampled gap"),
        ((None, None), (0.7, 0.0), "greedy-sampled gap"),
        ((None, None), (0.0, 0.0), "same policy"),
        (("one", "two"), (0.0, 0.7), "two policies, decoded differently"),
        (("one", "two"), (0.7, 0.7), "two policies"),
        ((None, "two"), (0.0, 0.0), "two policies"),
        (("one", "one"), (0.7, 1.0), "same policy"),
    ],
)
def test_it_is_called_what_it_is(digests: tuple, temperatures: tuple, kind: str) -> None:
    sides = [record(A_WINS, d, temperature=t) for d, t in zip(digests, temperatures, strict=True)]
    assert head_to_head(*sides)["kind"] == kind


def test_a_policy_and_its_blind_self_are_two_policies() -> None:
    blind = record((), temperature=0.7)
    blind["policy"] = blind["policy"] | {"frames": "foreign"}
    assert head_to_head(record(A_WINS), blind)["kind"] == "two policies, decoded differently"


def test_policies_without_weights_are_told_apart_by_their_names() -> None:
    other = record(B_WINS, None)
    other["policy"] = other["policy"] | {"name": "another expert"}
    assert head_to_head(record(A_WINS, None), other)["kind"] == "two policies"


def test_a_record_that_does_not_name_its_policy_is_refused() -> None:
    nameless = record(B_WINS)
    del nameless["policy"]
    with pytest.raises(UsageError, match="record B does not say which policy"):
        head_to_head(record(A_WINS), nameless)
    with pytest.raises(UsageError, match="record A does not say which policy"):
        head_to_head(record(A_WINS) | {"policy": {"name": "one"}}, record(B_WINS))


def test_everything_that_differs_is_named() -> None:
    other = record(B_WINS, protocol="sim100", scene_hash="def", max_replans=3)
    with pytest.raises(UsageError) as error:
        head_to_head(record(A_WINS), other)
    for word in ("protocol", "sim100b and sim100", "scene hash", "abc and def", "longest episode", "30 and 3"):
        assert word in error.value.what
    with pytest.raises(UsageError, match="success test"):
        head_to_head(record(A_WINS), record(B_WINS, success_test="success_documented"))


def test_other_seeds_are_named() -> None:
    with pytest.raises(UsageError, match="only A has 305, only B has 306-307"):
        head_to_head(record(A_WINS), record(A_WINS, seeds=[*range(300, 305), 306, 307]))


def test_the_table_shows_both_sides_and_the_expert() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))
    console.print(table(head_to_head(record(A_WINS), record(B_WINS, temperature=0.7, nll_mean=None))))
    text = console.export_text()
    assert "greedy-sampled gap, seeds 300-305" in text and "expert 8.90" in text and "T 0.7" in text
    assert "only A (2): 300,302" in text and "only B (3): 303-305" in text and "p = 1.0000" in text


def test_the_command_reads_directories_and_files(tmp_path: Any, capsys: Any) -> None:
    for name, wins in (("a", A_WINS), ("b", B_WINS)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "eval.json").write_text(json.dumps(record(wins, name)))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b" / "eval.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == head_to_head(record(A_WINS, "a"), record(B_WINS, "b"))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path)]) == 2
    assert "no finished evaluation" in capsys.readouterr().err
    (tmp_path / "b" / "eval.json").write_text("{")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 5
    (tmp_path / "b" / "eval.json").write_text("[]")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
