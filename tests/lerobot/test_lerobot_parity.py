"""LeRobot is not installed here: our answers are held against what is kept of its own, and the kept result is whole.

`make test-lerobot RECORD=1` makes both anew; it is due when a script of the comparison changes.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import parity_compare
import parity_ours
import pytest
import torch
from parity_compare import ARRAYS, BINLESS, BINS, HERE, KEPT, LABELS, LOADS, RESULT, compared, digests, thinned
from parity_exchange import Answers

WHAT = [*(line.what for line in ARRAYS), BINS, LABELS, BINLESS, *LOADS]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Checkpoints, questions and answers, made anew."""
    root, threads = tmp_path_factory.mktemp("parity"), torch.get_num_threads()
    parity_ours.main(root)
    torch.set_num_threads(threads)
    return thinned(Answers.load(root / "ours"))


@pytest.fixture(scope="module")
def theirs() -> Answers:
    return Answers.load(KEPT)


@pytest.fixture(scope="module")
def result() -> dict:
    return json.loads(RESULT.with_suffix(".json").read_text())


def test_our_answers_are_those_that_lerobot_gave(ours: Answers, theirs: Answers):
    lines = compared(ours, theirs)
    assert [line.what for line in lines] == WHAT
    assert [asdict(line) for line in lines if not line.ok] == []


def test_a_difference_fails_its_own_line_and_no_other(ours: Answers, theirs: Answers):
    for line in ARRAYS:
        name = next(n for n in theirs.arrays if f"/{line.theirs or line.ours}/" in f"/{n}/")
        moved = theirs.arrays[name].copy()
        moved[len(moved) // 2] += max(4 * line.limit, 1 if moved.dtype.kind == "i" else 4e-5)
        found = compared(ours, Answers({**theirs.arrays, name: moved}, theirs.facts))
        assert [other.what for other in found if not other.ok] == [line.what]


def test_what_is_missing_or_of_another_shape_fails(ours: Answers, theirs: Answers):
    for change in (lambda a: None, lambda a: a[:-1], lambda a: np.full_like(a, np.nan)):
        arrays = {n: a for n, a in theirs.arrays.items() if n != "export/flow_chunk/3"}
        if (changed := change(theirs.arrays["export/flow_chunk/3"])) is not None:
            arrays["export/flow_chunk/3"] = changed
        lines = {line.what: line for line in compared(ours, Answers(arrays, theirs.facts))}
        assert not lines["flow from the same noise, normalised, before it is clamped"].ok
    nothing = compared(Answers({}, ours.facts), theirs)
    assert not any(line.ok for line in nothing if line.what in [a.what for a in ARRAYS] or line.what == BINS)


def test_a_bin_may_differ_at_a_tie_alone(ours: Answers, theirs: Answers):
    name = "tables_rig/state_bins"
    place = (np.nan_to_num(ours.arrays["tables_rig/state"]) + 1) / 2 * 255
    for at, ok in (
        (int(np.abs(place - np.floor(place) - 0.5).argmax()), False),
        (int(np.abs(place - np.floor(place) - 0.5).argmin()), True),
    ):
        state, bins = ours.arrays["tables_rig/state"].copy(), theirs.arrays[name].copy()
        if ok:  # one of the questions is moved onto a tie
            state[at] = (np.floor(place[at]) + 0.5) / 255 * 2 - 1
        bins[at] += 1
        mine = Answers({**ours.arrays, "tables_rig/state": state}, ours.facts)
        lines = {line.what: line for line in compared(mine, Answers({**theirs.arrays, name: bins}, theirs.facts))}
        assert lines[BINS].ok is ok


@pytest.mark.parametrize("change", [{"missing": ["x"]}, {"unexpected": ["x"]}, {"equal": 126}, {"sha256": "0"}])
def test_a_tensor_that_does_not_fit_fails(ours: Answers, theirs: Answers, change: dict):
    held = {**theirs.facts["export/weights"], **change}
    lines = compared(ours, Answers(theirs.arrays, {**theirs.facts, "export/weights": held}))
    assert [line.what for line in lines if not line.ok] == [LOADS[1]]


def test_the_kept_result_is_whole_and_every_line_holds(result: dict):
    assert [line["what"] for line in result["lines"]] == WHAT
    limits = {line.what: line.limit for line in ARRAYS}
    for line in result["lines"]:
        assert line["ok"] is True and line["numbers"] > 0 and line["size"] > 0
        assert line["limit"] == limits.get(line["what"], 0) and 0 <= line["difference"] <= line["limit"]
    assert date(2026, 1, 1) < date.fromisoformat(result["date"]) <= datetime.now(UTC).date()


def test_the_kept_result_was_made_by_these_scripts(result: dict):
    assert result["sha256"] == digests(), "run make test-lerobot RECORD=1"


def test_the_kept_result_names_the_versions_that_are_installed_for_it(result: dict):
    pinned = dict(
        line.split("==") for line in (HERE / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    used = result["versions"]["lerobot"]
    assert {"lerobot", "torch", "transformers", "tokenizers", "numpy"} <= set(used)
    assert all(pinned[package] == version for package, version in used.items())
    assert {"torch", "transformers", "tokenizers", "numpy"} <= set(result["versions"]["vla_rl"])
    world = result["versions"]["world"]
    assert {"lerobot", "torch", "gymnasium", "mujoco"} <= set(world)
    assert all(
        pinned[name] == version for name, version in world.items() if name not in ("vla-rl", "lerobot_env_vla_rl")
    )
    makefile = (Path(parity_compare.__file__).parents[2] / "Makefile").read_text()
    assert f"'lerobot[molmoact2,dataset]=={used['lerobot']}'" in makefile


def test_the_kept_result_holds_both_evaluations_and_all_of_it_is_as_it_must_be(result: dict):
    lines = {line["what"]: line for line in result["world"]}
    assert all(line["ok"] is True and line["told"] for line in lines.values())
    for begins, told in (
        ("lerobot-eval --env.type=vla_rl", "2 episodes"),
        ("lerobot-eval --seed=100003 is refused", "seed 100003"),
        ("lerobot-train fits an ACT to our demonstrations", "1 episode"),
        ("vla-rl eval policy=lerobot", "2 episodes"),
        ("vla-rl compare", "two policies"),
        ("actions of both programs", "0 apart"),
        ("metrics of both programs", "0 differ"),
        ("success under LeRobot of the scripted expert", "2 of 2"),
        ("the same, the hand kept closed", "0 of 2 (documented test: 2 of 2)"),
        ("a policy in the joint frame v21", "v21, "),
        ("modules of our policies", "[]"),
    ):
        assert [told in line["told"] for what, line in lines.items() if what.startswith(begins)] == [True], begins
    assert sum("is refused" in what for what in lines) >= 12


def test_the_plugin_has_the_name_that_lerobot_looks_for():
    root = Path(parity_compare.__file__).parents[2] / "plugins" / "lerobot_env_vla_rl"
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["name"].startswith("lerobot_env_") and (root / project["name"] / "__init__.py").is_file()
    ours = tomllib.loads((root.parents[1] / "pyproject.toml").read_text())["project"]
    assert ours["optional-dependencies"]["lerobot"] == [next(d for d in project["dependencies"] if "lerobot" in d)]
    assert ours["name"] in project["dependencies"]
