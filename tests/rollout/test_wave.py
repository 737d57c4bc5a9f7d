"""Waves: an episode depends on its key and on nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scripted import Scripted, digest, fingerprint
from tiny_policy import tiny_policy, tiny_sampler
from toy_world import spec

from vla_rl.errors import RolloutError
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.prompt import Observation
from vla_rl.rollout.events import EpisodeDone, EpisodeRestarted, PredictRound
from vla_rl.rollout.pool import ProcessPool, SerialPool
from vla_rl.rollout.records import EpisodeSpec, decode_counts, mean_nll
from vla_rl.rollout.rounds import planned_rounds, slot_groups
from vla_rl.rollout.wave import run_wave

PLUGINS = ("toy_world",)
BEFORE_GROUPS = "11588551a7094b40"  # of the lockstep loop that came before
SPECS = [EpisodeSpec(seed, draw) for seed in (100, 101, 102) for draw in (0, 1)]


@pytest.fixture(scope="module")
def sampler():
    torch.set_num_threads(1)
    return tiny_sampler(tiny_policy())


def wave(sampler, pool, specs=SPECS, slots=4, **kwargs):
    return run_wave(sampler=sampler, pool=pool, specs=specs, temperature=1.0, slots=slots, policy_digest="d", **kwargs)


def serial(**kwargs):
    return SerialPool(env_spec=spec(**kwargs), plugins=PLUGINS)


@pytest.fixture(scope="module")
def reference(sampler):
    with serial() as pool:
        return wave(sampler, pool)


def test_episodes_and_rows_come_in_the_order_of_the_specs(reference):
    assert [e.spec for e in reference.episodes] == SPECS
    assert [(r.spec, r.replan) for r in reference.rows] == [
        (e.spec, k) for e in reference.episodes for k in range(e.replans)
    ]
    assert sum(e.tokens for e in reference.episodes) == sum(len(r.bins) for r in reference.rows)


def test_an_episode_sums_the_surprise_of_its_own_tokens(reference):
    for episode in reference.episodes:
        logp = np.concatenate([row.logp for row in reference.rows if row.spec == episode.spec]).astype(np.float64)
        assert episode.nll == pytest.approx(-logp.sum(), rel=1e-12) and len(logp) == episode.tokens
    tokens = sum(e.tokens for e in reference.episodes)
    assert mean_nll(reference.episodes) == pytest.approx(sum(e.nll for e in reference.episodes) / tokens)
    assert mean_nll([]) is None and mean_nll([replace(reference.episodes[0], nll=None)]) is None


def test_draws_of_a_seed_start_alike_and_go_on_differently(reference):
    first, second = (next(r for r in reference.rows if r.spec == EpisodeSpec(100, draw)) for draw in (0, 1))
    assert np.array_equal(first.frames, second.frames) and not np.array_equal(first.bins, second.bins)
    assert first.rng_key == (3, 0, 100, 0) and second.rng_key == (3, 1, 100, 0)


@pytest.mark.parametrize("slots", [1, 2, 3, 6, 50])
def test_the_number_of_slots_and_so_refilling_changes_no_episode(sampler, reference, slots):
    with serial() as pool:
        assert fingerprint(wave(sampler, pool, slots=slots)) == fingerprint(reference)


def test_a_subset_of_the_specs_gives_the_same_episodes(sampler, reference):
    with serial() as pool:
        part = wave(sampler, pool, specs=SPECS[3:1:-1])
    episodes, _ = fingerprint(reference)
    assert fingerprint(part)[0] == [episodes[3], episodes[2]]


@pytest.mark.parametrize(
    ("workers", "groups", "slots"), [(1, 1, 4), (1, 2, 1), (2, 2, 4), (2, 3, 4), (4, 2, 6), (2, 8, 5)]
)
def test_neither_worker_processes_nor_groups_change_an_episode(sampler, reference, workers, groups, slots):
    with ProcessPool(workers=workers, groups=groups, timeout_s=20.0, env_spec=spec(), plugins=PLUGINS) as pool:
        result = wave(sampler, pool, slots=slots)
    assert fingerprint(result) == fingerprint(reference)
    assert result.groups == min(groups, slots)


@pytest.mark.parametrize("fault", ["die@in_step", "hang@in_step", "raise@in_reset", "black@in_step"])
def test_a_lost_episode_is_redone_from_its_key_and_ends_the_same(sampler, reference, tmp_path, fault):
    events = []
    env_spec = spec(fault, 101, str(tmp_path / "once"))
    with ProcessPool(workers=2, groups=2, timeout_s=3.0, env_spec=env_spec, plugins=PLUGINS) as pool:
        result = wave(sampler, pool, on_event=events.append)
    assert fingerprint(result) == fingerprint(reference)
    assert result.predict_rounds == planned_rounds([e.replans for e in reference.episodes], slots=4, groups=2)
    restarted = [event.episode_id for event in events if isinstance(event, EpisodeRestarted)]
    assert "seed000101_draw00" in restarted or "seed000101_draw01" in restarted


def test_an_episode_that_is_lost_every_time_ends_the_wave_by_name_after_bounded_tries(sampler):
    events, finished = [], []
    with ProcessPool(
        workers=1, groups=2, timeout_s=20.0, env_spec=spec("raise@in_reset", 102), plugins=PLUGINS
    ) as pool:
        with pytest.raises(RolloutError, match="(?s)seed000102_draw00 was lost 3 times.*the physics exploded"):
            wave(
                sampler,
                pool,
                slots=2,
                on_event=events.append,
                on_episode=lambda episode, rows: finished.append(episode.spec),
            )
    assert {s.seed for s in finished} == {100, 101}  # what had ended was handed over before


def test_an_environment_error_in_the_serial_pool_is_raised_as_it_is(sampler):
    with (
        SerialPool(env_spec=spec("raise@in_step", 102), plugins=PLUGINS) as pool,
        pytest.raises(RuntimeError, match="exploded"),
    ):
        wave(sampler, pool)


def test_episodes_are_handed_over_when_they_end_and_events_count_them(sampler, reference):
    events, handed = [], []
    with serial() as pool:
        wave(
            sampler,
            pool,
            slots=2,
            on_event=events.append,
            on_episode=lambda episode, rows: handed.append((episode, rows)),
        )
    assert sorted(e.spec.episode_id for e, _ in handed) == [s.episode_id for s in SPECS]
    assert all(len(rows) == episode.replans for episode, rows in handed)
    rounds = [e for e in events if isinstance(e, PredictRound)]
    assert rounds[-1].done == rounds[-1].total == 6 and len([e for e in events if isinstance(e, EpisodeDone)]) == 6


def play(sampler, slots, groups, workers=2, seeds=6, **kwargs):
    specs = [EpisodeSpec(100 + seed) for seed in range(seeds)]
    with ProcessPool(workers=workers, groups=groups, timeout_s=20.0, env_spec=spec(**kwargs), plugins=PLUGINS) as pool:
        return [wave(sampler, pool, specs=specs, slots=slots) for slots in slots]


def test_the_planned_number_of_rounds_is_the_number_that_an_undisturbed_wave_takes():
    for groups in (1, 2, 3):
        for result in play(sampler := Scripted(horizon=4, step_deg=5.0), slots=(1, 2, 4, 9), groups=groups):
            asked, sampler.asked = sampler.asked[: result.predict_rounds], sampler.asked[result.predict_rounds :]
            assert len(asked) == result.predict_rounds
            assert result.mean_predict_batch == sum(map(len, asked)) / len(asked)
            assert {key for batch in asked for key in batch} == {(r.spec.seed, 0, r.replan) for r in result.rows}
        assert sampler.asked == []


def test_which_episodes_meet_in_a_batch_does_not_depend_on_timing():
    met = []
    for workers, slow_seed in ((1, -1), (2, 101), (3, 102)):
        sampler = Scripted(horizon=4)
        play(sampler, slots=(3,), groups=2, workers=workers, fault="slow@in_step", fault_seed=slow_seed)
        met.append(sorted(sampler.asked))
    assert met[0] == met[1] == met[2]
    assert {len(batch) for batch in met[0]} == {1, 2}  # three slots in two groups


def test_a_sampler_without_lanes_is_asked_in_lockstep():
    sampler = Scripted(horizon=4, lanes=0)
    (result,) = play(sampler, slots=(4,), groups=2)
    assert result.groups == 1 and len(sampler.asked[0]) == 4


def test_waves_are_what_they_were_before_slots_formed_groups():
    for result in play(Scripted(horizon=4, step_deg=5.0), slots=(1, 3), groups=2):
        assert digest(result) == BEFORE_GROUPS


def test_rounds_by_hand():
    assert planned_rounds([3, 1, 2, 4], slots=2, groups=1) == 7  # slot 0: 3 then 4; slot 1: 1 then 2
    # Each slot a group, in turns. Slot 0 plays 3; slot 1 plays 1, then 2; both free after 3, and slot 0 is first.
    assert planned_rounds([3, 1, 2, 4], slots=2, groups=2) == 3 + 3 + 4
    assert planned_rounds([], slots=2, groups=2) == 0
    assert [list(group) for group in slot_groups(5, 2)] == [[0, 1], [2, 3, 4]] and len(slot_groups(2, 8)) == 2


def test_without_rows_nothing_but_the_rows_is_missing(sampler, reference):
    with serial() as pool:
        result = wave(sampler, pool, keep_rows=False)
    assert result.rows == () and fingerprint(result)[0] == fingerprint(reference)[0]


def test_a_spec_listed_twice_is_refused(sampler):
    with serial() as pool, pytest.raises(RolloutError):
        wave(sampler, pool, specs=[SPECS[0], SPECS[0]])


def test_stored_log_probabilities_and_masks_are_the_trainers_within_1e_5(sampler, reference):
    policy = sampler.policy
    for row in reference.rows:
        scores = score_rows(policy, [Observation(row.frames, row.state_deg)], [row.bins], 1.0)
        assert np.abs(scores.logp_RT[0].detach().numpy() - row.logp).max() < 1e-5
        assert np.array_equal(policy.grammar.packed_masks(row.bins), row.legal_packed)


def test_how_predicts_were_decoded_is_summed_over_each_episode(sampler, reference):
    assert sum(e.masked_violations for e in reference.episodes) > 0 == sum(e.zero_fallbacks for e in reference.episodes)
    with serial() as pool:
        greedy = run_wave(
            sampler=tiny_sampler(sampler.policy, mode="reference"), pool=pool, specs=SPECS, temperature=0.0, slots=4
        )
    # A twin that never learned the scaffold writes no chunk at all: each predict falls back.
    assert [e.zero_fallbacks for e in greedy.episodes] == [e.replans for e in greedy.episodes]
    counts = decode_counts(greedy.episodes)
    assert counts["zero_fallbacks"] == sum(e.replans for e in greedy.episodes) and counts["masked_violations"] == 0
    waited = [e.predict_s for e in greedy.episodes]
    assert min(waited) > 0 and counts["predict_latency_s"] == pytest.approx(sum(waited) / counts["zero_fallbacks"])
    assert decode_counts([])["predict_latency_s"] is None
