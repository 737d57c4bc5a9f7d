"""What a run will need: counts that agree with the network, and sums by hand."""

import pytest
from one_update import settings
from tiny_policy import tiny_policy

from vla_rl.policy.prompt import Observation
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.rl.forecast import (
    Playing,
    Probe,
    parameter_counts,
    redo_seconds,
    step_seconds,
    wave_seconds,
)
from vla_rl.rl.preflight import disk_bytes
from vla_rl.rl.surfaces import Full, PatchOnly, TextStack

PROBE = Probe(
    episodes=2, successes=1, replans=10, tokens=300, env_s=4.0, predict_row_s=0.1, update_row_s=0.3, score_row_s=0.05
)


def test_counts_by_surface_are_those_of_the_surfaces_themselves():
    counts = None
    for name, surface in (("full", Full()), ("text_stack", TextStack()), ("patch_only", PatchOnly())):
        policy = tiny_policy()
        parameters = surface.trainable(policy)
        counts = parameter_counts(policy, parameters)
        assert counts["by_surface"][name]["tensors"] == counts["trainable"] == sum(p.numel() for _, p in parameters)
    assert counts is not None
    patch = counts["by_surface"]["patch_only"]
    assert patch["moving"] < patch["tensors"] < counts["by_surface"]["text_stack"]["tensors"] < counts["total"]


def test_disk_counts_waves_and_checkpoints(rows):
    policy = tiny_policy()
    parameters = Full().trainable(policy)
    observation = Observation(rows[0].frames, rows[0].state_deg)
    told = disk_bytes(policy, parameters, observation, rows=6, waves=2, checkpoints=3)
    assert told["waves"] == 2 * told["wave"] and told["wave"] >= 6 * rows[0].frames.nbytes
    kept = sum(p.nbytes + 2 * leaf_of(p).nbytes for _, p in parameters)
    assert told["checkpoints"] == 3 * told["checkpoint"] == 3 * kept


def test_seconds_of_a_wave_by_hand():
    # 8 episodes: 16 s of environments, 40 predicts of 0.1 s
    assert wave_seconds(PROBE, Playing(workers=2, groups=1, cores=2), episodes=8) == pytest.approx(8 + 4)
    assert wave_seconds(PROBE, Playing(workers=2, groups=2, cores=2), episodes=8) == pytest.approx(
        10
    )  # 20 s on 2 cores
    assert wave_seconds(PROBE, Playing(workers=8, groups=2, cores=None), episodes=8) == pytest.approx(4)  # predicts
    assert wave_seconds(PROBE, Playing(workers=2, groups=2, cores=None), episodes=8) == pytest.approx(8)  # workers
    assert wave_seconds(PROBE, Playing(workers=64, groups=1, cores=64), episodes=1) == pytest.approx(2 + 0.5)


def test_seconds_of_an_update_count_every_pass_over_the_rows():
    def update_s(kl_rows=0, **loss):
        playing, kl_beta = Playing(workers=2, groups=1, cores=2), loss.get("kl_beta", 0.0)
        return step_seconds(PROBE, playing, episodes=8, settings=settings(loss=loss), kl_rows=kl_rows, kl_beta=kl_beta)[
            "update_s"
        ]

    assert update_s() == pytest.approx(40 * 0.3)
    assert update_s(kl_rows=10) == pytest.approx(12 + 2 * 10 * 0.05)
    assert update_s(kl_rows=100) == pytest.approx(12 + 2 * 40 * 0.05)
    assert update_s(epochs=2) == pytest.approx(2 * 12 + 40 * 0.05)  # old log-probabilities are fixed before
    assert update_s(kl_beta=0.1) == pytest.approx(12 + 40 * 0.05)
    assert update_s(kl_beta=0.1, kl_in="reward") == pytest.approx(12 + 40 * 0.05)


def test_what_a_kill_costs_grows_with_the_cadence_of_checkpoints():
    assert redo_seconds(every=1, rollout_s=10, update_s=2, bitwise=True) == {"worst_s": 2, "mean_s": 2}
    assert redo_seconds(every=3, rollout_s=10, update_s=2, bitwise=True) == {"worst_s": 6, "mean_s": 4}
    # elsewhere the waves after the first are played again: 2, 4 + 10, 6 + 20
    assert redo_seconds(every=3, rollout_s=10, update_s=2, bitwise=False) == {"worst_s": 26, "mean_s": 14}
