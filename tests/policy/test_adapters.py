"""Networks of other families behind the same seam: graft, sample, score, update, save, export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_support import build_network, plain_tokenizer, write_model
from policy_support import MINI, TASK
from safetensors.torch import load_file, save_file

from vla_rl.config.schema import LoraConfig, LossConfig, OptimConfig
from vla_rl.errors import ConfigError
from vla_rl.policy import refusals, rowgradients
from vla_rl.policy.cached_forward import CachedForward
from vla_rl.policy.export import export_policy
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.graft import give_action_tokens
from vla_rl.policy.logprob import pad_streams, score_rows
from vla_rl.policy.molmo2 import build_twin, twin_config
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, load_policy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.policy.sampler import GrammarSampler, PredictRequest
from vla_rl.policy.sources import Sources
from vla_rl.policy.tokenizer import TokenIds, build_tokenizer
from vla_rl.policy.validate import validate
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.surfaces import Full, Lora, PatchOnly, TextStack
from vla_rl.rl.update import build_optimizer, grpo_update
from vla_rl.rollout.records import EpisodeSpec, Row

FAMILIES = ("smolvlm", "idefics3", "llava")


@pytest.fixture(scope="module", params=FAMILIES)
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("hf") / request.param, request.param)


def graft(directory: Path, codec: FastCodec, stats: NormStats, seed: int = 0) -> VlaPolicy:
    return give_action_tokens(directory, codec=codec, stats=stats, task=TASK, seed=seed, dtype=torch.float32)


@pytest.fixture(scope="module")
def grafted(model_dir: Path, codec: FastCodec, stats: NormStats) -> VlaPolicy:
    """Shared: tests that change weights make their own."""
    return graft(model_dir, codec, stats)


def sample(policy: VlaPolicy, observations: list[Observation], temperature: float = 1.0):
    sampler = GrammarSampler(batch_rows=4, policy=policy, run_seed=7)
    return sampler.sample([PredictRequest(o, 300 + i, i % 2, 0) for i, o in enumerate(observations)], temperature)


# ------------------------------------------------------------------------------------------------- grafted tokens
def test_old_ids_and_rows_stay_and_new_rows_depend_on_the_seed_alone(model_dir, codec, stats, grafted):
    before, tokenizer = build_network(model_dir.name), plain_tokenizer()
    known = tokenizer.get_vocab_size()
    for text in ("pick up the boat<image>", "<global-img>é"):
        assert tokenizer.encode(text).ids == grafted.tokenizer.encode(text).ids
    tables = ("get_input_embeddings", "get_output_embeddings")
    for table in tables:
        old, new = (getattr(model, table)().weight for model in (before, grafted.model))
        assert torch.equal(old[:known], new[:known]) and new.shape[0] == grafted.tokenizer.get_vocab_size()
    kept = {n: p for n, p in before.named_parameters() if n not in grafted.adapter.token_tables}
    after = dict(grafted.model.named_parameters())
    assert len(kept) == len(after) - 2 and all(torch.equal(p, after[n]) for n, p in kept.items())
    torch.manual_seed(99)
    assert graft(model_dir, codec, stats).digest() == grafted.digest()
    assert graft(model_dir, codec, stats, seed=1).digest() != grafted.digest()


def test_the_prompt_holds_every_picture_feature_and_ends_with_the_action_start(grafted: VlaPolicy):
    ids, features = grafted.prompt.ids, {"smolvlm": 9, "idefics3": 9, "llava": 36}[grafted.model.config.model_type]
    template = grafted.prompt.template_P
    assert int((template == ids.patch).sum()) == 2 * features and int(template[-1]) == ids.action_start
    assert grafted.tokenizer.id_to_token(ids.action_block + 511) == "<action_511>"


def test_pictures_camera_order_and_state_all_change_the_logits(grafted: VlaPolicy, observations):
    bins, _ = pad_streams([grafted.encode_chunk(np.tile(o.state_deg, (30, 1))) for o in observations], "cpu")

    def first(seen: list[Observation]) -> torch.Tensor:
        with torch.no_grad():
            return grafted.logits(grafted.frames_tensor(seen), grafted.state_tensor(seen), bins)[:, 0]

    before = first(observations)
    for other in (
        [Observation(255 - o.frames, o.state_deg) for o in observations],
        [Observation(o.frames[::-1].copy(), o.state_deg) for o in observations],
        [Observation(o.frames, o.state_deg + 20.0) for o in observations],
    ):
        assert (first(other) - before).abs().amax(1).min() > 1e-3


@torch.no_grad()
def test_logits_are_those_of_the_models_own_forward_on_the_action_columns(grafted: VlaPolicy, observations):
    streams = [grafted.encode_chunk(np.tile(o.state_deg, (30, 1))) for o in observations]
    bins, _ = pad_streams(streams, "cpu")
    batch, block = grafted.prompt_batch(observations), grafted.prompt.ids.action_block
    ids = torch.cat([batch["input_ids"], bins[:, :-1] + block], dim=1)
    out = grafted.model(**{**batch, "input_ids": ids, "attention_mask": torch.ones_like(ids)})
    expected = out.logits[:, grafted.prompt.length - 1 :, block : block + grafted.vocabulary]
    found = grafted.logits(grafted.frames_tensor(observations), grafted.state_tensor(observations), bins)
    assert found.shape == expected.shape and (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_streams_are_legal_and_sampled_log_probabilities_are_the_teacher_forced_ones(
    grafted: VlaPolicy, observations, temperature: float
):
    predictions = sample(grafted, observations, temperature)
    scores = score_rows(grafted, observations, [p.bins for p in predictions], temperature or 1.0)
    for row, p in zip(scores.logp_RT.detach().numpy(), predictions, strict=True):
        assert grafted.grammar.lengths_V[p.bins].sum() == 180 and p.chunk_deg.shape == (30, 6)
        assert np.abs(row[: len(p.bins)] - p.logp).max() <= 1e-5


def rows_of(policy: VlaPolicy, observations: list[Observation]) -> list[Row]:
    return [
        Row(
            spec=EpisodeSpec(300, i), replan=0, frames=o.frames, state_deg=o.state_deg, bins=p.bins, logp=p.logp,
            legal_packed=p.legal_packed, rng_key=p.rng_key, policy_digest="",
        )
        for i, (o, p) in enumerate(zip(observations, sample(policy, observations), strict=True))
    ]  # fmt: skip


def one_update(policy, parameters, surface, rows, advantages, optim):
    return grpo_update(
        policy=policy, parameters=parameters, optimizer=build_optimizer(parameters, optim, surface), rows=rows,
        advantages=advantages, settings=UpdateSettings.of(LossConfig(), optim), temperature=1.0, step=1,
    )  # fmt: skip


LORA = Lora(rank=4, alpha=8.0, targets=LoraConfig().targets, run_seed=0)


@pytest.mark.parametrize("surface", [Full(), TextStack(), PatchOnly(), LORA], ids=lambda s: type(s).__name__)
def test_one_grpo_update_moves_the_surface_alone_and_towards_the_better_rows(
    model_dir, codec, stats, observations, surface
):
    policy = graft(model_dir, codec, stats)
    rows, parameters = rows_of(policy, observations[:4]), surface.trainable(policy)
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    optim = OptimConfig(lr=1e-3, microbatch_rows=2)
    advantages = {row.spec: 1.0 if i % 2 else -1.0 for i, row in enumerate(rows)}
    result = one_update(policy, parameters, surface, rows, advantages, optim)
    assert result.rollout_gap is not None and result.rollout_gap < 1e-5 and not result.step_skipped
    moved = {n for n, p in policy.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved and moved <= {n for n, _ in parameters}
    if isinstance(surface, PatchOnly):
        block = policy.prompt.ids.action_block
        for name in moved:
            rows_moved = (dict(policy.model.named_parameters())[name] != before[name]).any(1).nonzero().flatten()
            assert block <= int(rows_moved.min()) and int(rows_moved.max()) < block + policy.vocabulary
    after = score_rows(policy, observations[:4], [r.bins for r in rows], 1.0).logp_RT.detach().sum(1).numpy()
    gain = after - np.array([r.logp.sum() for r in rows])
    assert gain[[1, 3]].mean() > gain[[0, 2]].mean()


@pytest.mark.parametrize("surface", [TextStack(), PatchOnly()], ids=lambda s: type(s).__name__)
def test_an_update_of_the_reached_rows_is_that_of_whole_tables_bit_for_bit(
    model_dir, codec, stats, observations, surface, monkeypatch
):
    """A tied head and its embedding are one table, which both read."""
    found = []
    for whole in (False, True):
        policy = graft(model_dir, codec, stats)
        rows = rows_of(policy, observations[:4])
        with monkeypatch.context() as before:
            if whole:
                before.setattr(rowgradients, "attach", lambda *_: None)
            parameters = surface.trainable(policy)
        tables = [p for n, p in parameters if n in policy.adapter.token_tables]
        assert all((leaf_of(table) is table) is whole for table in tables) and tables
        advantages = {row.spec: 1.0 if i % 2 else -1.0 for i, row in enumerate(rows)}
        result = one_update(policy, parameters, surface, rows, advantages, OptimConfig(lr=1e-3, microbatch_rows=2))
        found.append((policy.digest(), result.grad_norm))
    assert found[0] == found[1]


def test_a_saved_policy_loads_validates_and_exports_bit_for_bit(grafted: VlaPolicy, observations, tmp_path: Path):
    grafted.save(tmp_path / "saved")
    again = load_policy(checkpoint=str(tmp_path / "saved"), device="cpu", serve_head="ar", task=TASK)
    assert again.digest() == grafted.digest() and again.adapter == grafted.adapter
    with torch.no_grad():
        again.model.get_output_embeddings().weight[again.prompt.ids.action_block] += 1.0
    receipt = export_policy(again, tmp_path / "out", source={})
    assert len(receipt.changed) == 1
    assert validate(tmp_path / "out", Sources()).valid
    exported = load_policy(checkpoint=str(tmp_path / "out"), device="cpu", serve_head="ar", task=TASK)
    assert exported.digest() == again.digest()
    for one, other in zip(sample(again, observations), sample(exported, observations), strict=True):
        assert np.array_equal(one.bins, other.bins) and np.array_equal(one.logp, other.logp)


def test_weights_under_names_that_only_the_loader_understands_are_not_exported_untrained(codec, stats, tmp_path: Path):
    policy = graft(write_model(tmp_path / "llava", "llava"), codec, stats)
    policy.save(tmp_path / "saved")
    path = tmp_path / "saved" / "model.safetensors"
    weights = load_file(path)
    renamed = {n.replace("language_model.model.", "model.language_model."): t for n, t in weights.items()}
    assert renamed.keys() != weights.keys()
    save_file(renamed, path, metadata={"format": "pt"})
    again = load_policy(checkpoint=str(tmp_path / "saved"), device="cpu", serve_head="ar", task=TASK)
    assert again.digest() == policy.digest()
    with pytest.raises(refusals.MissingWeights):
        export_policy(again, tmp_path / "out", source={})
    assert not (tmp_path / "out").exists()


def test_a_tied_head_stays_tied(codec, stats, observations, tmp_path: Path):
    policy = graft(write_model(tmp_path / "smolvlm", "smolvlm", tied=True), codec, stats)
    assert policy.model.lm_head.weight is policy.model.get_input_embeddings().weight
    assert len(policy.adapter.token_tables) == 1
    policy.save(tmp_path / "saved")
    again = load_policy(checkpoint=str(tmp_path / "saved"), device="cpu", serve_head="ar", task=TASK)
    assert again.digest() == policy.digest()
    export_policy(again, tmp_path / "out", source={})
    assert validate(tmp_path / "out", Sources()).valid


# ------------------------------------------------------------------------------------------------------- refusals
def damage(directory: Path, case: str) -> None:
    config, weights = json.loads((directory / "config.json").read_text()), load_file(directory / "model.safetensors")
    if case == "family":
        config["model_type"] = "qwen2_vl"
    elif case == "missing":
        del weights[next(n for n in weights if "connector" in n)]
    elif case == "extra":
        weights["surprise"] = torch.zeros(2)
    elif case == "nan":
        weights["lm_head.weight"][0, 0] = float("nan")
    elif case == "scaling":
        (directory / "preprocessor_config.json").unlink()
    elif case == "type":
        config["model_type"] = ["smolvlm"]
    elif case == "sizes":
        config["text_config"]["hidden_size"] = "x"
    elif case == "peft":
        (directory / "adapter_config.json").write_text("{}")
    (directory / "config.json").write_text(json.dumps(config))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("case", "refusal"),
    [
        ("family", ConfigError),
        ("missing", refusals.MissingWeights),
        ("extra", refusals.UnexpectedWeights),
        ("nan", refusals.DamagedFile),
        ("scaling", ConfigError),
        ("type", ConfigError),
        ("sizes", refusals.UnsupportedFeature),
        ("peft", refusals.UnsupportedFeature),
    ],
)
def test_models_that_cannot_be_given_action_tokens_are_refused(codec, stats, tmp_path: Path, case, refusal):
    directory = write_model(tmp_path / "model", "smolvlm")
    damage(directory, case)
    with pytest.raises(refusal):
        graft(directory, codec, stats)


# --------------------------------------------------------------------------------------- Molmo2 unlike the release
@pytest.mark.parametrize("difference", [{"qk_norm_type": "olmo"}, {"norm_after": True}, {"attention_bias": True}])
def test_molmo2_networks_unlike_the_release_step_through_their_own_forward(codec, stats, observations, difference):
    tokenizer = build_tokenizer(TASK, codec.vocabulary)
    config = twin_config(MINI, tokenizer, TokenIds.of(tokenizer, codec.vocabulary), codec.vocabulary)
    for key, value in difference.items():
        setattr(config.text_config, key, value)
    policy = VlaPolicy(
        model=build_twin(config, seed=0), tokenizer=tokenizer, codec=codec, stats=stats, task=TASK, device="cpu"
    )
    assert isinstance(policy.decoder(4), CachedForward)
    predictions = sample(policy, observations)
    scores = score_rows(policy, observations, [p.bins for p in predictions], 1.0).logp_RT.detach().numpy()
    assert max(np.abs(row[: len(p.bins)] - p.logp).max() for row, p in zip(scores, predictions, strict=True)) <= 1e-5
