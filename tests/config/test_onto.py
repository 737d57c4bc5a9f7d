"""Overrides on a stored configuration: only what is named changes."""

import pytest

from vla_rl.config.compose import compose
from vla_rl.config.differences import differences
from vla_rl.config.onto import compose_onto
from vla_rl.errors import ConfigError, UsageError

PARTS, FIXED = ("reward", "geometry"), ("geometry.draws",)


@pytest.fixture(scope="module")
def tree():
    return compose("config", ["experiment=quickstart", "geometry.draws=5", "reward.success_bonus=7"]).tree


def onto(tree, *overrides):
    return compose_onto("config", tree, overrides, PARTS, fixed=FIXED).tree


def test_a_key_changes_alone_and_the_stored_tree_not_at_all(tree):
    new = onto(tree, "geometry.advantage_clip=2", "reward.progress_floor_cm=null")
    assert differences(tree, new) == {
        "geometry.advantage_clip": (None, 2), "reward.progress_floor_cm": (-4.0, None),
    }  # fmt: skip
    assert tree["geometry"]["advantage_clip"] is None


def test_an_option_replaces_its_part_whatever_the_order_and_keeps_what_is_fixed(tree):
    new = onto(tree, "reward.shove_penalty=1.0", "reward=v2", "geometry=documented")
    assert new["reward"]["_target_"].endswith("RewardV2") and new["reward"]["shove_penalty"] == 1.0
    assert new["reward"]["success_bonus"] == 10.0
    assert new["geometry"]["draws"] == 5 and new["geometry"]["seeds"] == 8


@pytest.mark.parametrize("override", ["optim.lr=1", "geometry.draws=4", "run.steps=3", "reward", "--reward=v2"])
def test_other_parts_and_fixed_keys_are_refused(tree, override):
    with pytest.raises(UsageError, match="cannot be laid onto"):
        onto(tree, override)


@pytest.mark.parametrize(
    "override",
    ["reward=v9", "reward.tip=1", "geometry.advantage_clip=-1", "geometry.advantage=best", "reward.tip_penalty=abc",
     "geometry.min_group_std_cm=[1]", "geometry.advantage_clip={"],
)  # fmt: skip
def test_what_is_no_option_key_or_value_is_refused(tree, override):
    with pytest.raises(ConfigError):
        onto(tree, override)
