"""Checkpoints in the layout of a release: loaded exactly, or refused by name before a weight is read."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policy_support import TASK, picture, smooth_chunks
from release_support import HIGH_DEG, LOW_DEG, TAG, norm_stats, release_config, write_shards
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig

from vla_rl.config.compose import compose
from vla_rl.errors import EXIT_INTEGRITY, EXIT_USAGE, ConfigError, IntegrityError
from vla_rl.policy import refusals
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.hub import resolve
from vla_rl.policy.layout import EXPERT, expected_shapes, native_config
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.molmo2 import build_twin
from vla_rl.policy.policy import VlaPolicy, load_policy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import GrammarSampler, PredictRequest

ELBOW = 2


def load(directory: Path, **settings: Any) -> VlaPolicy:
    settings = {"norm_tag": TAG, **settings}
    return load_policy(checkpoint=str(directory), device="cpu", serve_head="ar", task=TASK, **settings)


def edit_json(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    body = json.loads(path.read_text())
    edit(body)
    path.write_text(json.dumps(body))


def edit_weights(directory: Path, edit: Callable[[dict[str, torch.Tensor]], Any], *, shards: int = 3) -> None:
    """Rewrite the weights of a release."""
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        weights |= load_file(path)
        path.unlink()
    (directory / "model.safetensors.index.json").unlink(missing_ok=True)
    edit(weights)
    write_shards(directory, weights, shards)


def edit_tokenizer(directory: Path, edit: Callable[[dict[str, int]], Any]) -> None:
    """Change ids of added tokens, given as token -> id."""

    def change(body: dict[str, Any]) -> None:
        ids = {token["content"]: token["id"] for token in body["added_tokens"]}
        edit(ids)
        for token in body["added_tokens"]:
            token["id"] = ids[token["content"]]
        body["added_tokens"].sort(key=lambda token: token["id"])

    edit_json(directory / "tokenizer.json", change)


def swap(ids: dict[str, int], one: str, other: str) -> None:
    ids[one], ids[other] = ids[other], ids[one]


# --------------------------------------------------------------------------------------------- what is loaded
def test_the_network_is_the_one_that_was_stored_bit_for_bit_and_the_expert_stays_aside(release: Path):
    config = release_config(Tokenizer.from_file(str(release / "tokenizer.json")))
    built, policy = build_twin(native_config(config), seed=4), load(release)
    expected, loaded = built.state_dict(), policy.model.state_dict()
    assert expected.keys() == loaded.keys() and all(torch.equal(expected[n], loaded[n]) for n in expected)
    assert policy.origin and policy.origin.opened and len(policy.origin.opened.expert) == 44
    assert not any("expert" in name for name in loaded)


def test_a_deeper_tower_than_is_stored_is_trimmed_to_what_is_read(release: Path):
    stated = json.loads((release / "config.json").read_text())["vit_config"]["num_hidden_layers"]
    assert stated == 4 and load(release).model.config.vision_config.num_hidden_layers == 3


def test_ids_tag_tables_and_wording_come_from_the_checkpoint(release: Path, release_copy: Path):
    policy, config = load(release), json.loads((release / "config.json").read_text())
    assert policy.prompt.ids.action_block == config["action_token_start_id"] and policy.vocabulary == 512
    assert policy.stats.tag == TAG and policy.stats.state.low_deg.tolist() == LOW_DEG and policy.horizon == 30
    assert policy.joint_frame == "v21"

    def rename(body: dict[str, Any]) -> None:
        body["metadata_by_tag"][TAG]["setup_type"] = "another arm"

    edit_json(release_copy / "norm_stats.json", rename)
    other = load(release_copy)
    assert other.wording.setup == "another arm" and other.prompt.length != policy.prompt.length


def observations() -> list[Observation]:
    rng = np.random.default_rng(6)
    middle = (np.array(LOW_DEG) + np.array(HIGH_DEG)) / 2
    return [Observation(picture(rng), middle + rng.normal(0, 5, 6)) for _ in range(4)]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 5.6e-2)])
def test_sampled_and_teacher_forced_log_probabilities_agree(release: Path, dtype: str, tolerance: float):
    policy, seen = load(release, dtype=dtype), observations()
    assert {p.dtype for p in policy.model.parameters()} == {getattr(torch, dtype)}
    sampler = GrammarSampler(batch_rows=4, policy=policy, run_seed=0)
    predictions = sampler.sample([PredictRequest(o, 300, i, 0) for i, o in enumerate(seen)], 1.0)
    scores = score_rows(policy, seen, [p.bins for p in predictions], 1.0).logp_RT.detach().numpy()
    assert (
        max(np.abs(row[: len(p.bins)] - p.logp).max() for row, p in zip(scores, predictions, strict=True)) <= tolerance
    )


def test_one_file_and_shards_give_the_same_policy(release: Path, release_copy: Path):
    edit_weights(release_copy, lambda weights: None, shards=1)
    assert load(release_copy).digest() == load(release).digest()


def test_weights_in_half_precision_are_widened_exactly(release: Path, release_copy: Path):
    edit_weights(release_copy, lambda w: w.update({n: t.bfloat16() for n, t in w.items() if "rotary" not in n}))
    assert load(release_copy).digest() == load(release, dtype="bfloat16").digest()


def test_training_a_loaded_policy_leaves_its_files_alone_and_files_may_go(release_copy: Path):
    before = {p.name: p.read_bytes() for p in release_copy.glob("*.safetensors")}
    policy = load(release_copy)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(1.0)
    assert {p.name: p.read_bytes() for p in release_copy.glob("*.safetensors")} == before
    for path in release_copy.glob("*.safetensors"):
        with open(path, "r+b") as file:
            file.truncate(0)  # reading a page of a mapping of it would end the process
    assert policy.digest() != ""


def test_code_of_a_checkpoint_is_never_run(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    with pytest.raises(SystemExit, match="remote code ran"):  # what it would do to whoever trusts it
        AutoConfig.from_pretrained(release, trust_remote_code=True)
    load(release)


def test_a_release_without_expert_that_says_so_is_loaded(release_copy: Path):
    edit_json(release_copy / "config.json", lambda c: c.update(action_mode="discrete", add_action_expert=False))
    edit_weights(release_copy, lambda w: [w.pop(name) for name in list(w) if EXPERT.match(name)])
    assert load(release_copy).origin is not None


def test_at_full_size_the_layout_has_the_tensors_and_numbers_of_the_release(release: Path):
    """Counts as derived from the release's own code: 1,295 tensors with its expert (588) and rotary buffer."""
    raw = json.loads((release / "config.json").read_text())
    raw["text_config"] |= {
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 155_648,
        "num_hidden_layers": 36,
        "intermediate_size": 9728,
    }
    raw["vit_config"] |= {
        "hidden_size": 1152,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 72,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "image_default_input_size": [378, 378],
        "image_patch_size": 14,
        "image_num_pos": 729,
    }
    raw["adapter_config"] |= {
        "hidden_size": 1152,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 72,
        "vit_layers": [-3, -9],
        "intermediate_size": 9728,
        "text_hidden_size": 2560,
    }
    shapes = expected_shapes(native_config(raw))
    assert len(shapes) == 1295 - 588 - 1
    assert sum(math.prod(shape) for shape in shapes.values()) == 4_869_874_640


# ------------------------------------------------------------------------------------------ what is refused
def drop_projector(directory: Path) -> None:
    edit_weights(directory, lambda w: w.pop("model.vision_backbone.image_projector.w2.weight"))


def shuffle_actions(directory: Path) -> None:
    edit_tokenizer(directory, lambda ids: swap(ids, "<action_17>", "<action_99>"))


def turn_elbow(directory: Path) -> None:
    high = [h + 180.0 * (j == ELBOW) for j, h in enumerate(HIGH_DEG)]
    low = [v + 180.0 * (j == ELBOW) for j, v in enumerate(LOW_DEG)]
    (directory / "norm_stats.json").write_text(json.dumps(norm_stats(low, high)))


def drop_expert(directory: Path) -> None:
    edit_weights(directory, lambda w: [w.pop(name) for name in list(w) if EXPERT.match(name)])


FOUR = {
    drop_projector: refusals.MissingWeights,
    shuffle_actions: refusals.ActionIds,
    turn_elbow: refusals.JointFrame,
    drop_expert: refusals.OneHead,
}


@pytest.mark.parametrize(("damage", "refusal"), FOUR.items(), ids=lambda x: x.__name__)
def test_the_four_documented_faults_have_four_named_refusals(release_copy: Path, damage, refusal):
    damage(release_copy)
    with pytest.raises(refusals.CheckpointRefused) as caught:
        load(release_copy)
    assert type(caught.value) is refusal and f"({refusal.name})" in str(caught.value)
    assert caught.value.exit_code == EXIT_INTEGRITY
    assert len({kind.name for kind in FOUR.values()}) == 4


def test_an_elbow_turned_either_way_in_either_frame_is_refused(release_copy: Path):
    rig_low, rig_high = [-36.9, -110.0, 14.4, 23.5, -157.2, 0.0], [4.8, 12.2, 88.6, 81.0, 157.2, 42.7]
    for low, high in ((LOW_DEG, HIGH_DEG), (rig_low, rig_high)):
        for turn in (-180.0, 180.0):
            tables = [[v + turn * (j == ELBOW) for j, v in enumerate(table)] for table in (low, high)]
            (release_copy / "norm_stats.json").write_text(json.dumps(norm_stats(*tables)))
            with pytest.raises(refusals.JointFrame):
                load(release_copy)


def test_a_declared_joint_frame_may_not_contradict_the_table(release: Path):
    with pytest.raises(refusals.JointFrame, match="v21, not rig"):
        load(release, joint_frame="rig")
    assert load(release, joint_frame="v21").joint_frame == "v21"


def config_edit(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "config.json", lambda c: c.update(changes))


def part_edit(part: str, **changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "config.json", lambda c: c[part].update(changes))


def tag_edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "norm_stats.json", lambda b: change(b["metadata_by_tag"][TAG]))


def truncate(directory: Path) -> None:
    path = directory / "model-00002-of-00003.safetensors"
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 100)


def poison(name: str, value: float) -> Callable[[Path], None]:
    def edit(weights: dict[str, torch.Tensor]) -> None:
        weights[name].view(-1)[-1] = value

    return lambda directory: edit_weights(directory, edit)


def reshape(weights: dict[str, torch.Tensor]) -> None:
    weights["model.transformer.blocks.1.mlp.ff_out.weight"] = (
        weights["model.transformer.blocks.1.mlp.ff_out.weight"].t().contiguous()
    )


def as_integers(weights: dict[str, torch.Tensor]) -> None:
    weights["lm_head.weight"] = weights["lm_head.weight"].to(torch.int32)


def round_rotary(weights: dict[str, torch.Tensor]) -> None:
    weights["model.transformer.rotary_emb.inv_freq"] = weights["model.transformer.rotary_emb.inv_freq"].bfloat16()


def lose_index_entry(directory: Path) -> None:
    edit_json(directory / "model.safetensors.index.json", lambda b: b["weight_map"].pop("lm_head.weight"))


def lose_shard(directory: Path) -> None:
    (directory / "model-00003-of-00003.safetensors").unlink()


def leave_the_directory(directory: Path) -> None:
    def point_outside(body: dict[str, Any]) -> None:
        body["weight_map"] = {name: f"../{file}" for name, file in body["weight_map"].items()}

    edit_json(directory / "model.safetensors.index.json", point_outside)


def tile_pictures(directory: Path) -> None:
    edit_json(
        directory / "processor_config.json", lambda b: b["image_processor"].update(crop_mode="overlap-and-resize-c2")
    )


def picture_edit(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(
        directory / "processor_config.json", lambda b: b["image_processor"].update(changes)
    )


def processor_edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "processor_config.json", change)


def narrow_codec(directory: Path) -> None:
    edit_json(directory / "config.json", lambda c: c.update(num_action_tokens=511))


CASES: dict[str, tuple[Callable[[Path], Any], type[IntegrityError]]] = {
    "no token head": (lambda d: edit_weights(d, lambda w: w.pop("lm_head.weight")), refusals.OneHead),
    "continuous only": (config_edit(action_mode="continuous"), refusals.OneHead),
    "expert declared, not there": (
        lambda d: (drop_expert(d), config_edit(action_mode="discrete")(d)), refusals.OneHead
    ),
    "a hole in the expert": (
        lambda d: edit_weights(d, lambda w: w.pop("model.action_expert.blocks.1.mlp.up_proj.bias")),
        refusals.MissingWeights,
    ),
    "a block of the expert missing": (
        lambda d: edit_weights(d, lambda w: [w.pop(n) for n in list(w) if ".action_expert.blocks.1." in n]),
        refusals.MissingWeights,
    ),
    "a foreign weight": (
        lambda d: edit_weights(d, lambda w: w.update({"model.surprise": torch.zeros(2)})), refusals.UnexpectedWeights
    ),
    "a weight the index forgot": (lose_index_entry, refusals.UnexpectedWeights),
    "a missing shard": (lose_shard, refusals.DamagedFile),
    "a shard cut short": (truncate, refusals.DamagedFile),
    "shards elsewhere": (leave_the_directory, refusals.DamagedFile),
    "two sets of weights": (
        lambda d: save_file({"x": torch.zeros(1)}, d / "model.safetensors"), refusals.DamagedFile
    ),
    "nan": (poison("model.transformer.ln_f.weight", float("nan")), refusals.DamagedFile),
    "infinity": (poison("model.transformer.wte.new_embedding", float("inf")), refusals.DamagedFile),
    "another shape": (lambda d: edit_weights(d, reshape), refusals.MismatchedWeights),
    "integers": (lambda d: edit_weights(d, as_integers), refusals.MismatchedWeights),
    "rounded rotary buffer": (lambda d: edit_weights(d, round_rotary), refusals.MismatchedWeights),
    "swapped start and end": (
        lambda d: edit_tokenizer(d, lambda ids: swap(ids, "<action_start>", "<action_end>")), refusals.ActionIds
    ),
    "another first action": (config_edit(action_token_start_id=700), refusals.ActionIds),
    "no action block": (config_edit(action_token_start_id=None), refusals.ActionIds),
    "swapped states": (
        lambda d: edit_tokenizer(d, lambda ids: swap(ids, "<state_0>", "<state_255>")), refusals.VocabularyLayout
    ),
    "image tokens elsewhere": (
        lambda d: edit_tokenizer(d, lambda ids: swap(ids, "<im_start>", "<im_low>")), refusals.VocabularyLayout
    ),
    "another patch token": (config_edit(image_patch_id=1), refusals.VocabularyLayout),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), refusals.DamagedFile),
    "no tables": (lambda d: (d / "norm_stats.json").unlink(), refusals.TableFormat),
    "tables of another format": (
        lambda d: edit_json(d / "norm_stats.json", lambda b: b.update(format="v2")), refusals.TableFormat
    ),
    "tables of extremes": (
        lambda d: edit_json(d / "norm_stats.json", lambda b: b.update(norm_mode="min_max")), refusals.TableFormat
    ),
    "tables that do not say of what": (
        lambda d: edit_json(d / "norm_stats.json", lambda b: b.pop("norm_mode")), refusals.TableFormat
    ),
    "another end of answers": (config_edit(eos_token_id=1), refusals.ActionIds),
    "tiled pictures": (tile_pictures, refusals.UnsupportedFeature),
    "pictures cut as nobody says": (
        processor_edit(lambda b: b["image_processor"].pop("crop_mode")), refusals.UnsupportedFeature
    ),
    "no word about pictures": (processor_edit(lambda b: b.pop("image_processor")), refusals.UnsupportedFeature),
    "rows with ends": (
        processor_edit(lambda b: b.update(use_single_crop_col_tokens=True)), refusals.UnsupportedFeature
    ),
    "rows with ends by default": (
        processor_edit(lambda b: b.pop("use_single_crop_col_tokens")), refusals.UnsupportedFeature
    ),
    "pictures of another size": (picture_edit(size={"height": 56, "width": 56}), refusals.UnsupportedFeature),
    "pictures in other patches": (picture_edit(patch_size=14), refusals.UnsupportedFeature),
    "another pooling": (picture_edit(pooling_size=[3, 3]), refusals.UnsupportedFeature),
    "another mean": (picture_edit(image_mean=[0.48, 0.46, 0.41]), refusals.UnsupportedFeature),
    "another resampling": (picture_edit(resample=3), refusals.UnsupportedFeature),
    "a processor that is no object": (
        lambda d: (d / "processor_config.json").write_text("[]"), refusals.DamagedFile
    ),
    "continuous state": (config_edit(state_format="continuous"), refusals.UnsupportedFeature),
    "two observations": (config_edit(n_obs_steps=2), refusals.UnsupportedFeature),
    "another model": (config_edit(model_type="llama"), refusals.UnsupportedFeature),
    "unmasked pooling of an odd grid": (
        lambda d: edit_json(d / "config.json", lambda c: c["adapter_config"].update(pooling_attention_mask=False)),
        refusals.UnsupportedFeature,
    ),
    "config that is no JSON": (lambda d: (d / "config.json").write_text("{"), refusals.DamagedFile),
    "another codec": (narrow_codec, refusals.CodecMismatch),
    "an activation that is none": (part_edit("text_config", hidden_act="none"), refusals.UnsupportedFeature),
    "a width that is no number": (part_edit("text_config", hidden_size="x"), refusals.UnsupportedFeature),
    "pictures of no size": (part_edit("vit_config", image_default_input_size=[{}]), refusals.UnsupportedFeature),
    "an expert of no size": (part_edit("action_expert_config", num_layers="x"), refusals.UnsupportedFeature),
    "no first state": (config_edit(state_token_start_id=None), refusals.VocabularyLayout),
    "tables elsewhere": (config_edit(norm_stats_filename="../norm_stats.json"), refusals.DamagedFile),
    "tables without a name": (config_edit(norm_stats_filename=3), refusals.DamagedFile),
    "a mask that is no list": (tag_edit(lambda t: t["state_stats"].update(mask=3.7)), refusals.TableFormat),
    "a setup without words": (tag_edit(lambda t: t.update(setup_type=None)), refusals.TableFormat),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_other_fault_is_refused_by_name_with_exit_code_5(release_copy: Path, case: str):
    damage, refusal = CASES[case]
    damage(release_copy)
    with pytest.raises(refusal) as caught:
        load(release_copy)
    assert type(caught.value) is refusal and caught.value.exit_code == EXIT_INTEGRITY and caught.value.where


def test_a_twin_s_configuration_of_another_kind_is_refused_by_name(policy: VlaPolicy, tmp_path: Path):
    policy.save(tmp_path)
    part_edit("text_config", hidden_size="x")(tmp_path)
    with pytest.raises(refusals.UnsupportedFeature):
        load(tmp_path, norm_tag=None)


# ------------------------------------------------------------------------------------------ what the user must say
def test_an_unknown_tag_and_an_unnamed_one_list_those_present(release: Path):
    for tag in ("so101_other", None):
        with pytest.raises(refusals.UnknownNormTag, match=f"franka_test, {TAG}") as caught:
            load(release, norm_tag=tag)
        assert caught.value.exit_code == EXIT_USAGE and "(norm-tag)" in str(caught.value)
    with pytest.raises(refusals.TableFormat, match="six"):
        load(release, norm_tag="franka_test")


def test_a_missing_fast_artifact_is_named_and_one_kept_apart_is_taken(
    release: Path, release_copy: Path, tmp_path: Path
):
    apart = shutil.move(release_copy / "fast_tokenizer", tmp_path / "FAST")
    with pytest.raises(refusals.MissingCodec, match="policy.fast_tokenizer") as caught:
        load(release_copy)
    assert caught.value.exit_code == EXIT_USAGE and "(missing-codec)" in str(caught.value)
    assert load(release_copy, fast_tokenizer=str(apart)).codec.vocabulary == load(release).codec.vocabulary


def test_a_byte_level_artifact_without_a_horizon_takes_it_from_the_tables(release: Path, tmp_path: Path):
    chunks = load(release).stats.action.normalise(smooth_chunks(400, 2) + np.array([0, -25, 15, 50, 0, 20]))
    FastCodec.fit(chunks, scale=10.0, vocabulary=512, byte_level=True).save(tmp_path)
    edit_json(tmp_path / "processor_config.json", lambda c: c.update(time_horizon=None, action_dim=None))
    policy = load(release, fast_tokenizer=str(tmp_path))
    assert (policy.codec.horizon, policy.codec.dim, policy.horizon) == (30, 6, 30)
    edit_json(tmp_path / "processor_config.json", lambda c: c.update(time_horizon=15))
    with pytest.raises(refusals.CodecMismatch):
        load(release, fast_tokenizer=str(tmp_path))


def test_pickled_weights_are_named_and_not_opened(release_copy: Path):
    for path in [*release_copy.glob("*.safetensors"), release_copy / "model.safetensors.index.json"]:
        path.unlink()
    (release_copy / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(ConfigError, match="pickle, which is never opened"):
        load(release_copy)


def test_the_option_molmoact2_builds_a_release_and_asks_for_a_checkpoint(release: Path):
    reader = compose("eval", ["policy=molmoact2", f"policy.checkpoint={release}"])
    assert reader.component("policy", device="cpu").stats.tag == TAG
    with pytest.raises(ConfigError, match="policy.checkpoint"):
        compose("eval", ["policy=molmoact2"])


def test_an_unknown_number_format_is_refused(release: Path):
    with pytest.raises(ConfigError, match="float12"):
        load(release, dtype="float12")


def test_a_hub_id_needs_a_commit_and_a_directory_has_none(release: Path):
    for revision in (None, "main", "v1.0", "abc123"):
        with pytest.raises(ConfigError, match="40 hex digits"):
            resolve("someone/some-model", revision, where="policy.checkpoint", pin="policy.revision")
    with pytest.raises(ConfigError, match="has no revision"):
        resolve(str(release), "a" * 40, where="policy.checkpoint", pin="policy.revision")
    with pytest.raises(ConfigError, match="has no revision"):
        resolve("bundled:tiny_start", "a" * 40, where="policy.checkpoint", pin="policy.revision")
    assert resolve(str(release), None, where="policy.checkpoint", pin="policy.revision") == release


def test_without_a_network_a_hub_id_says_how_to_fetch_it_and_a_cached_snapshot_is_used(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from huggingface_hub import constants

    commit = "0123456789abcdef" * 2 + "01234567"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=f"hf download someone/some-model --revision {commit}"):
        resolve("someone/some-model", commit, where="policy.checkpoint", pin="policy.revision")
    snapshot = tmp_path / "models--someone--some-model" / "snapshots" / commit
    shutil.copytree(release, snapshot)
    policy = load_policy(
        checkpoint="someone/some-model", revision=commit, device="cpu", serve_head="ar", task=TASK, norm_tag=TAG
    )
    assert policy.digest() == load(release).digest()


# Names of the release's own program: everything but the expert, of the first layer and the first block of the tower.
RELEASED_NAMES = """
lm_head.weight
model.transformer.blocks.0.{attn_norm,ff_norm,mlp.ff_out,mlp.ff_proj}.weight
model.transformer.blocks.0.self_attn.{att_proj,attn_out,k_norm,q_norm}.weight
model.transformer.{ln_f.weight,rotary_emb.inv_freq,wte.embedding,wte.new_embedding}
model.vision_backbone.image_pooling_2d.{wk,wo,wq,wv}.{bias,weight}
model.vision_backbone.image_projector.{w1,w2,w3}.weight
model.vision_backbone.image_vit.{patch_embedding.bias,patch_embedding.weight,positional_embedding}
model.vision_backbone.image_vit.transformer.resblocks.0.attention.{wk,wo,wq,wv}.{bias,weight}
model.vision_backbone.image_vit.transformer.resblocks.0.{attention_norm,ffn_norm}.{bias,weight}
model.vision_backbone.image_vit.transformer.resblocks.0.feed_forward.{w1,w2}.{bias,weight}
"""


def spelled_out(pattern: str) -> list[str]:
    """`a.{b,c}.{d,e}` -> a.b.d, a.b.e, a.c.d, a.c.e."""
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    choices, _, tail = rest.partition("}")
    return [name for choice in choices.split(",") for name in spelled_out(head + choice + tail)]


def test_the_fixture_is_a_release_in_small(release: Path):
    """Names as the release has them, not as transformers would write them, each in the file that the index says."""
    index = json.loads((release / "model.safetensors.index.json").read_text())["weight_map"]
    first = {n for n in index if not EXPERT.match(n) and not re.search(r"blocks\.[1-9]", n)}
    assert first == {name for line in RELEASED_NAMES.split() for name in spelled_out(line)}
    for file in set(index.values()):
        with safe_open(release / file, framework="pt") as stored:
            assert {name for name, where in index.items() if where == file} == set(stored.keys())
