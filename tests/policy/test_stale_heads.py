"""A head whose trunk has moved since it was trained: recorded by what moved it, told, and served on request alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from expert_support import SIZES, taught
from policy_support import MINI, TASK
from release_support import TAG
from test_expert_files import load

from vla_rl.errors import ConfigError
from vla_rl.policy.expert_files import new_expert
from vla_rl.policy.export import export_policy
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.heads import HeadState
from vla_rl.policy.metadata import read_metadata
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, new_twin
from vla_rl.policy.sources import Sources
from vla_rl.policy.validate import validate

FACTS = {"kind": "test", "name": "facts"}


@torch.no_grad()
def move_trunk(policy: VlaPolicy) -> None:
    """What an update of the token head does."""
    policy.model.model.language_model.layers[0].mlp.down_proj.weight[0, 0] += 0.25


def both_heads(codec: FastCodec, stats: NormStats, directory: Path) -> Path:
    policy = new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI)
    taught(new_expert(policy, SIZES, seed=0))
    policy.heads = {"ar": HeadState("joint"), "flow": HeadState("joint")}
    policy.save(directory)
    return directory


def test_an_export_of_a_trunk_that_moved_without_its_expert_says_that_the_flow_head_is_stale(codec, stats, tmp_path):
    before = both_heads(codec, stats, tmp_path / "before")
    policy = load(before, "ar")
    move_trunk(policy)
    export_policy(policy, tmp_path / "after", source=FACTS)
    assert read_metadata(tmp_path / "after").heads == {
        "ar": HeadState("rl"), "flow": HeadState("joint", stale=True),
    }  # fmt: skip
    assert load(tmp_path / "after", "ar").stale is False
    with pytest.raises(ConfigError, match=r"flow head is stale[\s\S]*allow_stale_head=true[\s\S]*sft\.objective=joint"):
        load(tmp_path / "after")
    leg = load(tmp_path / "after", allow_stale_head=True)
    assert leg.stale and leg.head == "flow"
    findings = {f.check: f.detail for f in validate(tmp_path / "after", Sources()).findings}
    assert findings["metadata"] == "schema version 2, flow head stale"


def test_what_is_known_of_the_heads_is_carried_from_checkpoint_to_checkpoint(codec, stats, tmp_path):
    before = both_heads(codec, stats, tmp_path / "before")
    export_policy(load(before), tmp_path / "same", source=FACTS)
    assert read_metadata(tmp_path / "same").heads == read_metadata(before).heads
    policy = load(before, "ar")
    move_trunk(policy)
    export_policy(policy, tmp_path / "after", source=FACTS)
    load(tmp_path / "after", "ar").save(tmp_path / "saved")
    export_policy(load(tmp_path / "saved", allow_stale_head=True), tmp_path / "again", source=FACTS)
    assert read_metadata(tmp_path / "again").heads == read_metadata(tmp_path / "after").heads


def test_an_expert_that_changed_with_its_trunk_or_alone_is_not_stale(codec, stats, tmp_path):
    before = both_heads(codec, stats, tmp_path / "before")
    for name, moves in (("alone", False), ("together", True)):
        policy = load(before)
        with torch.no_grad():
            policy.expert.final_layer.linear.bias[0] += 1.0
        if moves:
            move_trunk(policy)
        export_policy(policy, tmp_path / name, source=FACTS)
        assert not read_metadata(tmp_path / name).heads["flow"].stale


def test_a_release_is_taken_at_its_word_until_its_trunk_moves(release: Path, tmp_path):
    policy = load(release, "ar", norm_tag=TAG)
    assert policy.heads == {} and not load(release, norm_tag=TAG).stale
    move_trunk(policy)
    export_policy(policy, tmp_path / "after", source=FACTS)
    assert read_metadata(tmp_path / "after").heads["flow"] == HeadState(None, stale=True)
    with pytest.raises(ConfigError, match="stale"):
        load(tmp_path / "after")


def test_a_stale_token_head_is_refused_in_the_same_way(codec, stats, tmp_path):
    policy = load(both_heads(codec, stats, tmp_path / "before"))
    policy.heads = {"ar": HeadState("joint", stale=True), "flow": HeadState("flow")}
    policy.save(tmp_path / "flow_only")
    with pytest.raises(ConfigError, match=r"token head is stale[\s\S]*sft\.objective=ar"):
        load(tmp_path / "flow_only", "ar")
    assert load(tmp_path / "flow_only", "ar", allow_stale_head=True).stale and not load(tmp_path / "flow_only").stale


def test_a_policy_without_an_expert_has_nothing_that_goes_stale(codec, stats, tmp_path):
    new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI).save(tmp_path / "tokens")
    policy = load(tmp_path / "tokens", "ar")
    move_trunk(policy)
    export_policy(policy, tmp_path / "after", source=FACTS)
    assert read_metadata(tmp_path / "after").heads == {"ar": HeadState("rl")}
