"""Serving of the flow head: chunks keyed by their row, rows that do not feel each other, and what is refused."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from expert_support import SIZES, taught
from policy_support import MINI, TASK

from vla_rl.config.schema import TwinConfig
from vla_rl.errors import ConfigError
from vla_rl.evals import blind
from vla_rl.policy.expert_files import new_expert
from vla_rl.policy.flow import integrate, prompt_keys_values
from vla_rl.policy.flow_sampler import FlowSampler
from vla_rl.policy.molmo2 import TwinArchitecture
from vla_rl.policy.noise import KINDS, flow_noise
from vla_rl.policy.policy import VlaPolicy, new_twin
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import Prediction, PredictRequest
from vla_rl.seeds import stream


@pytest.fixture(scope="module")
def requests(observations: list[Observation]) -> list[PredictRequest]:
    """Eight rows of eight seeds, and two more draws of the first."""
    rows = [PredictRequest(o, seed=300 + i, draw=0, replan=3) for i, o in enumerate(observations)]
    return [*rows, *(replace(rows[0], draw=draw) for draw in (1, 2))]


@pytest.fixture(scope="module")
def sampler(flow_policy: VlaPolicy) -> FlowSampler:
    return FlowSampler(batch_rows=8, policy=flow_policy, run_seed=7)


def same(a: Prediction, b: Prediction) -> bool:
    return a.rng_key == b.rng_key and np.array_equal(a.chunk_deg, b.chunk_deg)


def test_a_chunk_is_keyed_noise_brought_to_data_clamped_and_denormalised(flow_policy, sampler, requests):
    expert, predictions = flow_policy.expert, sampler.sample(requests, 0.0)
    for request, prediction in zip(requests, predictions, strict=True):
        noise = stream("flow", 7, request.draw, request.seed, 3).standard_normal((30, 32), dtype=np.float32)
        seen = [flow_policy.frames_tensor([request.observation]), flow_policy.state_tensor([request.observation])]
        with torch.no_grad():
            context = expert.context(prompt_keys_values(flow_policy, *seen))
        chunk = integrate(expert, context, torch.from_numpy(noise)[None], joints=6)[0].numpy()
        wanted = flow_policy.stats.action.denormalise(np.clip(chunk, -1.0, 1.0))
        assert prediction.rng_key == (7, request.draw, request.seed, 3)
        assert prediction.chunk_deg.shape == (30, 6) and prediction.chunk_deg.dtype == np.float64
        assert np.allclose(prediction.chunk_deg, wanted, atol=1e-4)
    every = np.stack([p.chunk_deg for p in predictions])
    table = flow_policy.stats.action
    assert (every >= table.low_deg - 1e-9).all() and (every <= table.high_deg + 1e-9).all()
    assert np.isclose(every, table.high_deg).any() and not np.isclose(every, table.high_deg).all()


def test_there_are_no_tokens_in_a_prediction(sampler, requests):
    for p in sampler.sample(requests, 0.0):
        assert (p.bins.shape, p.bins.dtype) == ((0,), np.int16) and (p.logp.shape, p.logp.dtype) == ((0,), np.float32)
        assert (p.legal_packed.shape, p.legal_packed.dtype) == ((0, 64), np.uint8) and p.fault is None
        assert p.counts.masked_violations == p.counts.zero_fallbacks == 0 and p.counts.predict_s > 0


@pytest.mark.parametrize(("rows", "threads"), [(1, 1), (3, 1), (8, 1), (16, 1), (5, 2), (8, 3)], indirect=["threads"])
def test_a_row_feels_neither_its_slot_nor_its_neighbours_nor_the_batch_order(
    flow_policy, sampler, requests, rows: int, threads: int
):
    wanted = sampler.sample(requests, 0.0)
    other = FlowSampler(batch_rows=rows, policy=flow_policy, run_seed=7)
    order = np.random.default_rng(rows).permutation(len(requests))
    shuffled = other.sample([requests[i] for i in order], 0.0)
    assert all(same(shuffled[k], wanted[i]) for k, i in enumerate(order))
    assert all(same(other.sample([r], 0.0)[0], w) for r, w in zip(requests[:3], wanted, strict=False))
    assert torch.get_num_threads() == threads


def test_a_row_of_the_full_size_twin_does_not_feel_the_width_of_its_batch(codec, stats, observations):
    architecture = TwinArchitecture.of(TwinConfig(), image_px=112)
    policy = new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=architecture)
    taught(new_expert(policy, replace(SIZES, width=96, mlp_ratio=4.0, mlp_multiple=32, time_features=64), seed=0))
    requests = [PredictRequest(o, seed=300 + i, draw=0, replan=0) for i, o in enumerate(observations * 2)]
    sampler = FlowSampler(batch_rows=16, policy=policy, run_seed=7)
    widest = sampler.sample(requests, 0.0)
    for rows in (1, 5, 12):
        assert all(map(same, sampler.sample(requests[-rows:], 0.0), widest[-rows:]))


class Filled(FlowSampler):
    """Fills its batches up, as on a GPU."""

    _on_cpu = False


def test_a_batch_that_is_filled_up_gives_the_same_chunks(flow_policy, sampler, requests):
    filled = Filled(batch_rows=8, policy=flow_policy, run_seed=7)
    assert all(map(same, filled.sample(requests, 0.0), sampler.sample(requests, 0.0)))
    assert same(filled.sample(requests[-1:], 0.0)[0], sampler.sample(requests[-1:], 0.0)[0])


@pytest.mark.parametrize(("threads", "lanes"), [(1, 1), (2, 2)], indirect=["threads"])
def test_lanes_asked_at_the_same_time_answer_as_one_sampler_does(sampler, requests, threads: int, lanes: int):
    alone = sampler.sample(requests, 0.0)
    with sampler.lanes(2) as several, ThreadPoolExecutor(2) as threads_of_lanes:
        assert len(several) == lanes
        for answer in threads_of_lanes.map(lambda lane: lane.sample(requests, 0.0), several):
            assert all(map(same, answer, alone))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("field", ["seed", "draw", "replan"])
def test_every_part_of_the_key_changes_the_chunk(sampler, requests, field: str):
    other = replace(requests[0], **{field: getattr(requests[0], field) + 1})
    a, b = sampler.sample([requests[0], other], 0.0)
    assert not np.array_equal(a.chunk_deg, b.chunk_deg)


def test_the_run_seed_the_picture_and_the_state_change_the_chunk(flow_policy, sampler, requests):
    first = requests[0]
    chunk = sampler.sample([first], 0.0)[0].chunk_deg
    seeded = FlowSampler(batch_rows=8, policy=flow_policy, run_seed=8).sample([first], 0.0)[0].chunk_deg
    seen = replace(first, observation=replace(first.observation, frames=requests[1].observation.frames))
    felt = replace(first, observation=replace(first.observation, state_deg=requests[1].observation.state_deg))
    others = [seeded, *(p.chunk_deg for p in sampler.sample([seen, felt], 0.0))]
    assert not any(np.array_equal(chunk, other) for other in others)
    shown = blind.view("black", sampler).sample([first], 0.0)[0].chunk_deg
    assert not np.array_equal(chunk, shown)


def test_weights_may_change_between_questions(codec, stats, requests):
    policy = new_twin(codec=codec, stats=stats, task=TASK, seed=0, architecture=MINI)
    expert = taught(new_expert(policy, SIZES, seed=0))
    sampler = FlowSampler(batch_rows=4, policy=policy, run_seed=7)
    before = sampler.sample(requests[:2], 0.0)
    with torch.no_grad():
        expert.final_layer.linear.bias[0] += 0.3
    after = sampler.sample(requests[:2], 0.0)
    for a, b in zip(before, after, strict=True):
        assert (a.chunk_deg[:, 0] <= b.chunk_deg[:, 0]).all() and not np.array_equal(a.chunk_deg, b.chunk_deg)


# ------------------------------------------------------------------------------------------------------------- noise
def test_documented_noise_is_built_of_the_documented_words():
    for draw, repo in ((0, "sim/eval100"), (3, "sim/eval100/draw03")):
        digest = hashlib.blake2b(f"{repo}\x1f2017\x1f4".encode(), digest_size=16).digest()
        words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, 0, *words])))
        wanted = generator.standard_normal((30, 32), dtype=np.float32)
        for kind in ("documented", "documented_block"):
            made = flow_noise(kind, [(7, draw, 2017, 4)], ticks=30, width=32, device="cpu")
            assert np.array_equal(made[0].numpy(), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_standard_normal_and_a_rows_own(kind: str):
    keys = [(7, draw, 300, replan) for draw in range(4) for replan in range(25)]
    noise = flow_noise(kind, keys, ticks=30, width=32, device="cpu")
    assert noise.shape == (100, 30, 32) and noise.dtype == torch.float32
    flat = noise.flatten().double()  # 96,000 numbers
    assert abs(flat.mean()) < 0.015 and abs(flat.std() - 1) < 0.01
    assert (flat.abs() < 1).double().mean().item() == pytest.approx(0.6827, abs=0.006)
    assert torch.equal(flow_noise(kind, keys[40:41], ticks=30, width=32, device="cpu")[0], noise[40])
    assert len({row.numpy().tobytes() for row in noise}) == 100
    neighbours = torch.corrcoef(noise.flatten(1))
    assert (neighbours - torch.eye(100)).abs().max() < 0.2


# ----------------------------------------------------------------------------------------------------------- refusals
def test_a_temperature_is_refused_with_what_to_do(sampler, requests):
    with pytest.raises(ConfigError, match=r"temperature 0\.7[\s\S]*eval\.temperature=0"):
        sampler.sample(requests, 0.7)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"batch_rows": 0}, "sampler.batch_rows"),
        ({"mode": "reference"}, "sampler.mode"),
        ({"keys": "x"}, "sampler.keys"),
    ],
)
def test_settings_that_say_nothing_to_the_flow_head_are_refused(flow_policy, change: dict, where: str):
    with pytest.raises(ConfigError) as refused:
        FlowSampler(**{"batch_rows": 4, "policy": flow_policy, "run_seed": 0, **change})
    assert refused.value.where == where and refused.value.remedy


def test_a_policy_without_an_expert_cannot_be_sampled(policy: VlaPolicy):
    with pytest.raises(ConfigError, match="not loaded"):
        FlowSampler(batch_rows=4, policy=policy, run_seed=0)


def test_another_number_format_is_refused(flow_policy):
    with pytest.raises(ConfigError, match="own number format"):
        FlowSampler(batch_rows=2, policy=flow_policy, run_seed=0, dtype="bfloat16")
