"""The real task and a twin of the bundled size (random weights): same episodes everywhere, one likelihood."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from vla_rl.config.schema import LoraConfig, LossConfig, OptimConfig, SimConfig, TwinConfig
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.molmo2 import TwinArchitecture
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import new_twin
from vla_rl.policy.sampler import GrammarSampler
from vla_rl.rl.credit import episode_returns
from vla_rl.rl.reward import RewardV1
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.summary import episode_row
from vla_rl.rl.surfaces import Full, Lora
from vla_rl.rl.update import build_optimizer, grpo_update
from vla_rl.rollout import store
from vla_rl.rollout.jsonl import dump_json
from vla_rl.rollout.pool import ProcessPool, SerialPool
from vla_rl.rollout.ray_pool import RayPool
from vla_rl.rollout.records import EpisodeSpec, Row
from vla_rl.rollout.wave import run_wave

SPECS = [EpisodeSpec(300, 0), EpisodeSpec(300, 1), EpisodeSpec(301, 0)]
SIM = dataclasses.asdict(SimConfig(max_ticks=60))


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    home_deg = np.array([0, -90, 50, 75, 0, 0])
    chunks_deg = home_deg + rng.normal(0, 1.0, (300, 30, 6)).cumsum(1)
    flat = chunks_deg.reshape(-1, 6)
    stats = NormStats.fit(flat, flat, tag="random", quantile=0.001, horizon=30)
    codec = FastCodec.fit(stats.action.normalise(chunks_deg), scale=15.0, vocabulary=512)
    return new_twin(
        codec=codec,
        stats=stats,
        task="Place the boat.",
        seed=0,
        architecture=TwinArchitecture.of(TwinConfig(), image_px=112),
    )


def wave(policy, pool):
    sampler = GrammarSampler(batch_rows=3, policy=policy, run_seed=0)
    return run_wave(sampler=sampler, pool=pool, specs=SPECS, temperature=0.7, slots=3, policy_digest="d")


@pytest.fixture(scope="module")
def reference(policy):
    with SerialPool(env_spec=SIM) as pool:
        return wave(policy, pool)


def fingerprint(result):
    rows = [
        [v.tobytes() if isinstance(v, np.ndarray) else v for v in (getattr(r, f.name) for f in dataclasses.fields(Row))]
        for r in result.rows
    ]
    return [dataclasses.replace(e, wall_s=0.0) for e in result.episodes], rows


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_one_and_two_workers_give_the_serial_episodes_bit_for_bit(policy, reference, workers):
    with ProcessPool(workers=workers, groups=2, timeout_s=120.0, env_spec=SIM) as pool:
        assert fingerprint(wave(policy, pool)) == fingerprint(reference)


def test_ray_actors_give_them_too(policy, reference):
    pytest.importorskip("ray", reason="the actors are Ray's; pip install 'vla-rl[ray]'")
    placed = {"address": None, "cpus": 1.0, "resources": {}, "placement": "spread"}
    with RayPool(workers=2, groups=2, timeout_s=120.0, env_spec=SIM, **placed) as pool:
        assert fingerprint(wave(policy, pool)) == fingerprint(reference)


def test_the_arm_moved_the_pictures_changed_and_draws_differ(reference):
    first, second = (row for row in reference.rows if row.spec == SPECS[0])
    assert first.frames.shape == (2, 112, 112, 3) and not np.array_equal(first.frames, second.frames)
    assert np.abs(first.state_deg - second.state_deg).max() > 1.0
    other = next(row for row in reference.rows if row.spec == SPECS[1])
    assert np.array_equal(first.frames, other.frames) and not np.array_equal(first.bins, other.bins)


def test_episodes_and_rows_survive_the_store_and_become_strict_json(reference, tmp_path):
    reward = RewardV1(success_bonus=10.0, tip_penalty=2.0, strike_penalty=5.0, progress_floor_cm=-4.0)
    for episode in reference.episodes:
        rows = [row for row in reference.rows if row.spec == episode.spec]
        back, _ = store.read_episode(store.write_episode(tmp_path, 1, episode, rows))
        assert back == episode
        assert "NaN" not in dump_json(episode_row("train", 1, back, reward.terms(back.metrics), 0.5))


def test_the_trace_of_an_episode_prices_it_as_its_metrics_do(reference):
    reward = RewardV1(success_bonus=10.0, tip_penalty=2.0, strike_penalty=5.0, progress_floor_cm=-4.0)
    for episode in reference.episodes:
        assert episode.trace is not None and episode.trace.starts == [0, 30] and len(episode.trace.distance_cm) == 61
        assert episode_returns(episode, reward)[0] == reward.terms(episode.metrics)["total"]


def test_with_an_adapter_that_has_moved_trainer_and_sampler_agree_within_1e_5_on_real_pictures(policy, reference):
    adapted = copy.deepcopy(policy)
    surface = Lora(rank=8, alpha=16.0, targets=LoraConfig().targets, run_seed=0)
    parameters, optim = surface.trainable(adapted), OptimConfig(lr=1e-3, microbatch_rows=4)
    base, optimizer = adapted.digest(), build_optimizer(parameters, optim, surface)
    assert base == policy.digest()
    rows = reference.rows
    for step in (1, 2):
        result = grpo_update(
            policy=adapted, parameters=parameters, optimizer=optimizer, rows=rows,
            advantages={SPECS[0]: 1.0, SPECS[1]: -1.0}, settings=UpdateSettings.of(LossConfig(), optim),
            temperature=0.7, step=step,
        )  # fmt: skip
        assert result.rollout_gap <= 1e-5 and result.ratios["max_ratio"] == result.ratios["min_ratio"] == 1.0
        with SerialPool(env_spec=SIM) as pool:
            rows = wave(adapted, pool).rows
    assert adapted.digest() != base
    assert any(not np.array_equal(a.bins, b.bins) for a, b in zip(rows, reference.rows, strict=False))


def test_the_first_update_agrees_with_the_sampler_within_1e_5_and_clips_nothing(policy, reference):
    surface = Full()
    parameters = surface.trainable(policy)
    optim = OptimConfig(microbatch_rows=4)
    for old_logp in ("recorded", "rescored"):
        result = grpo_update(
            policy=policy,
            parameters=parameters,
            optimizer=build_optimizer(parameters, OptimConfig(lr=0.0), surface),
            rows=reference.rows,
            advantages={SPECS[0]: 1.0, SPECS[1]: -1.0},
            settings=dataclasses.replace(UpdateSettings.of(LossConfig(old_logp=old_logp), optim), lr=0.0),
            temperature=0.7,
            step=1,
        )
        assert result.rollout_gap < 1e-5 and result.ratios["clip_fraction"] == 0.0
        assert abs(result.ratios["mean_ratio"] - 1) < 1e-4 and result.grad_norm > 0
