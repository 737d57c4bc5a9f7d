"""Grammar-masked and reference decoding: what is counted, what is executed, which prompts are read, in any batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from policy_support import MINI, TASK, released_artifact

from vla_rl.errors import ConfigError
from vla_rl.policy import decode, reference
from vla_rl.policy.decode import Decoder
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.grammar import Grammar
from vla_rl.policy.logprob import pad_streams
from vla_rl.policy.noise import gumbel_noise
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, new_twin
from vla_rl.policy.prompt import Observation
from vla_rl.policy.reference import longest_answer, span
from vla_rl.policy.sampler import DecodeCounts, GrammarSampler, Prediction, PredictRequest, distinct

TEXT = 5  # an id of the text vocabulary


@pytest.fixture(scope="module")
def requests(observations: list[Observation]) -> list[PredictRequest]:
    return [PredictRequest(o, seed=300 + i // 2, draw=i % 2, replan=3) for i, o in enumerate(observations)]


def same(a: Prediction, b: Prediction) -> bool:
    arrays = ("bins", "logp", "legal_packed", "chunk_deg")
    return all(np.array_equal(getattr(a, f), getattr(b, f)) for f in arrays) and a.counts == b.counts


# ---------------------------------------------------------------------------------------------------- grammar-masked
@torch.no_grad()
def test_masked_violations_are_the_tokens_whose_most_likely_bin_is_illegal(policy, requests, observations):
    predictions = GrammarSampler(batch_rows=8, policy=policy, run_seed=1).sample(requests, 1.0)
    bins, mask = pad_streams([p.bins for p in predictions], "cpu")
    logits = policy.logits(policy.frames_tensor(observations), policy.state_tensor(observations), bins)
    expected = [
        sum(not legal[best] for legal, best in zip(policy.grammar.masks(p.bins), row.argmax(-1).tolist(), strict=False))
        for p, row in zip(predictions, logits, strict=True)
    ]
    assert [p.counts.masked_violations for p in predictions] == expected and sum(expected) > 0
    assert all(p.counts.zero_fallbacks == p.counts.wider_bins == 0 and p.fault is None for p in predictions)


@pytest.fixture(scope="module")
def released_policies(tmp_path_factory: pytest.TempPathFactory, stats: NormStats) -> dict[str, VlaPolicy]:
    """A twin over the released artifact's excerpt, under each grammar."""
    codec = FastCodec.load(released_artifact(tmp_path_factory.mktemp("fast")), horizon=30, dim=6)
    twin = new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI)
    parts = {"model": twin.model, "tokenizer": twin.tokenizer, "codec": codec, "stats": stats, "task": TASK}
    return {kind: VlaPolicy(**parts, device="cpu", grammar=kind) for kind in ("reachable", "documented")}


@pytest.mark.parametrize(("grammar", "legal"), [("reachable", 141), ("documented", 174)])
def test_stored_masks_are_those_of_the_grammar_and_the_wider_set_s_use_is_counted(
    released_policies, requests, grammar: str, legal: int
):
    policy = released_policies[grammar]
    assert (policy.grammar.lengths_V > 0).sum() == legal
    for p in GrammarSampler(batch_rows=4, policy=policy, run_seed=1).sample(requests, 3.0):
        assert np.array_equal(p.legal_packed, policy.grammar.packed_masks(p.bins)) and p.legal_packed.shape[1] == 256
        first = np.unpackbits(p.legal_packed[0])
        assert first.sum() == legal and first[:33].any() == (grammar == "documented")
        assert p.counts.wider_bins == (p.bins < 33).sum() and (p.counts.wider_bins > 0) == (grammar == "documented")
        assert np.array_equal(p.chunk_deg, policy.decode_chunk(p.bins))


def test_a_grammar_of_another_name_is_refused(codec: FastCodec):
    with pytest.raises(ConfigError, match="policy.grammar"):
        Grammar.of(codec, "anything")


@pytest.mark.parametrize("kind", ["documented", "documented_block", "device"])
def test_tokens_are_the_argmax_of_masked_scores_plus_the_chosen_noise(policy, requests, observations, kind: str):
    sampler = GrammarSampler(batch_rows=4, policy=policy, run_seed=7, keys=kind)
    for request, p in zip(requests[:3], sampler.sample(requests[:3], 0.7), strict=True):
        noise = gumbel_noise(
            kind, [p.rng_key], width=512, block_start=policy.prompt.ids.action_block,
            vocabulary=policy.prompt.ids.base_size, device="cpu",
        )  # fmt: skip
        args = policy.frames_tensor([request.observation]), policy.state_tensor([request.observation])
        with torch.no_grad():
            logits = policy.logits(*args, torch.from_numpy(p.bins[None].astype(np.int64)))[0].numpy()
        gumbel = torch.stack([noise() for _ in p.bins])[:, 0].numpy()
        scores = np.where(policy.grammar.masks(p.bins), logits / 0.7 + gumbel, -np.inf)
        assert scores.argmax(1).tolist() == p.bins.tolist()


@pytest.mark.parametrize("kind", ["named", "documented", "documented_block", "device"])
def test_cold_sampling_is_greedy_and_rows_ignore_their_batch_under_every_kind_of_key(policy, requests, kind: str):
    sampler = GrammarSampler(batch_rows=8, policy=policy, run_seed=7, keys=kind)
    greedy, cold = sampler.sample(requests, 0.0), sampler.sample(requests, 1e-6)
    assert [p.bins.tolist() for p in greedy] == [p.bins.tolist() for p in cold]
    together, reverse = sampler.sample(requests, 1.0), sampler.sample(requests[::-1], 1.0)[::-1]
    assert all(map(same, together, reverse))
    assert all(same(sampler.sample([r], 1.0)[0], t) for r, t in zip(requests[:2], together, strict=False))


# ----------------------------------------------------------------------------------------------------- shared prompts
def test_equal_observations_are_told_from_different_ones(observations):
    twin = Observation(observations[1].frames.copy(), observations[1].state_deg.copy())
    moved = Observation(observations[1].frames, observations[1].state_deg + 1e-9)
    different, which = distinct([observations[0], observations[1], twin, moved, observations[0]])
    assert which == [0, 1, 1, 2, 0] and different == [observations[0], observations[1], moved]


@pytest.mark.parametrize(("prompts", "read"), [(1, 4), (2, 4), (5, 8), (8, 8)])
def test_draws_of_one_picture_share_its_prefill_and_sample_what_they_sample_alone(
    policy, observations, prompts: int, read: int, monkeypatch: pytest.MonkeyPatch
):
    requests = [PredictRequest(observations[i % prompts], seed=300, draw=i, replan=0) for i in range(8)]
    sampler, rows, real = GrammarSampler(batch_rows=8, policy=policy, run_seed=7), [], decode.prompt_embeddings
    monkeypatch.setattr(
        decode, "prompt_embeddings", lambda *args: (rows.append(len(args[2])), real(*args))[1]
    )  # counts prompts read
    together = sampler.sample(requests, 1.0)
    assert sum(rows) == read and set(rows) == {4}
    assert all(same(sampler.sample([r], 1.0)[0], t) for r, t in zip(requests, together, strict=True))
    assert len({tuple(p.bins) for p in together}) == 8


@torch.no_grad()
def test_prefill_and_every_step_give_a_row_the_same_bits_whatever_else_is_in_the_batch(policy, observations):
    decoder = Decoder(policy, 8)
    bins = torch.randint(0, 165, (8, 24), generator=torch.Generator().manual_seed(0))
    frames, state = policy.frames_tensor(observations), policy.state_tensor(observations)

    def run(rows: Sequence[int], prompts: Sequence[int]) -> torch.Tensor:
        chosen = torch.tensor(prompts)
        seen = [decoder.prefill(frames[chosen], state[chosen], rows)]
        return torch.stack([*seen, *(decoder.step(bins[chosen[torch.tensor(rows)], t]) for t in range(24))], 1)

    everything = run(range(8), range(8))
    for rows, prompts in (([3, 1, 0, 2, 5, 4, 7, 6], range(8)), ([0] * 8, [5]), ([0, 1, 1, 0, 2, 2, 2, 2], [6, 3, 0])):
        of = torch.tensor([prompts[r] for r in rows])
        assert torch.equal(run(rows, prompts), everything[of])


# ---------------------------------------------------------------------------------------------------------- reference
@torch.no_grad()
def test_reference_ids_are_those_of_transformers_generate(policy, observations):
    decoder = policy.decoder(8, unconstrained=longest_answer(policy))
    frames, state = policy.frames_tensor(observations), policy.state_tensor(observations)
    logits, ids = decoder.prefill(frames, state), []
    for _ in range(12):
        ids.append(logits.argmax(-1))
        logits = decoder.step(ids[-1])
    batch = policy.prompt_batch(observations)
    for key in ("input_ids", "attention_mask", "mm_token_type_ids"):
        batch[key] = batch[key][:, :-1]  # the release writes <action_start> itself
    generated = policy.model.generate(**batch, max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None)
    assert torch.equal(torch.stack(ids, 1), generated[:, batch["input_ids"].shape[1] :])


class ScriptedDecoder:
    """Answers with given ids, one list a row; repeats EOS past the end."""

    def __init__(self, policy: VlaPolicy, rows: Sequence[Sequence[int]], eos: int) -> None:
        self.policy, self.rows, self.eos, self.at = policy, rows, eos, 0

    def width(self, _: int) -> int:
        return len(self.rows)

    def narrowed(self, _: int) -> ScriptedDecoder:
        return self

    def prefill(self, *_: object) -> torch.Tensor:
        return self.step(None)

    def step(self, _: object) -> torch.Tensor:
        ids = [row[self.at] if self.at < len(row) else self.eos for row in self.rows]
        self.at += 1
        return torch.nn.functional.one_hot(
            torch.tensor(ids, dtype=torch.long), self.policy.prompt.ids.base_size
        ).float()


def scripted(policy: VlaPolicy, requests: Sequence[PredictRequest], answers: Sequence[Sequence[int]]):
    """Predictions in mode reference of a network that says `answers`."""
    sampler = GrammarSampler(batch_rows=len(answers), policy=policy, run_seed=0, mode="reference")
    eos = policy.tokenizer.token_to_id("<|im_end|>")
    sampler._decoder = ScriptedDecoder(policy, answers, eos)  # type: ignore[assignment]
    return sampler.sample(requests[: len(answers)], 0.0)


def test_reference_answers_are_read_and_judged_row_by_row(policy: VlaPolicy, requests):
    ids, eos = policy.prompt.ids, policy.tokenizer.token_to_id("<|im_end|>")
    chunk = policy.stats.action.denormalise(np.full((30, 6), 0.3) * np.linspace(-1, 1, 30)[:, None])
    bins = policy.encode_chunk(chunk).tolist()
    said, start, end = [b + ids.action_block for b in bins], ids.action_start, ids.action_block - 1
    unit = int(np.flatnonzero(policy.grammar.lengths_V == 1)[0]) + ids.action_block
    answers = [
        [start, *said, end, eos],
        [start, *said[:3], TEXT, *said[3:], end, unit, eos],  # text is dropped, what follows the end is not read
        [*said, eos],  # no start: read from the beginning; no end: up to EOS
        [TEXT, unit, start, *said, end, eos],  # what stands before the start is not read
        [start, end, eos],
        [start, *[unit] * 6, end, eos],
        [start, *said, *[unit] * 12, end, eos],
        [start, *said, unit, end, eos],
    ]
    predictions = scripted(policy, requests, answers)
    faults = [None, None, None, None, "empty", "short", "long", "ragged"]
    assert [p.fault for p in predictions] == faults
    assert [p.counts for p in predictions] == [DecodeCounts(zero_fallbacks=int(f is not None)) for f in faults]
    for p in predictions[:4]:
        assert p.bins.tolist() == bins and np.array_equal(p.chunk_deg, policy.decode_chunk(np.array(bins)))
    middle = (policy.stats.action.low_deg + policy.stats.action.high_deg) / 2
    assert all(np.allclose(p.chunk_deg, middle, atol=1e-12) for p in predictions[4:])
    assert all(len(p.logp) == len(p.bins) == len(p.legal_packed) for p in predictions)


def test_an_answer_without_eos_is_unfinished_after_sixteen_tokens_a_tick(policy: VlaPolicy, requests):
    ids = policy.prompt.ids
    said = [b + ids.action_block for b in policy.encode_chunk(requests[0].observation.state_deg * np.ones((30, 1)))]
    endless = [ids.action_start, *said, ids.action_block - 1, *[TEXT] * 500]
    (p,) = scripted(policy, requests, [endless])
    assert (p.fault, p.counts.zero_fallbacks) == ("unfinished", 1) and p.bins.tolist() == [
        s - ids.action_block for s in said
    ]


def test_unlearned_bins_of_a_reference_answer_are_skipped(released_policies, requests):
    policy = released_policies["reachable"]
    ids, eos = policy.prompt.ids, policy.tokenizer.token_to_id("<|im_end|>")
    bins = policy.encode_chunk(policy.zero_chunk())
    said = [*(b + ids.action_block for b in bins), ids.action_block + 1500]
    (p,) = scripted(policy, requests, [[ids.action_start, *said, ids.action_block - 1, eos]])
    assert p.fault is None and p.bins[-1] == 1500 and np.array_equal(p.chunk_deg, policy.decode_chunk(bins))


def test_the_span_of_an_answer_is_as_documented(policy: VlaPolicy):
    ids = policy.prompt.ids
    start, end, block = ids.action_start, ids.action_block - 1, ids.action_block
    for said, kept in (
        ([start, block, block + 511, end, block], [1, 2]),
        ([block, end, start, block], [3]),
        ([block, TEXT, block], [0, 2]),
        ([end, block], []),
        ([start, start, block, block + 512], [2]),
        ([], []),
    ):
        assert span(np.array(said, dtype=np.int64), ids, 512).tolist() == kept


def test_a_real_reference_batch_equals_its_rows_alone(policy: VlaPolicy, requests, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reference, "STEPS_PER_TICK", 1)
    sampler = GrammarSampler(batch_rows=4, policy=policy, run_seed=0, mode="reference")
    together = sampler.sample(requests[:4], 0.0)
    assert all(same(sampler.sample([r], 0.0)[0], t) for r, t in zip(requests[:4], together, strict=True))


def test_reference_decoding_knows_no_temperature_and_modes_and_keys_are_checked(policy: VlaPolicy, requests):
    with pytest.raises(ConfigError, match="greedy"):
        GrammarSampler(batch_rows=4, policy=policy, run_seed=0, mode="reference").sample(requests[:1], 1.0)
    with pytest.raises(ConfigError, match="sampler.mode"):
        GrammarSampler(batch_rows=4, policy=policy, run_seed=0, mode="beam")
    with pytest.raises(ConfigError, match="sampler.keys"):
        GrammarSampler(batch_rows=4, policy=policy, run_seed=0, keys="sobol")


def test_latency_is_the_batch_s_and_counts_add_up(policy: VlaPolicy, requests):
    predictions = GrammarSampler(batch_rows=4, policy=policy, run_seed=0).sample(requests[:6], 0.0)
    waited = [p.counts.predict_s for p in predictions]
    assert len(set(waited[:4])) == len(set(waited[4:])) == 1 and min(waited) > 0
    assert DecodeCounts(1, 2, 3, 0.5) + DecodeCounts(10, 20, 30, 0.25) == DecodeCounts(11, 22, 33)
    assert (DecodeCounts(predict_s=0.5) + DecodeCounts(predict_s=0.25)).predict_s == 0.75
