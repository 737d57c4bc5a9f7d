"""The sampler: legal complete streams, noise keyed by the episode, rows that do not feel each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from vla_rl.errors import ConfigError
from vla_rl.policy.decode import Decoder
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import GrammarSampler, Prediction, PredictRequest
from vla_rl.seeds import stream


@pytest.fixture(scope="module")
def requests(observations: list[Observation]) -> list[PredictRequest]:
    return [PredictRequest(o, seed=300 + i // 2, draw=i % 2, replan=3) for i, o in enumerate(observations)]


@pytest.fixture(scope="module")
def sampler(policy: VlaPolicy) -> GrammarSampler:
    return GrammarSampler(batch_rows=8, policy=policy, run_seed=7)


def same(a: Prediction, b: Prediction) -> bool:
    fields = ("bins", "logp", "legal_packed", "chunk_deg")
    return a.rng_key == b.rng_key and all(np.array_equal(getattr(a, f), getattr(b, f)) for f in fields)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_stored_log_probabilities_equal_teacher_forced_ones(
    policy, sampler, requests, observations, temperature: float
):
    predictions = sampler.sample(requests, temperature)
    scores = score_rows(policy, observations, [p.bins for p in predictions], temperature or 1.0)
    for row, prediction in zip(scores.logp_RT.detach().numpy(), predictions, strict=True):
        assert np.abs(row[: len(prediction.bins)] - prediction.logp).max() <= 1e-5


def test_predictions_are_complete_and_their_masks_recompute_bit_for_bit(policy, sampler, requests):
    for request, p in zip(requests, sampler.sample(requests, 1.0), strict=True):
        assert policy.codec.lengths_V[p.bins].sum() == 180 and p.bins.dtype == np.int16
        assert p.logp.dtype == np.float32 and p.logp.shape == p.bins.shape and (p.logp <= 0).all()
        assert np.array_equal(p.legal_packed, policy.grammar.packed_masks(p.bins)) and p.legal_packed.shape[1] == 64
        assert np.array_equal(p.chunk_deg, policy.decode_chunk(p.bins)) and p.chunk_deg.shape == (30, 6)
        assert p.rng_key == (7, request.draw, request.seed, 3)


def test_tokens_are_the_argmax_of_masked_scores_plus_keyed_gumbel_noise(policy, sampler, requests, observations):
    temperature = 0.7
    for request, p in zip(requests[:3], sampler.sample(requests[:3], temperature), strict=True):
        waiting = stream("token", 7, request.draw, request.seed, 3).standard_exponential(
            (len(p.bins), 512), dtype=np.float32
        )
        args = policy.frames_tensor([request.observation]), policy.state_tensor([request.observation])
        with torch.no_grad():
            logits = policy.logits(*args, torch.from_numpy(p.bins[None].astype(np.int64)))[0].numpy()
        scores = np.where(
            policy.grammar.masks(p.bins), logits / temperature - np.log(waiting.astype(np.float64)), -np.inf
        )
        assert scores.argmax(1).tolist() == p.bins.tolist()


def test_same_requests_give_the_same_predictions_also_from_a_new_sampler(policy, sampler, requests):
    first = sampler.sample(requests, 1.0)
    fresh = GrammarSampler(batch_rows=8, policy=policy, run_seed=7).sample(requests, 1.0)
    assert all(map(same, first, sampler.sample(requests, 1.0))) and all(map(same, first, fresh))


# Matrix products of 5 and 7 rows are where two threads would treat rows differently.
@pytest.mark.parametrize(("rows", "threads"), [(1, 1), (7, 1), (8, 1), (5, 2)], indirect=["threads"])
def test_a_row_feels_neither_its_slot_nor_its_neighbours_nor_the_batch_order(policy, requests, rows: int, threads: int):
    sampler = GrammarSampler(batch_rows=rows, policy=policy, run_seed=7)
    together = sampler.sample(requests, 1.0)
    order = np.random.default_rng(rows).permutation(len(requests))
    shuffled = sampler.sample([requests[i] for i in order], 1.0)
    assert all(same(shuffled[k], together[i]) for k, i in enumerate(order))
    assert all(same(sampler.sample([r], 1.0)[0], t) for r, t in zip(requests[:3], together, strict=False))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("threads", "lanes"), [(1, 1), (2, 2), (3, 2)], indirect=["threads"])
def test_lanes_asked_at_the_same_time_answer_as_one_sampler_does(policy, requests, threads: int, lanes: int):
    sampler = GrammarSampler(batch_rows=4, policy=policy, run_seed=7)
    alone = sampler.sample(requests, 1.0)
    used = set()

    def ask(lane: GrammarSampler) -> list[Prediction]:
        answers = [lane.sample(requests, 1.0) for _ in range(4)]
        used.add(torch.get_num_threads())
        assert all(all(map(same, answers[0], answer)) for answer in answers[1:])
        return answers[-1]

    with sampler.lanes(2) as several, ThreadPoolExecutor(2) as threads_of_lanes:
        assert len(several) == lanes and several[0] is sampler
        for answer in threads_of_lanes.map(ask, several):
            assert all(map(same, answer, alone))
    assert used == {1} and torch.get_num_threads() == threads


def test_a_row_of_the_full_size_twin_does_not_feel_the_width_of_its_batch(boat_policy, observations):
    requests = [PredictRequest(o, seed=300 + i, draw=0, replan=0) for i, o in enumerate(observations * 2)]
    sampler = GrammarSampler(batch_rows=16, policy=boat_policy, run_seed=7)
    assert [sampler._current_decoder().width(rows) for rows in (1, 4, 5, 9, 13, 16)] == [4, 4, 8, 12, 16, 16]
    widest = sampler.sample(requests, 0.7)
    for rows in (1, 5, 12):
        assert all(map(same, sampler.sample(requests[-rows:], 0.7), widest[-rows:]))


@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
def test_prefill_of_the_full_size_twin_does_not_depend_on_the_slot(boat_policy, observations, threads: int):
    decoder, order = Decoder(boat_policy, 8), [3, 0, 7, 5, 1, 6, 2, 4]
    frames, state = boat_policy.frames_tensor(observations), boat_policy.state_tensor(observations)
    with torch.no_grad():
        straight = decoder.prefill(frames, state)
        assert torch.equal(decoder.prefill(frames[order], state[order]), straight[order])


@pytest.mark.parametrize("field", ["seed", "draw", "replan"])
def test_every_part_of_the_key_changes_the_tokens(sampler, requests, field: str):
    request = requests[0]
    other = PredictRequest(
        request.observation, **{k: getattr(request, k) + (k == field) for k in ("seed", "draw", "replan")}
    )
    a, b = sampler.sample([request, other], 1.0)
    assert a.bins.tolist() != b.bins.tolist() and a.logp[0] != b.logp[0]


def test_the_run_seed_changes_the_tokens_and_greedy_ignores_every_key(policy, sampler, requests):
    other = GrammarSampler(batch_rows=8, policy=policy, run_seed=8)
    sampled = zip(sampler.sample(requests, 1.0), other.sample(requests, 1.0), strict=True)
    assert any(a.bins.tolist() != b.bins.tolist() for a, b in sampled)
    greedy = zip(sampler.sample(requests, 0.0), other.sample(requests, 0.0), strict=True)
    assert all(a.bins.tolist() == b.bins.tolist() for a, b in greedy)


def test_temperature_towards_zero_is_greedy(sampler, requests):
    greedy, cold = sampler.sample(requests, 0.0), sampler.sample(requests, 1e-6)
    assert [p.bins.tolist() for p in greedy] == [p.bins.tolist() for p in cold]


def test_sampled_first_tokens_follow_the_masked_softmax(policy, requests):
    sampler = GrammarSampler(batch_rows=8, policy=policy, run_seed=1)
    request, temperature, n = requests[0], 0.3, 120
    draws = sampler.sample([PredictRequest(request.observation, 0, draw, 0) for draw in range(n)], temperature)
    frequent, count = max(
        ((b, sum(p.bins[0] == b for p in draws)) for b in {int(p.bins[0]) for p in draws}), key=lambda x: x[1]
    )
    probability = float(np.exp(next(p.logp[0] for p in draws if p.bins[0] == frequent)))
    assert abs(count / n - probability) < 4 * np.sqrt(probability * (1 - probability) / n)


def test_fused_steps_equal_the_full_forward(policy, observations):
    decoder = Decoder(policy, len(observations))
    bins = torch.randint(0, 165, (len(observations), 6), generator=torch.Generator().manual_seed(0))
    frames, state = policy.frames_tensor(observations), policy.state_tensor(observations)
    with torch.no_grad():
        steps = [decoder.prefill(frames, state)] + [decoder.step(bins[:, t]) for t in range(5)]
        assert (torch.stack(steps, 1) - policy.logits(frames, state, bins)).abs().max() < 1e-5


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), 1e-40])
def test_impossible_temperatures_and_batches_are_refused(policy, sampler, requests, temperature: float):
    with pytest.raises(ConfigError):
        sampler.sample(requests, temperature)
    with pytest.raises(ConfigError):
        GrammarSampler(batch_rows=0, policy=policy, run_seed=0)
