"""The scene that a policy was trained in, and the one it acts in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vla_rl.errors import ConfigError
from vla_rl.evals.scene import check_scene, scene_facts, scene_of

PLAIN = {"protocol": "sim100b", "scene_hash": "a" * 64, "look": "plain"}
LENS = {"protocol": "sim100b", "scene_hash": "b" * 64, "look": "lens"}


def test_the_scene_of_the_training_is_the_same() -> None:
    assert check_scene(PLAIN, {**PLAIN, "max_replans": 30, "image_px": 112}, allow=False) == "same"


def test_another_scene_is_refused_and_both_are_named() -> None:
    with pytest.raises(ConfigError) as error:
        check_scene(PLAIN, LENS, allow=False)
    assert "aaaaaaaaaaaa" in error.value.what and "bbbbbbbbbbbb" in error.value.what and "lens" in error.value.what
    assert error.value.remedy and "policy.allow_scene_mismatch=true" in error.value.remedy


def test_another_scene_may_be_asked_for_and_that_is_what_is_recorded() -> None:
    assert check_scene(PLAIN, LENS, allow=True) == "mismatch allowed"
    assert check_scene(PLAIN, PLAIN, allow=True) == "same"


@pytest.mark.parametrize(
    ("trained", "here"), [(None, PLAIN), (PLAIN, None), (None, None), ({}, PLAIN), (PLAIN, {"protocol": None})]
)
def test_an_unknown_scene_is_allowed_and_recorded_as_unknown(trained: Any, here: Any) -> None:
    assert check_scene(trained, here, allow=False) == "unknown"


def test_without_a_hash_the_protocol_decides() -> None:
    assert check_scene({"protocol": "sim100"}, {"protocol": "sim100", "scene_hash": "x"}, allow=False) == "same"
    with pytest.raises(ConfigError):
        check_scene({"protocol": "sim100"}, PLAIN, allow=False)


def test_the_facts_of_an_evaluation_come_from_policy_and_simulator() -> None:
    pool = SimpleNamespace(describe=lambda: dict(LENS))
    policy = SimpleNamespace(training_scene=PLAIN, allow_scene_mismatch=True)
    assert scene_facts(policy, pool) == {**LENS, "training_scene_match": "mismatch allowed"}
    policy.allow_scene_mismatch = False
    with pytest.raises(ConfigError):
        scene_facts(policy, pool)


def test_policies_and_simulators_that_say_nothing_are_unknown() -> None:
    assert scene_of(object()) == {}
    assert scene_facts(object(), object()) == {"training_scene_match": "unknown"}
