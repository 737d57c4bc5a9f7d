"""A run that ends between two checkpoints of its cadence keeps the last recorded step, and what its wires knew then."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from guarded_run import FIRST, out_of_time_at, saved, stop, trainer_of, wave
from test_trainer import Killed, evidence, finish, read
from toy_run import REWARD

from vla_rl.config.schema import LossConfig
from vla_rl.errors import StoppedRun
from vla_rl.rl import account, events, rundir, waves
from vla_rl.rl import trainer as trainer_module
from vla_rl.rl.loss import grpo_loss
from vla_rl.rl.reward import RewardV1
from vla_rl.rl.summary import Evaluation
from vla_rl.rl.updated import no_update
from vla_rl.rollout.events import EpisodeDone, PredictRound
from vla_rl.rollout.wave import Wave


def falling(step):
    """A held-out reward that is 6 cm lower after the first update."""
    told = {"phase": "eval", "step": step, "reward": -5.0 if step else 1.0, "ticks": 9}
    return Evaluation({"successes": 0}, tuple({**told, "seed": seed} for seed in (300, 301)))


def test_a_held_out_stop_keeps_the_weights_that_were_evaluated(plain, tmp_path):
    path, wires = tmp_path / "run", {"heldout": "armed"}
    told = stop(path, wires=wires, evaluate=falling, evaluate_at={2}, every=3)
    assert "step 2" in told and "held-out reward" in told
    assert {name: c.state["policy_digest"] for name, c in saved(path).items()} == {"step_0002": plain[1][2]}
    assert [row["step"] for row in read(path, "train.jsonl")] == [1, 2]
    assert "the run is over" in stop(path, wires=wires, evaluate=falling, evaluate_at={2}, every=3)


def test_a_budget_that_is_spent_between_two_steps_keeps_the_last_one(plain, tmp_path):
    """Three hours pass after step 2; the evaluation that is due then is not made."""
    path = tmp_path / "run"
    trainer = trainer_of(path, budget={"wall_h": 2.0}, evaluate_at={2}, every=3)

    def hours_pass(event):
        if isinstance(event, events.StepDone) and event.step == 2:
            trainer.account.counters = replace(trainer.account.counters, device_s=3 * 3600.0)

    trainer.on_event = hours_pass
    with pytest.raises(StoppedRun, match="budget of hours"):
        finish(trainer)
    assert {name: c.state["policy_digest"] for name, c in saved(path).items()} == {"step_0002": plain[1][2]}
    assert [row["step"] for row in read(path, "eval.jsonl")] == [0]
    beat = json.loads((path / "heartbeat.json").read_text())
    assert beat["phase"] == "tripped" and beat["step"] == 2
    (fired,) = beat["tripwires"]
    assert (fired["wire"], fired["mode"], fired["threshold"]) == ("budget.wall_h", "armed", 2.0)
    assert finish(trainer_of(path, every=3)).finished
    assert evidence(path) == evidence(plain[0])


@pytest.mark.parametrize("moment", [PredictRound, events.UpdateProgress])
def test_the_wall_limit_in_a_step_keeps_the_step_before_with_what_its_wires_knew_then(plain, tmp_path, moment):
    """Knock-aways in every wave, of which the wire wants three; that of step 2 is judged in both launches."""
    path = tmp_path / "run"
    settings = {
        "wires": {"knockaway": "record", "knockaway_baseline": 0.1, "knockaway_waves": 3},
        "world": {"knocked_from": FIRST},
        "every": 3,
    }
    trainer, seen = trainer_of(path, max_wall_s=1000.0, **settings), []

    def in_step_2(event):
        seen.append(event)
        if isinstance(event, moment) and any(isinstance(e, events.StepDone) for e in seen):
            trainer.max_wall_s = -1.0

    trainer.on_event = in_step_2
    assert finish(trainer).step == 1
    (kept,) = saved(path).values()
    assert kept.step == 1 and kept.state["policy_digest"] == plain[1][1]
    assert kept.state["guards"]["streaks"]["knockaway"] == 1
    assert finish(trainer_of(path, **settings)).finished
    fired = [[(f["wire"], f["streak"]) for f in row["tripwires"]] for row in read(path, "train.jsonl")]
    assert fired == [[], [], [("knockaway", 3)]]
    assert saved(path)["step_0003"].state["policy_digest"] == plain[1][3]


class Poisoned:
    """The loss, until it or its gradient alone is no number any more."""

    poison = False

    def __init__(self, gradient):
        self.gradient = gradient

    def __call__(self, inputs, objective):
        outputs = grpo_loss(inputs, objective)
        if not self.poison:
            return outputs
        if self.gradient:  # sqrt(0) is 0, its slope is not
            return replace(outputs, loss=outputs.loss + (inputs.new_logp_RT.sum() * 0).sqrt())
        return replace(outputs, loss=outputs.loss * torch.nan)


@pytest.mark.parametrize("second_pass", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_an_update_that_is_no_number_leaves_no_checkpoint_of_weights_that_half_of_it_has_moved(
    tmp_path, second_pass, gradient
):
    """In the first of two passes over wave 2 no weight has moved, and step 1 is kept; in the second some have."""
    path, loss, passes = tmp_path / "run", Poisoned(gradient), LossConfig(epochs=2)
    trainer = trainer_of(path, loss=passes, token_loss=loss, every=3)
    after_1 = []

    def on_event(event):
        if isinstance(event, events.StepDone):
            after_1.append(trainer.policy.digest())
            loss.poison = not second_pass
        if isinstance(event, events.UpdateProgress) and event.step == 2 and 2 * event.done == event.total:
            loss.poison = True

    trainer.on_event = on_event
    with pytest.raises(StoppedRun, match="step 2: the loss or the gradient is not finite"):
        finish(trainer)
    row = read(path, "train.jsonl")[-1]
    assert row["step"] == 2 and row["step_skipped"] and row["grad_norm"] is None
    assert (row["loss"] is None) is not gradient
    kept = {name: c.state["policy_digest"] for name, c in saved(path).items()}
    assert kept == ({} if second_pass else {"step_0001": after_1[0]})
    assert (trainer.policy.digest() == after_1[0]) is not second_pass
    assert len(wave(path, 2)) == 6  # to be looked at


class Unscorable(RewardV1):
    """No number for the first of every six episodes."""

    priced = 0

    def terms(self, metrics):
        self.priced += 1
        return super().terms(metrics) | ({"total": float("nan")} if self.priced % 6 == 1 else {})


def test_waves_that_divergence_looks_at_survive_a_resume_though_a_reward_is_no_number(tmp_path):
    path = tmp_path / "run"
    wires = {"divergence": "record", "divergence_waves": 4}
    settings = {"wires": wires, "reward": Unscorable(**REWARD)}
    out_of_time_at(events.StepDone, trainer := trainer_of(path, **settings))
    assert finish(trainer).step == 1
    rows, episodes = read(path, "train.jsonl"), read(path, "episodes.jsonl")
    rewards = [row["reward"] for row in episodes if row["phase"] == "train"]
    assert rewards.count(None) == 1
    known = [reward for reward in rewards if reward is not None]
    assert rows[0]["reward_mean"] == pytest.approx(sum(known) / 5)
    ((reward, success),) = saved(path)["step_0001"].state["guards"]["waves"]
    assert (reward, success) == (rows[0]["reward_mean"], rows[0]["successes"] / 6)
    assert finish(trainer_of(path, **settings)).finished
    waves = saved(path)["step_0003"].state["guards"]["waves"]
    assert [own[0] for own in waves] == [row["reward_mean"] for row in read(path, "train.jsonl")]


def test_a_slow_pace_is_recorded_once_a_step_though_its_wave_is_played_in_several_parts(tmp_path):
    """Every group is dropped, so that two more parts are played."""
    path, geometry = tmp_path / "run", {"refill": 2, "min_group_std_cm": 1e6}
    wires = {"pace": "record", "pace_episodes": 1, "pace_episodes_per_min": 1e9}
    assert finish(trainer_of(path, wires=wires, geometry=geometry, steps=2)).finished
    rows = read(path, "train.jsonl")
    assert [row["groups_refilled"] for row in rows] == [4, 4]
    assert [[firing["wire"] for firing in row["tripwires"]] for row in rows] == [["pace"], ["pace"]]


def test_time_that_a_killed_evaluation_took_is_spent(tmp_path, monkeypatch):
    """Three hours pass in the first evaluation, it tells how far it is, and dies."""
    path = tmp_path / "run"
    monkeypatch.setattr(rundir, "HEARTBEAT_EVERY_S", 0.0)

    def evaluate(step):
        trainer.account.counters = replace(trainer.account.counters, device_s=3 * 3600.0)
        trainer.beat(PredictRound(1, live=2, done=1, total=3))
        raise Killed

    trainer = trainer_of(path, evaluate=evaluate)
    with pytest.raises(Killed):
        finish(trainer)
    beat = trainer.run_dir.last_heartbeat()
    assert (beat["phase"], beat["step"], beat["done"], beat["total"]) == ("eval", 0, 1, 3)
    assert "budget of hours" in stop(path, budget={"wall_h": 2.0})


@pytest.mark.parametrize(("key", "device"), [("gpu_h", "cuda"), ("wall_h", "cpu")])
def test_hours_that_run_out_inside_a_wave_stop_the_run_there(plain, tmp_path, monkeypatch, key, device):
    """Three hours pass in the second wave, after its first episode; nobody but the run itself looks."""
    path = tmp_path / "run"
    monkeypatch.setattr(trainer_module, "Account", lambda _: account.Account(device))
    trainer = trainer_of(path, budget={key: 2.0})

    def hours_pass(event):
        if isinstance(event, EpisodeDone) and len(wave(path, 2)) == 1:
            trainer.account.counters = replace(trainer.account.counters, device_s=3 * 3600.0)

    trainer.on_event = hours_pass
    with pytest.raises(StoppedRun, match="budget of .*hours"):
        finish(trainer)
    last = read(path, "train.jsonl")[-1]
    assert last["step"] == 2 and [firing["wire"] for firing in last["tripwires"]] == [f"budget.{key}"]
    assert 0 < last["episodes"] == len(wave(path, 2)) < 6 and last["rows"] == 0
    assert {name: c.state["policy_digest"] for name, c in saved(path).items()} == {"step_0001": plain[1][1]}


def test_a_baseline_that_silences_its_wire_is_told_once(tmp_path):
    """Knock-aways in all of the first wave: twice that is more than every episode."""
    path, told = tmp_path / "run", []
    settings = {"wires": {"knockaway": "armed"}, "world": {"knocked_from": FIRST}}

    def on_event(event):
        if isinstance(event, events.WireSilenced):
            told.append((event.step, event.wire, event.line))
        if isinstance(event, events.StepDone):
            trainer.max_wall_s = 0.0

    for _ in range(2):
        trainer = trainer_of(path, **settings)
        trainer.on_event = on_event
        finish(trainer)
    assert told == [(1, "knockaway", 2.0)] and len(read(path, "train.jsonl")) == 2


def test_a_stop_in_a_refill_has_taken_the_time_of_the_parts_before_it(tmp_path, monkeypatch):
    """Every group is dropped; in the part that is played in their place the ticks are spent. A round takes a second."""
    path, now, seen, ticks = tmp_path / "run", [0.0], [], 10**9
    monkeypatch.setattr(waves.time, "perf_counter", lambda: now[0])
    geometry = {"refill": 1, "min_group_std_cm": 1e6}
    trainer = trainer_of(path, geometry=geometry, budget={"env_ticks": ticks}, evaluate=falling)

    def on_event(event):
        now[0] += isinstance(event, PredictRound)
        seen.append(type(event))
        if isinstance(event, EpisodeDone) and seen.count(events.WaveStarted) == 2:
            trainer.account.counters = replace(trainer.account.counters, env_ticks=ticks)

    trainer.on_event = on_event
    with pytest.raises(StoppedRun, match="ticks"):
        finish(trainer)
    (row,) = read(path, "train.jsonl")
    refill = seen[len(seen) - seen[::-1].index(events.WaveStarted) :]
    assert row["rollout_s"] == seen.count(PredictRound) > refill.count(PredictRound) > 0


def test_hours_of_the_wave_that_was_stopped_are_in_the_total(monkeypatch):
    """An hour in a step that is counted, half an hour in the wave after it."""
    clock = [0.0]
    monkeypatch.setattr(account.time, "monotonic", lambda: clock[0])
    books = account.Account("cuda")
    books.open()
    clock[0] = 3600.0
    books.count(Wave((), (), 0.0, 0, 0, None), no_update())
    assert books.costs(1800.0, 0.0).gpu_h_total == 1.0
    clock[0] += 1800.0
    assert books.costs(1800.0, 0.0).gpu_h_total == 1.5


def test_trainer_and_sampler_are_compared_on_rows_that_this_launch_has_played(tmp_path, monkeypatch):
    """Of six episodes three are left from a launch that died; of six, none has to be played."""
    path, seen = tmp_path / "run", []

    def check_first(policy, rows, *rest):
        seen.append({row.spec for row in rows})

    monkeypatch.setattr(trainer_module, "check_first", check_first)

    def die(event):
        if isinstance(event, EpisodeDone) and len(wave(path, 1)) == 3:
            raise Killed

    with pytest.raises(Killed):
        finish(trainer_of(path, on_event=die))
    left = {name.removesuffix(".npz") for name in wave(path, 1)}

    def die_at_the_update(event):
        if isinstance(event, events.UpdateProgress):
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            finish(trainer_of(path, on_event=die_at_the_update))
    played, stored = ({spec.episode_id for spec in specs} for specs in seen)
    assert len(left) == 3 and len(played) == 3 and not played & left and len(stored) == 6
