"""Stored rows held against the policy that they name: sound as sampled, and every kind of damage is named."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "rollout"))

import numpy as np
import pytest
import torch
from tiny_policy import tiny_policy, tiny_sampler
from toy_world import spec

from vla_rl.evals.integrity import check_masks, check_records, rescore, scorable
from vla_rl.rl.lessons import BatchLimits
from vla_rl.rollout.pool import SerialPool
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.rollout.wave import run_wave

TEMPERATURE, RUN_SEED = 0.9, 3


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return tiny_policy()


@pytest.fixture(scope="module")
def stored(policy):
    specs = [EpisodeSpec(seed, draw) for seed in (100, 101) for draw in (0, 1)]
    with SerialPool(env_spec=spec(), plugins=("toy_world",)) as pool:
        wave = run_wave(
            sampler=tiny_sampler(policy, run_seed=RUN_SEED), pool=pool, specs=specs, temperature=TEMPERATURE, slots=4,
            policy_digest=policy.digest(),
        )  # fmt: skip
    return [(e, tuple(r for r in wave.rows if r.spec == e.spec)) for e in wave.episodes]


def damaged(stored, episode, replan, **changes):
    """The wave with some fields of one row replaced."""
    copy = list(stored)
    told, rows = copy[episode]
    rows = list(rows)
    rows[replan] = dataclasses.replace(rows[replan], **changes)
    copy[episode] = (told, tuple(rows))
    return copy


def scored(policy, rows, rows_at_once=4):
    return rescore(policy, rows, temperature=TEMPERATURE, limits=BatchLimits(rows_at_once))


def test_a_sampled_wave_is_sound_and_scores_the_same_again_at_any_batch(policy, stored):
    masks = check_masks(stored, policy.grammar)
    assert masks["mismatched"] == [] and check_records(stored, RUN_SEED) == []
    rows, refused = scorable(stored, policy.digest(), [])
    assert refused == [] and len(rows) == masks["rows"]
    for size in (1, 4):
        told = scored(policy, rows, size)
        assert told["tokens"] == masks["tokens"] and told["max"] <= 1e-5 and told["p99"] <= told["max"]


def test_one_flipped_bit_of_a_mask_is_found_and_named(policy, stored):
    packed = stored[1][1][1].legal_packed.copy()
    packed[2, 1] ^= 0b0010_0000  # bin 8 + 2
    (found,) = check_masks(damaged(stored, 1, 1, legal_packed=packed), policy.grammar)["mismatched"]
    assert (found["episode"], found["replan"], found["token"], found["bin"]) == ("seed000100_draw01", 1, 2, 10)
    assert found["stored"] is not found["recomputed"]


def test_a_stream_that_is_no_chunk_or_of_another_codec_is_a_finding_and_no_crash(policy, stored):
    bins = stored[0][1][0].bins
    for broken in (bins[:-1], np.full_like(bins, 9999)):
        (found,) = check_masks(damaged(stored, 0, 0, bins=broken), policy.grammar)["mismatched"]
        assert found["episode"] == "seed000100_draw00" and found["replan"] == 0


def test_the_first_and_the_worst_differing_token_are_named_with_both_values(policy, stored):
    changes = {(0, 1): (3, 0.25), (2, 0): (1, 1.5)}
    copy = stored
    for (episode, replan), (token, by) in changes.items():
        logp = copy[episode][1][replan].logp.copy()
        logp[token] -= by
        copy = damaged(copy, episode, replan, logp=logp)
    rows = [row for _, rows in copy for row in rows]
    told = scored(policy, rows)
    exact = scored(policy, [row for _, rows in stored for row in rows])
    assert told["worst"]["episode"] == "seed000101_draw00" and (told["worst"]["replan"], told["worst"]["token"]) == (
        0,
        1,
    )
    assert told["max"] == pytest.approx(1.5, abs=1e-4)
    assert told["worst"]["rescored"] - told["worst"]["stored"] == pytest.approx(1.5, abs=1e-4)
    if exact["max"] == 0:
        assert (told["first"]["episode"], told["first"]["replan"], told["first"]["token"]) == (
            "seed000100_draw00",
            1,
            3,
        )
        assert told["equal"] == told["tokens"] - 2 and told["mean"] == pytest.approx(1.75 / told["tokens"], rel=1e-4)


def test_other_weights_give_other_log_probabilities(stored):
    assert scored(tiny_policy(seed=1), [row for _, rows in stored for row in rows])["max"] > 0.01


def test_rows_of_other_weights_are_refused_by_name_and_not_scored(policy, stored):
    copy = damaged(stored, 3, 0, policy_digest="another")
    rows, refused = scorable(copy, policy.digest(), [])
    assert refused == ["seed000101_draw01"]
    assert len(rows) == sum(len(r) for _, r in stored) - 1 and all(r.policy_digest != "another" for r in rows)


def test_contradictions_between_an_episode_and_its_rows_are_named(stored):
    logp = stored[0][1][0].logp.copy()
    logp[0] = np.nan
    found = check_records(damaged(damaged(stored, 0, 0, logp=logp), 1, 1, rng_key=(9, 1, 100, 1)), RUN_SEED)
    assert [(f["episode"], f["replan"]) for f in found] == [("seed000100_draw00", 0), ("seed000100_draw01", 1)]
    episode, rows = stored[2]
    (one, two) = check_records([(episode, rows[:-1])], RUN_SEED)
    assert "replans" in one["what"] and "tokens" in two["what"]


def test_no_rows_have_no_spread(policy):
    told = scored(policy, [])
    assert told["tokens"] == 0 and told["max"] is None and told["first"] is None
