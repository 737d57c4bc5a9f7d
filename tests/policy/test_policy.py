"""The network: equal to transformers' own forward, sees its pictures, and survives a save and a load bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from policy_support import MINI, TASK
from safetensors.torch import load_file, save_file

from vla_rl.errors import ConfigError, IntegrityError, VlaRlError
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.logprob import pad_streams, score_rows
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, load_policy, new_twin
from vla_rl.policy.prompt import Observation, Wording
from vla_rl.policy.refusals import CodecMismatch, MismatchedWeights, MissingWeights, OneHead, UnexpectedWeights


def chunk_bins(policy: VlaPolicy, observations: list[Observation]) -> list[np.ndarray]:
    """Streams of different length: hold the pose, plus a ramp that grows with the row."""
    ramp = np.linspace(0, 1, 30)[:, None]
    return [policy.encode_chunk(o.state_deg + 12.0 * i * ramp * np.sin(i * ramp)) for i, o in enumerate(observations)]


@torch.no_grad()
def logits_of(policy: VlaPolicy, observations: list[Observation]) -> torch.Tensor:
    bins, _ = pad_streams(chunk_bins(policy, observations), policy.device)
    return policy.logits(policy.frames_tensor(observations), policy.state_tensor(observations), bins)


def with_actions(policy: VlaPolicy, batch: dict[str, torch.Tensor], bins: torch.Tensor) -> dict[str, torch.Tensor]:
    """A prompt batch with all but the last bin fed after it."""
    ids = torch.cat([batch["input_ids"], bins[:, :-1] + policy.prompt.ids.action_block], dim=1)
    types = torch.nn.functional.pad(batch["mm_token_type_ids"], (0, bins.shape[1] - 1))
    return {**batch, "input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types}


@torch.no_grad()
@pytest.mark.parametrize("left_padding", [0, 5])
def test_logits_equal_those_of_the_transformers_forward_also_left_padded(
    policy: VlaPolicy, observations, left_padding: int
):
    bins, _ = pad_streams(chunk_bins(policy, observations), "cpu")
    batch = with_actions(policy, policy.prompt_batch(observations), bins)
    pad = torch.nn.functional.pad
    for key in ("input_ids", "attention_mask", "mm_token_type_ids"):
        batch[key] = pad(batch[key], (left_padding, 0))
    block = slice(policy.prompt.ids.action_block, policy.prompt.ids.action_block + policy.vocabulary)
    expected = policy.model(**batch, logits_to_keep=bins.shape[1]).logits[..., block]
    assert (logits_of(policy, observations) - expected).abs().max() < 1e-5


def test_released_size_is_kept_small(boat_policy: VlaPolicy, tmp_path: Path):
    boat_policy.save(tmp_path)
    size = sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
    assert sum(p.numel() for p in boat_policy.model.parameters()) <= 4_950_000 and size <= 20e6
    assert boat_policy.prompt.length == 64


def test_pictures_camera_order_and_state_all_change_the_logits(policy: VlaPolicy, observations):
    before = logits_of(policy, observations)
    blank = [Observation(np.zeros_like(o.frames), o.state_deg) for o in observations]
    swapped = [Observation(o.frames[::-1].copy(), o.state_deg) for o in observations]
    moved = [Observation(o.frames, o.state_deg + 20.0) for o in observations]
    bins, _ = pad_streams(chunk_bins(policy, observations), "cpu")
    for other in (blank, swapped, moved):
        with torch.no_grad():
            after = policy.logits(policy.frames_tensor(other), policy.state_tensor(other), bins)
        change = (after - before)[:, 0].abs().amax(-1)
        assert change.min() > 1e-2, "an input of some row has hardly any effect on the first token"


def test_a_later_bin_never_changes_an_earlier_logit(policy: VlaPolicy, observations):
    bins, _ = pad_streams(chunk_bins(policy, observations), "cpu")
    changed = bins.clone()
    changed[:, 4:] = (changed[:, 4:] + 7) % 165
    args = policy.frames_tensor(observations), policy.state_tensor(observations)
    with torch.no_grad():
        gap = (policy.logits(*args, bins) - policy.logits(*args, changed)).abs().amax((0, 2))
    assert gap[:5].max() == 0 and gap[5:].min() > 1e-3


def test_scores_do_not_depend_on_the_longest_row_in_the_batch(policy: VlaPolicy, observations):
    streams = chunk_bins(policy, observations)
    together = score_rows(policy, observations, streams, 0.7)
    assert len({len(s) for s in streams}) > 1
    for i, stream in enumerate(streams):
        alone = score_rows(policy, observations[i : i + 1], [stream], 0.7)
        n = len(stream)
        assert torch.allclose(alone.logp_RT[0], together.logp_RT[i, :n], atol=2e-6)
        assert torch.allclose(alone.entropy_RT[0], together.entropy_RT[i, :n], atol=2e-6)
        assert not together.mask_RT[i, n:].any() and not together.logp_RT[i, n:].any()


def test_scores_are_log_probabilities_over_legal_bins_only(policy: VlaPolicy, observations):
    streams, temperature = chunk_bins(policy, observations), 0.7
    scores = score_rows(policy, observations, streams, temperature)
    logits = logits_of(policy, observations).double().numpy() / temperature
    for i, stream in enumerate(streams):
        for t, legal in enumerate(policy.grammar.masks(stream)):
            weights = np.where(legal, np.exp(logits[i, t] - logits[i, t].max()), 0.0)
            p = weights / weights.sum()
            assert scores.logp_RT[i, t].item() == pytest.approx(np.log(p[stream[t]]), abs=1e-5)
            assert scores.entropy_RT[i, t].item() == pytest.approx(-(p[p > 0] * np.log(p[p > 0])).sum(), abs=1e-5)


def test_gradients_reach_every_used_weight_and_are_finite(codec: FastCodec, stats: NormStats, observations):
    twin = new_twin(codec=codec, stats=stats, task=TASK, seed=1, architecture=MINI)
    scores = score_rows(twin, observations, chunk_bins(twin, observations), 1.0)
    (scores.logp_RT.sum() + scores.entropy_RT.sum()).backward()
    grads = {name: p.grad for name, p in twin.model.named_parameters()}
    assert all(g is not None and torch.isfinite(g).all() for g in grads.values())
    # A key bias adds the same to every score of a query, so softmax leaves it without a gradient.
    assert all(g.abs().max() > 0 for name, g in grads.items() if g is not None and "k_proj.bias" not in name)


def test_a_few_steps_teach_the_twin_to_tell_pictures_apart(codec: FastCodec, stats: NormStats, observations):
    twin = new_twin(codec=codec, stats=stats, task=TASK, seed=2, architecture=MINI)
    # Equal states, so only the pictures say which chunk is meant.
    still = [Observation(o.frames, observations[0].state_deg) for o in observations]
    bins, mask = pad_streams([s[:6] for s in chunk_bins(twin, observations)], "cpu")
    args = twin.frames_tensor(still), twin.state_tensor(still), bins
    optimiser = torch.optim.AdamW(twin.model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(twin.logits(*args)[mask], bins[mask])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] > 5.0 and losses[-1] < 0.1


@pytest.mark.parametrize("case", ["incomplete", "temperature", "count"])
def test_unscorable_rows_are_refused(policy: VlaPolicy, observations, case: str):
    streams = chunk_bins(policy, observations)
    streams[0] = streams[0][:-1] if case == "incomplete" else streams[0]
    rows = streams[1:] if case == "count" else streams
    with pytest.raises(ConfigError):
        score_rows(policy, observations, rows, 0.0 if case == "temperature" else 1.0)


def test_bf16_autocast_stays_close_and_returns_float32(policy: VlaPolicy, observations):
    with torch.autocast("cpu", torch.bfloat16):
        low = logits_of(policy, observations)
    assert low.dtype == torch.float32 and 0 < (low - logits_of(policy, observations)).abs().max() < 0.2


def test_chunk_round_trips_through_bins_in_degrees(policy: VlaPolicy, stats: NormStats):
    chunk = np.linspace(stats.action.low_deg * 0.5, stats.action.high_deg * 0.5, 30)
    width = np.abs(stats.action.high_deg - stats.action.low_deg) / 2
    assert (np.abs(policy.decode_chunk(policy.encode_chunk(chunk)) - chunk) / width).max() < 0.19


def test_fresh_weights_depend_on_the_seed_alone(policy: VlaPolicy, codec: FastCodec, stats: NormStats):
    torch.manual_seed(123)
    digests = [new_twin(codec=codec, stats=stats, task=TASK, seed=s, architecture=MINI).digest() for s in (0, 1)]
    assert digests[0] == policy.digest() != digests[1]


def test_digest_changes_with_any_single_weight(codec: FastCodec, stats: NormStats):
    twin = new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI)
    seen = {twin.digest()}
    with torch.no_grad():
        for p in twin.model.parameters():
            p.view(-1)[-1] += 1e-3
            seen.add(twin.digest())
    assert len(seen) == 1 + len(list(twin.model.parameters()))


@pytest.fixture(scope="module")
def saved(policy: VlaPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("twin") / "step_0000"
    policy.save(directory)
    return directory


def load(directory: Path) -> VlaPolicy:
    return load_policy(checkpoint=str(directory), device="cpu", serve_head="ar", task=TASK)


def test_a_loaded_policy_gives_bit_identical_log_probabilities(policy: VlaPolicy, observations, saved: Path):
    again, streams = load(saved), chunk_bins(policy, observations)
    assert again.digest() == policy.digest()
    before, after = (score_rows(p, observations, streams, 0.7).logp_RT for p in (policy, again))
    assert torch.equal(before, after)


def test_saving_a_loaded_policy_writes_the_same_bytes(saved: Path, tmp_path: Path):
    load(saved).save(tmp_path)
    names = sorted(f.relative_to(saved) for f in saved.rglob("*") if f.is_file())
    assert {n.name for n in names} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "norm_stats.json",
    }
    for name in names:
        assert (saved / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_weights_are_stored_in_float32_under_the_released_names(policy: VlaPolicy, saved: Path):
    stored = load_file(saved / "model.safetensors")
    config = json.loads((saved / "config.json").read_text())
    assert config["model_type"] == "molmo2" and config["num_action_tokens"] == 512
    assert config["action_token_start_id"] == policy.prompt.ids.action_block == config["action_start_token_id"] + 2
    assert (
        stored["model.transformer.wte.embedding"].shape[0]
        == config["text_config"]["vocab_size"]
        == policy.prompt.ids.base_size
    )
    assert stored["model.transformer.wte.new_embedding"].shape[0] == config["text_config"]["additional_vocab_size"]
    assert {t.dtype for t in stored.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("damage", "refusal"),
    [
        ("missing", MissingWeights),
        ("extra", UnexpectedWeights),
        ("shape", MismatchedWeights),
        ("model_type", OneHead),  # read as a release, it lacks the expert that a release has
        ("no_weights", ConfigError),
    ],
)
def test_weights_that_do_not_fit_are_refused(saved: Path, tmp_path: Path, damage: str, refusal: type[VlaRlError]):
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    path, weights = copy / "model.safetensors", load_file(saved / "model.safetensors")
    if damage == "missing":
        del weights["model.vision_backbone.image_vit.positional_embedding"]
    elif damage == "extra":
        weights["model.transformer.surprise"] = torch.zeros(2)
    elif damage == "shape":
        weights["lm_head.weight"] = weights["lm_head.weight"][:-1].clone()
    elif damage == "model_type":
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "model_type": "molmoact2"}))
    path.unlink() if damage == "no_weights" else save_file(weights, path)
    with pytest.raises(refusal):
        load(copy)


def test_unknown_checkpoints_and_heads_are_refused(saved: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="no policy checkpoint"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="flow"):
        load_policy(checkpoint=str(saved), device="cpu", serve_head="flow", task=TASK)
    with pytest.raises(ConfigError, match="no_such_base"):
        load_policy(checkpoint="bundled:no_such_base", device="cpu", serve_head="ar", task=TASK)


def test_a_checkpoint_carries_the_scene_it_was_trained_in(saved: Path, tmp_path: Path):
    policy = load(saved)
    assert policy.training_scene is None and not policy.allow_scene_mismatch  # an older checkpoint does not know
    policy.training_scene = {"protocol": "sim100b", "scene_hash": "ab12", "look": {"name": "plain"}}
    policy.save(tmp_path / "known")
    assert load(tmp_path / "known").training_scene == policy.training_scene
    (tmp_path / "known" / "training_scene.json").write_text("{")
    with pytest.raises(IntegrityError, match="training scene"):
        load(tmp_path / "known")


def test_a_saved_policy_keeps_the_words_of_its_prompt(saved: Path, tmp_path: Path):
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    tables = json.loads((copy / "norm_stats.json").read_text())
    tables["metadata_by_tag"]["so101_test"] |= {"setup_type": "another arm", "control_mode": "another mode"}
    (copy / "norm_stats.json").write_text(json.dumps(tables))
    policy = load(copy)
    policy.save(tmp_path / "again")
    again = load(tmp_path / "again")
    assert again.wording == policy.wording == Wording("another arm", "another mode")
    assert torch.equal(again.prompt.template_P, policy.prompt.template_P)


def test_parts_of_two_checkpoints_are_refused(saved: Path, tmp_path: Path, stats: NormStats):
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    shutil.rmtree(copy / "fast_tokenizer")
    FastCodec.fit(np.zeros((2, 30, 6)), scale=10.0, vocabulary=256).save(copy / "fast_tokenizer")
    with pytest.raises(CodecMismatch):
        load(copy)
