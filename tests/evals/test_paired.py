"""Paired reads: what is compared, and what must not be."""

from __future__ import annotations

from typing import Any

import pytest

from vla_rl.errors import UsageError
from vla_rl.evals.paired import compare

SUMMARY = {"protocol": "sim100b", "scene_hash": "abc", "success_test": "success_strict", "temperature": 0.0}


def rows(*outcomes: tuple[bool, float | None]) -> list[dict[str, Any]]:
    return [{"seed": seed, "success": won, "reward": reward} for seed, (won, reward) in enumerate(outcomes, 300)]


BEFORE, AFTER = rows((True, 10.0), (False, 0.0), (False, 1.0)), rows((False, 4.0), (True, 9.0), (True, None))


def read(**changes: Any) -> dict[str, Any]:
    return compare(BEFORE, AFTER, before_summary=SUMMARY, after_summary=SUMMARY | changes)


def test_a_read_names_its_test_and_counts_both_directions() -> None:
    result = read()
    assert result["success_test"] == "success_strict" and (result["won"], result["lost"]) == (2, 1)
    assert result["success"]["mean"] == pytest.approx(1 / 3) and result["success"]["pairs"] == 3
    assert result["reward_cm"]["mean"] == pytest.approx(1.5) and result["reward_cm"]["pairs"] == 2


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"protocol": "sim100"}, "protocol"),
        ({"scene_hash": "def"}, "scene hash"),
        ({"scene_hash": None}, "scene hash"),
        ({"success_test": "success_documented"}, "success test"),
        ({"temperature": 0.7}, "temperature"),
    ],
)
def test_evaluations_made_under_other_conditions_are_never_compared(change: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError) as error:
        read(**change)
    key, value = next(iter(change.items()))
    assert name in error.value.what and str(SUMMARY[key]) in error.value.what and str(value) in error.value.what
    assert error.value.exit_code == 2


def test_other_seeds_are_refused() -> None:
    with pytest.raises(UsageError, match="same seeds"):
        compare(BEFORE, AFTER[:2], before_summary=SUMMARY, after_summary=SUMMARY)


def test_what_was_evaluated_elsewhere_does_not_matter_when_it_is_the_same() -> None:
    assert read(reward_mean=3.0, episodes=7)["won"] == 2
