"""The action expert in files: loaded when asked for, exported bit for bit, saved with a twin, refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from expert_support import SIZES, taught
from policy_support import MINI, TASK
from release_support import TAG
from safetensors.torch import load_file
from test_released import edit_json, edit_weights

from vla_rl.errors import ConfigError, VlaRlError
from vla_rl.policy import refusals
from vla_rl.policy.expert_files import load_expert, new_expert
from vla_rl.policy.export import export_policy
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.flow_config import FlowConfig
from vla_rl.policy.flow_sampler import FlowSampler
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, load_policy, new_twin
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import PredictRequest
from vla_rl.policy.sources import Sources
from vla_rl.policy.validate import validate

FACTS = {"kind": "test", "name": "facts"}
BIAS = "model.action_expert.final_layer.linear.bias"


def load(directory: Path, head: str = "flow", **settings: Any) -> VlaPolicy:
    return load_policy(checkpoint=str(directory), device="cpu", serve_head=head, task=TASK, **settings)


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return {n: t for path in sorted(directory.glob("*.safetensors")) for n, t in load_file(path).items()}


def chunks(policy: VlaPolicy, observations: list[Observation]) -> np.ndarray:
    asked = [PredictRequest(o, seed=300 + i, draw=0, replan=0) for i, o in enumerate(observations)]
    return np.stack([p.chunk_deg for p in FlowSampler(batch_rows=8, policy=policy, run_seed=7).sample(asked, 0.0)])


@pytest.fixture
def twin(codec: FastCodec, stats: NormStats) -> VlaPolicy:
    return new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI)


# -------------------------------------------------------------------------------------------------------- a release
def test_the_expert_of_a_release_is_loaded_only_when_it_is_asked_for(release: Path, observations):
    tokens = load(release, "ar", norm_tag=TAG)
    assert tokens.expert is None and tokens.head == "ar"
    policy, stored = load(release, norm_tag=TAG), weights_of(release)
    assert policy.head == "flow" and not policy.expert.training
    for name, weight in policy.expert.state_dict().items():
        assert torch.equal(weight, stored[f"model.action_expert.{name}"])
    made = chunks(policy, observations)
    assert made.shape == (8, 30, 6) and np.isfinite(made).all()
    assert load_expert(tokens) is tokens.expert and tokens.head == "ar"
    assert torch.equal(tokens.expert.action_embed.weight, policy.expert.action_embed.weight)


def test_names_without_the_outer_prefix_are_an_expert_too(release_copy: Path):
    def shorten(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if name.startswith("model.action_expert.")]:
            weights[name.removeprefix("model.")] = weights.pop(name)

    edit_weights(release_copy, shorten)
    policy = load(release_copy, norm_tag=TAG)
    policy.save(release_copy.parent / "saved")
    before, after = weights_of(release_copy), weights_of(release_copy.parent / "saved")
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)


def test_the_digest_of_a_served_flow_policy_counts_its_expert_and_that_of_a_token_policy_does_not(release: Path):
    tokens, policy = load(release, "ar", norm_tag=TAG), load(release, norm_tag=TAG)
    plain, served = tokens.digest(), policy.digest()
    assert plain != served == load(release, norm_tag=TAG).digest()
    load_expert(tokens)
    assert tokens.digest() == plain
    seen = {served}
    with torch.no_grad():
        for weight in policy.expert.parameters():
            weight.view(-1)[-1] += 1e-3
            seen.add(policy.digest())
    assert len(seen) == 1 + len(list(policy.expert.parameters()))
    policy.expert.config = FlowConfig.of({**policy.expert.config.body(), "flow_matching_num_steps": 4})
    assert policy.digest() not in seen


def test_a_trunk_in_bfloat16_is_read_by_an_expert_in_float32(release: Path, observations):
    policy, exact = load(release, norm_tag=TAG, dtype="bfloat16"), load(release, norm_tag=TAG)
    assert policy.model.dtype == torch.bfloat16 and policy.expert.dtype == torch.float32
    with torch.no_grad():
        for each in (policy, exact):  # the drawn expert would throw most joints to an end of their range
            each.expert.final_layer.linear.weight.mul_(0.02)
            each.expert.final_layer.linear.bias.zero_()
    one, two = (policy.stats.action.normalise(chunks(each, observations)) for each in (policy, exact))
    assert 0 < np.abs(one - two).mean() < 0.1 and np.abs(two).mean() > 0.3


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_an_untouched_expert_is_exported_bit_for_bit_in_its_own_format(release_copy: Path, tmp_path, stored):
    def convert(weights: dict[str, torch.Tensor]) -> None:
        weights |= {n: w.to(stored) for n, w in weights.items() if ".action_expert." in n}

    edit_weights(release_copy, convert)
    policy = load(release_copy, norm_tag=TAG, dtype="bfloat16")
    assert {weight.dtype for weight in policy.expert.parameters()} == {torch.float32}
    receipt = export_policy(policy, tmp_path / "out", source=FACTS)
    before, after = weights_of(release_copy), weights_of(tmp_path / "out")
    assert before.keys() == after.keys() and receipt.changed == []
    assert all(before[n].dtype == after[n].dtype and torch.equal(before[n], after[n]) for n in before)
    assert (tmp_path / "out" / "config.json").read_bytes() == (release_copy / "config.json").read_bytes()


def test_a_trained_expert_is_exported_with_its_new_numbers_and_nothing_else_changes(
    release: Path, tmp_path: Path, observations
):
    policy = load(release, norm_tag=TAG)
    with torch.no_grad():
        policy.expert.final_layer.linear.bias[2] += 0.25
    receipt = export_policy(policy, tmp_path / "out", source=FACTS)
    before, after = weights_of(release), weights_of(tmp_path / "out")
    assert receipt.changed == [BIAS] and before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == [BIAS]
    again = load(tmp_path / "out", norm_tag=TAG)
    assert again.digest() == policy.digest() == receipt.source["policy_digest"]
    assert np.array_equal(chunks(again, observations), chunks(policy, observations))


# ----------------------------------------------------------------------------------------------------------- a twin
def files_of(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_a_twin_is_saved_and_loaded_with_its_expert(twin: VlaPolicy, tmp_path: Path, observations):
    plain = twin.digest()
    expert = taught(new_expert(twin, SIZES, seed=0))
    assert twin.digest() == plain
    twin.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["action_mode"], config["add_action_expert"]) == ("both", True)
    assert FlowConfig.of(config) == expert.config
    flow = load(tmp_path / "saved")
    for name, weight in expert.state_dict().items():
        assert torch.equal(weight, flow.expert.state_dict()[name])
    twin.head = "flow"
    assert flow.digest() == twin.digest() and np.array_equal(chunks(flow, observations), chunks(twin, observations))
    tokens = load(tmp_path / "saved", "ar")
    assert tokens.digest() == plain and tokens.expert is None
    assert validate(tmp_path / "saved", Sources()).valid


@pytest.mark.parametrize("head", ["ar", "flow"])
def test_saving_a_loaded_twin_writes_the_same_bytes_expert_included(twin: VlaPolicy, tmp_path: Path, head: str):
    taught(new_expert(twin, SIZES, seed=0))
    twin.save(tmp_path / "first")
    load(tmp_path / "first", head).save(tmp_path / "second")
    assert files_of(tmp_path / "first") == files_of(tmp_path / "second")
    receipt = export_policy(load(tmp_path / "first", head), tmp_path / "third", source=FACTS)
    assert receipt.changed == [] and BIAS in receipt.carried
    assert weights_of(tmp_path / "third").keys() == weights_of(tmp_path / "first").keys()


@pytest.mark.parametrize("write", ["save", "export"])
def test_a_checkpoint_that_had_no_expert_gets_the_new_one(twin: VlaPolicy, tmp_path: Path, write: str, observations):
    twin.save(tmp_path / "tokens")
    policy = load(tmp_path / "tokens", "ar")
    taught(new_expert(policy, SIZES, seed=0))
    if write == "save":
        policy.save(tmp_path / "both")
    else:
        receipt = export_policy(policy, tmp_path / "both", source=FACTS)
        assert all(name.startswith("model.action_expert.") for name in receipt.changed) and BIAS in receipt.changed
    flow = load(tmp_path / "both")
    policy.head = "flow"
    assert flow.digest() == policy.digest() and np.array_equal(chunks(flow, observations), chunks(policy, observations))
    assert validate(tmp_path / "both", Sources()).valid


# --------------------------------------------------------------------------------------------------------- refusals
def test_a_policy_without_an_expert_cannot_serve_the_flow_head(twin: VlaPolicy, tmp_path: Path):
    twin.save(tmp_path / "tokens")
    with pytest.raises(ConfigError, match=r"no action expert[\s\S]*policy\.serve_head=ar"):
        load(tmp_path / "tokens")
    with pytest.raises(ConfigError, match="no action expert"):
        load_expert(twin)
    with pytest.raises(ConfigError, match=r"no head 'token'[\s\S]*serve_head=ar or use policy\.serve_head=flow"):
        load(tmp_path / "tokens", "token")


def _drop(name: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda weights: weights.pop(f"model.action_expert.{name}")


def _cut(weights: dict[str, torch.Tensor]) -> None:
    weights[BIAS] = weights[BIAS][:-1].clone()


def _add(weights: dict[str, torch.Tensor]) -> None:
    weights["model.action_expert.state_encoder.weight"] = torch.eye(4)


def _gate(weights: dict[str, torch.Tensor]) -> None:
    weights["model.action_expert_depth_gate.weight"] = torch.zeros(1, 32)


def _break(weights: dict[str, torch.Tensor]) -> None:
    weights[BIAS][0] = float("nan")


@pytest.mark.parametrize(
    ("damage", "refusal", "names"),
    [
        (_drop("time_embed.1.weight"), refusals.MissingWeights, "time_embed.1.weight"),
        (_cut, refusals.MismatchedWeights, BIAS),
        (_add, refusals.UnexpectedWeights, "state_encoder"),
        (_gate, refusals.UnexpectedWeights, "depth_gate"),
        (_break, refusals.DamagedFile, BIAS),
    ],
)
def test_weights_that_are_no_expert_are_refused_when_it_is_asked_for_and_only_then(
    release_copy: Path, damage: Callable[[dict[str, torch.Tensor]], Any], refusal: type[VlaRlError], names: str
):
    edit_weights(release_copy, damage)
    with pytest.raises(refusal, match=names):
        load(release_copy, norm_tag=TAG)
    assert load(release_copy, "ar", norm_tag=TAG).expert is None


@pytest.mark.parametrize(
    ("edit", "refusal", "names"),
    [
        (lambda c: c["action_expert_config"].update(causal_attn=True), refusals.UnsupportedFeature, "causal_attn"),
        (lambda c: c["action_expert_config"].update(num_layers=1), refusals.UnsupportedFeature, "trunk of 2 layers"),
        (lambda c: c.update(action_expert_depth_gate=True), refusals.UnsupportedFeature, "depth_gate"),
        (lambda c: c.update(max_action_horizon=20), refusals.UnsupportedFeature, "30 ticks"),
        (lambda c: c.update(max_action_dim=5), refusals.UnsupportedFeature, "6 joints"),
        (lambda c: c["action_expert_config"].update(num_heads=1, hidden_size=18), refusals.MismatchedWeights, "16"),
        (lambda c: c.update(action_mode="discrete"), refusals.OneHead, "serve_head=ar"),
    ],
)
def test_configurations_that_are_not_built_are_refused_for_the_flow_head_alone(
    release_copy: Path, edit: Callable[[dict[str, Any]], Any], refusal: type[VlaRlError], names: str
):
    edit_json(release_copy / "config.json", edit)
    with pytest.raises(refusal, match=names):
        load(release_copy, norm_tag=TAG)
    assert load(release_copy, "ar", norm_tag=TAG).expert is None


def test_a_new_expert_has_a_place_in_a_twin_without_one(twin: VlaPolicy, release: Path):
    new_expert(twin, SIZES, seed=0)
    with pytest.raises(ConfigError, match="already"):
        new_expert(twin, SIZES, seed=0)
    with pytest.raises(ConfigError, match="already"):
        new_expert(load(release, "ar", norm_tag=TAG), SIZES, seed=0)


def test_a_release_that_was_shipped_without_an_expert_gets_none(release_copy: Path):
    edit_json(release_copy / "config.json", lambda c: c.update(action_mode="discrete", add_action_expert=False))
    edit_weights(release_copy, lambda w: [w.pop(n) for n in list(w) if "action_expert" in n])
    with pytest.raises(ConfigError, match="twin only"):
        new_expert(load(release_copy, "ar", norm_tag=TAG), SIZES, seed=0)
