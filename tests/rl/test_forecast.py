"""What a run will need: counts that agree with the network, measurements that leave no trace, sums by hand."""

import weakref

import pytest
import torch
from one_update import ADVANTAGES, TEMPERATURE, settings, state
from tiny_policy import tiny_policy
from toy_run import lora

from vla_rl.config.schema import OptimConfig
from vla_rl.policy.prompt import Observation
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.rl import snapshot
from vla_rl.rl.anchor import Anchor
from vla_rl.rl.drift import measure
from vla_rl.rl.forecast import (
    Playing,
    Probe,
    memory_bytes,
    parameter_counts,
    redo_seconds,
    step_seconds,
    update_row_seconds,
    wave_seconds,
)
from vla_rl.rl.lessons import select_lessons
from vla_rl.rl.preflight import disk_bytes
from vla_rl.rl.surfaces import Full, PatchOnly, TextStack
from vla_rl.rl.update import Fixed, accumulate_gradient, build_optimizer

PROBE = Probe(
    episodes=2, successes=1, replans=10, tokens=300, env_s=4.0, predict_row_s=0.1, update_row_s=0.3, score_row_s=0.05
)


def measured(policy, parameters, rows, *, microbatch=2, loss=None, **how):
    optimizer = build_optimizer(parameters, OptimConfig(), Full())
    observation = Observation(rows[0].frames, rows[0].state_deg)
    constants = settings(microbatch_rows=microbatch, loss=loss)
    how = {"anchored": False, "undoable": False, **how}
    return memory_bytes(policy, parameters, optimizer, constants, TEMPERATURE, observation, **how), optimizer


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


def test_measuring_leaves_weights_gradients_and_moments_as_they_were(rows):
    policy = tiny_policy()
    parameters, before = Full().trainable(policy), state(policy)
    _, optimizer = measured(policy, parameters, rows)
    update_row_seconds(policy, rows, settings(), TEMPERATURE, optimizer)
    assert all(torch.equal(p, before[name]) for name, p in policy.model.named_parameters())
    assert all(p.grad is None for _, p in parameters) and not any(optimizer.state.values())


def test_bytes_of_an_update_follow_from_the_parameters_and_the_micro_batch(rows):
    policy = tiny_policy()
    parameters = TextStack().trainable(policy)
    surface, held = (
        sum(p.nbytes for p in some) for some in ([p for _, p in parameters], [leaf_of(p) for _, p in parameters])
    )
    told, _ = measured(policy, parameters, rows)
    assert told["gradients"] == held < surface < told["weights"]
    assert told["moments"] == 2 * held + 4 * len(parameters)  # and a step count each
    assert told["copies"] == 0 and told["peak"] is None
    twice, _ = measured(policy, parameters, rows, microbatch=4)
    assert 1.8 < twice["activations"] / told["activations"] < 2.1
    kept, _ = measured(policy, parameters, rows, anchored=True, undoable=True)
    assert kept["copies"] == 3 * surface + told["moments"]


@pytest.mark.parametrize("undoable", [False, True])
def test_copies_are_what_lies_beside_the_network_while_the_drift_is_measured(rows, undoable, monkeypatch):
    """Counted at every copy that the run itself makes, of those that are still alive then."""
    alive, most, real = weakref.WeakSet(), [0], snapshot._copied

    class Copy:
        def __init__(self, size):
            self.size = size

    def copied(value):
        copy = real(value)
        copy.counted = Copy(copy.numel() * copy.element_size())  # lives as long as the tensor does
        alive.add(copy.counted)
        most[0] = max(most[0], sum(one.size for one in alive))
        return copy

    policy = tiny_policy()
    parameters = TextStack().trainable(policy)
    told, optimizer = measured(policy, parameters, rows, anchored=True, undoable=undoable)
    accumulated = settings()
    lessons, _ = select_lessons(rows, ADVANTAGES, weighting="token", episode_tokens=700)
    accumulate_gradient(policy, lessons, 1.0, accumulated, TEMPERATURE, Fixed(None, None))
    optimizer.step()  # there are moments from now on
    monkeypatch.setattr(snapshot, "_copied", copied)
    anchor = Anchor.of(policy, parameters)
    before = snapshot.Snapshot(parameters, optimizer) if undoable else None
    measure(policy, anchor, rows[:2], temperature=TEMPERATURE, limits=accumulated.limits)
    assert most[0] == told["copies"] and (before is not None) is undoable


def test_only_an_adapter_needs_no_copy_as_its_anchor():
    policy = tiny_policy()
    assert Anchor.copies(policy, TextStack().trainable(policy))
    adapter = lora().trainable(policy)
    assert not Anchor.copies(policy, adapter)
    more = next(pair for pair in policy.model.named_parameters() if pair[0] not in dict(adapter))
    assert Anchor.copies(policy, [*adapter, more])


def test_activations_are_those_of_the_largest_micro_batch_and_not_of_all_together(rows):
    """A token limit splits the rows; each part's graph is gone before the next."""
    policy = tiny_policy()
    parameters = Full().trainable(policy)
    one, _ = measured(policy, parameters, rows, microbatch=1)
    optimizer = build_optimizer(parameters, OptimConfig(), Full())
    observation = Observation(rows[0].frames, rows[0].state_deg)
    split = settings(microbatch_rows=4, microbatch_tokens=1)
    told = memory_bytes(
        policy, parameters, optimizer, split, TEMPERATURE, observation, anchored=False, undoable=False
    )  # fmt: skip
    assert told["activations"] == pytest.approx(one["activations"], rel=0.1)


def test_an_anchored_objective_can_be_measured(rows):
    policy = tiny_policy()
    told, _ = measured(policy, Full().trainable(policy), rows, loss={"kl_beta": 0.1}, anchored=True)
    assert told["activations"] > 0


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
