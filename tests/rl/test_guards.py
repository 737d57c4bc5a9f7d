"""Guards in a real run: what stops it, what is on disk then, and what no kill and no second launch makes it forget."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
import torch
from guarded_run import FIRST, out_of_time_at, saved, stop, trainer_of, wave
from test_trainer import Killed, evidence, finish, read

from vla_rl.errors import StoppedRun
from vla_rl.rl import device, events, gates
from vla_rl.rl.checkpoint import checkpoints, load_checkpoint
from vla_rl.rl.device import DeviceFacts, foreign_processes
from vla_rl.rl.gates import judge_idle
from vla_rl.rl.summary import Evaluation
from vla_rl.rollout.events import PredictRound


@pytest.mark.parametrize("every", [1, 3])
def test_a_wire_before_the_update_stops_with_the_weights_of_the_step_before_under_their_own_name(
    plain, tmp_path, every
):
    """A strike in the wave of step 3; with a checkpoint every 3 steps that of step 2 has to be written now."""
    message = stop(tmp_path / "run", world={"struck_from": FIRST + 4}, wires={"strikes": "armed"}, every=every)
    assert "step 3" in message and "a reset touched the boat" in message
    rows = read(tmp_path / "run", "train.jsonl")
    assert rows[-1]["tripwires"] == [{"wire": "strikes", "mode": "armed", "value": 6, "threshold": 0, "streak": 1}]
    assert [row["tripwires"] for row in rows[:-1]] == [[], []] and rows[-1]["step_skipped"] and rows[-1]["rows"] == 0
    kept = saved(tmp_path / "run")
    assert max(kept) == "step_0002" and kept["step_0002"].state["policy_digest"] == plain[1][2]
    assert kept["step_0002"].state["counters"]["updates_applied"] == 2
    assert len(wave(tmp_path / "run", 3)) == 6
    assert json.loads((tmp_path / "run" / "heartbeat.json").read_text())["phase"] == "tripped"


def test_a_wire_after_the_update_stops_with_the_updated_weights_under_the_name_of_that_step(plain, tmp_path):
    wires = {"kl_stop": "armed", "kl_stop_nats": 1e-12}
    assert "step 1" in stop(tmp_path / "run", wires=wires, every=3)
    (row,) = read(tmp_path / "run", "train.jsonl")
    (firing,) = row["tripwires"]
    assert firing["wire"] == "kl_stop" and firing["value"] == row["anchor_kl"] > 1e-12
    kept = saved(tmp_path / "run")
    assert list(kept) == ["step_0001"] and kept["step_0001"].state["policy_digest"] == plain[1][1]
    assert len(wave(tmp_path / "run", 1)) == 6  # to be looked at


def test_a_run_that_a_wire_has_ended_cannot_be_walked_past_by_starting_it_again(tmp_path):
    for name, wires, world in (
        ("before", {"strikes": "armed"}, {"struck_from": FIRST + 2}),
        ("after", {"kl_stop": "armed", "kl_stop_nats": 1e-12}, {}),
    ):
        path = tmp_path / name
        stop(path, wires=wires, world=world)
        files = {p.name: p.read_bytes() for p in path.glob("*.jsonl")}
        seen = []
        assert "the run is over" in stop(path, wires=wires, world=world, on_event=seen.append)
        assert seen == []  # no gate, no dry update: it costs nothing
        assert {p.name: p.read_bytes() for p in path.glob("*.jsonl")} == files


def test_killed_between_the_checkpoint_and_the_row_of_a_fired_wire_it_stays_stopped(tmp_path):
    wires = {"kl_stop": "armed", "kl_stop_nats": 1e-12}

    def die(event):
        if isinstance(event, events.CheckpointSaved):
            raise Killed

    with pytest.raises(Killed):
        finish(trainer_of(tmp_path / "run", wires=wires, on_event=die))
    assert not (tmp_path / "run" / "train.jsonl").exists()
    assert "step 1: the policy is too far from step 0" in stop(tmp_path / "run", wires=wires)
    assert not (tmp_path / "run" / "train.jsonl").exists()


def test_a_recording_wire_writes_and_stops_nothing(plain, tmp_path):
    wires = {"strikes": "record", "kl_stop": "record", "kl_stop_nats": 1e-12, "clip": "record"}
    seen = []
    path = tmp_path / "run"
    outcome = finish(trainer_of(path, wires=wires, world={"struck_from": FIRST + 4}, on_event=seen.append))
    fired = [[(f["wire"], f["mode"]) for f in row["tripwires"]] for row in read(path, "train.jsonl")]
    assert outcome.finished
    assert fired == [[("kl_stop", "record")], [("kl_stop", "record")], [("strikes", "record"), ("kl_stop", "record")]]
    assert sum(isinstance(event, events.WiresFired) for event in seen) == 3
    assert load_checkpoint(checkpoints(path / "checkpoints")[-1]).state["policy_digest"] == plain[1][3]


def test_a_streak_survives_a_kill_between_a_wave_and_its_update(tmp_path):
    """Three waves of knock-aways in a row, each in another life of the run; the wire needs three."""
    path = tmp_path / "run"
    wires = {"knockaway": "armed", "knockaway_baseline": 0.1, "knockaway_waves": 3}
    world = {"knocked_from": FIRST}

    def die_at_the_update_of(step):
        def on_event(event):
            if isinstance(event, events.UpdateProgress) and event.step == step:
                raise Killed

        return on_event

    for step in (1, 2):
        with pytest.raises(Killed):
            finish(trainer_of(path, wires=wires, world=world, on_event=die_at_the_update_of(step)))
    assert "3 times in a row" in stop(path, wires=wires, world=world)
    rows = read(path, "train.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3] and rows[-1]["tripwires"][0]["streak"] == 3


def test_a_captured_baseline_survives_a_second_launch(tmp_path):
    """The first wave knocks nothing away and sets the baseline 0; were it captured anew, the second would be exempt."""
    path, wires = tmp_path / "run", {"knockaway": "armed", "knockaway_waves": 2}
    world = {"knocked_from": FIRST + 2}
    out_of_time_at(events.StepDone, trainer := trainer_of(path, wires=wires, world=world))
    assert finish(trainer).step == 1
    assert saved(path)["step_0001"].state["guards"]["knockaway_baseline"] == 0.0
    assert "step 3" in stop(path, wires=wires, world=world)


@pytest.mark.parametrize(("factor", "bound"), [(0.1, "entropy_ceiling_nats"), (10.0, "entropy_floor_nats")])
def test_logits_that_are_scaled_cross_the_ceiling_or_the_floor_of_the_entropy(plain, tmp_path, factor, bound):
    middle = read(plain[0], "train.jsonl")[0]["entropy"]
    trainer = trainer_of(tmp_path / "run", wires={"entropy": "armed", bound: middle})
    with torch.no_grad():
        trainer.policy.model.lm_head.weight.mul_(factor)
    with pytest.raises(StoppedRun, match="entropy is beyond its bounds"):
        finish(trainer)


def test_held_out_reward_below_the_line_ends_the_run_and_its_first_evaluation_is_remembered(tmp_path):
    path, wires = tmp_path / "run", {"heldout": "armed"}

    def evaluate(step):
        rows = tuple(
            {"phase": "eval", "step": step, "seed": seed, "reward": -5.0 if step else 1.0, "ticks": 9}
            for seed in (300, 301)
        )
        return Evaluation({"successes": 0}, rows)

    assert not finish(trainer_of(path, wires=wires, evaluate=evaluate, max_wall_s=0.0)).finished
    assert "held-out reward" in stop(path, wires=wires, evaluate=evaluate)
    assert [[f["value"] for f in row["tripwires"]] for row in read(path, "eval.jsonl")] == [[], [-6.0]]
    assert "held-out reward" in stop(path, wires=wires, evaluate=evaluate)


@pytest.mark.parametrize("every", [1, 3])
def test_a_budget_of_ticks_stops_inside_a_wave_and_a_larger_one_ends_in_the_undisturbed_run(plain, tmp_path, every):
    """What comes before the wave is kept, whatever the cadence of checkpoints."""
    path = tmp_path / "run"
    held_out = sum(row["ticks"] for row in read(plain[0], "episodes.jsonl") if row["phase"] == "eval") // 2
    first = read(plain[0], "episodes.jsonl")
    first_wave = sum(row["ticks"] for row in first if row["phase"] == "train" and row["step"] == 1)
    budget = {"env_ticks": held_out + first_wave + 1}
    message = stop(path, budget=budget, every=every)
    assert "budget of environment ticks" in message and "run.resume" in message
    last = read(path, "train.jsonl")[-1]
    assert last["step"] == 2 and last["tripwires"][0]["wire"] == "budget.env_ticks"
    assert 0 < last["episodes"] == len(wave(path, 2)) < 6
    assert [row["step"] for row in read(path, "eval.jsonl")] == [0]
    assert last["successes"] is last["strikes"] is None
    assert {name: c.state["policy_digest"] for name, c in saved(path).items()} == {"step_0001": plain[1][1]}
    stored = wave(path, 2)
    seen = []
    stop(path, budget=budget, every=every, on_event=seen.append)  # the same limit: nothing more is played
    assert wave(path, 2) == stored and not any(isinstance(event, PredictRound) for event in seen)
    assert finish(trainer_of(path, every=every)).finished
    assert evidence(path) == evidence(plain[0])


def test_hours_of_launches_that_were_killed_count_in_the_budget(tmp_path):
    path = tmp_path / "run"
    finish(trainer_of(path, max_wall_s=0.0))
    beat = json.loads((path / "heartbeat.json").read_text())
    (path / "heartbeat.json").write_text(json.dumps({**beat, "device_s": 7200.0}))
    assert "budget of hours" in stop(path, budget={"wall_h": 2.0})
    assert finish(trainer_of(path, budget={"wall_h": 3.0})).finished


# ---------------------------------------------------------------------------------------------------------------- gates
def recorded(path):
    launches = json.loads((path / "manifest.json").read_text())["launches"]
    return [[(gate["gate"], gate["passed"]) for gate in launch["gates"]] for launch in launches]


def verdict(*, passed, successes=0):
    """Of a parity read."""
    differences = {"successes_difference": successes, "interacted_difference": 0.0, "identical": 3}
    return {"passed": passed, **differences, "bounds": {"successes": 2}}


def test_an_inert_policy_costs_two_episodes_and_no_wave(tmp_path):
    path = tmp_path / "run"
    message = stop(path, world={"inert": True}, bars={"interaction_episodes": 2, "mixed_frac": 0.0})
    assert "interaction" in message and "interacted 0" in message
    assert recorded(path) == [[("preflight", True), ("interaction", False)]]
    assert not (path / "eval.jsonl").exists() and not (path / "waves").exists()


def test_gates_are_judged_in_order_recorded_and_passed_once_in_a_run(tmp_path):
    path, reads = tmp_path / "run", []

    def parity(evaluation):
        reads.append([row["seed"] for row in evaluation.episodes])
        return verdict(passed=True)

    bars = {"interaction_episodes": 2, "idle_device": True, "mixed_frac": 0.0}
    out_of_time_at(events.EvalDone, trainer := trainer_of(path, bars=bars, parity=parity))
    assert not finish(trainer).finished
    assert finish(trainer_of(path, bars=bars, parity=parity)).finished
    first = [("idle_device", True), ("preflight", True), ("interaction", True), ("parity", True)]
    assert recorded(path) == [first, [("idle_device", True), ("preflight", True), ("mixed_groups", True)]]
    assert reads == [[300, 301, 302]]


def test_a_first_wave_of_groups_that_do_not_mix_stops_before_any_update_and_is_kept(tmp_path):
    path = tmp_path / "run"
    trainer = trainer_of(path, bars={"mixed_frac": 1.0})
    before = trainer.policy.digest()
    with pytest.raises(StoppedRun, match="mixed_groups_frac"):
        finish(trainer)
    assert trainer.policy.digest() == before and not (path / "train.jsonl").exists()
    assert len(wave(path, 1)) == 6
    assert recorded(path) == [[("preflight", True), ("mixed_groups", False)]]


def test_a_policy_that_another_serving_path_plays_otherwise_costs_no_wave(tmp_path):
    path = tmp_path / "run"

    def parity(evaluation):
        return verdict(passed=False, successes=3)

    with pytest.raises(StoppedRun, match="parity is not passed: measured successes 3"):
        finish(trainer_of(path, parity=parity))
    assert recorded(path) == [[("preflight", True), ("parity", False)]] and not (path / "waves").exists()
    seen = []  # a second launch judges the same evaluation, which it finds on record
    assert "parity is not passed" in stop(path, parity=parity, on_event=seen.append)
    assert not any(isinstance(event, events.EvalStarted | PredictRound) for event in seen)


def test_a_run_of_no_steps_has_no_training_seed_to_touch_the_boat_on(tmp_path):
    path = tmp_path / "run"
    assert finish(trainer_of(path, bars={"interaction_episodes": 2}, world={"inert": True}, steps=0)).finished
    assert recorded(path) == [[("preflight", True)]] and [r["step"] for r in read(path, "eval.jsonl")] == [0]


def test_a_device_is_idle_if_others_hold_little_and_nobody_computes_there():
    facts = DeviceFacts(total_gib=80.0, free_gib=70.0, foreign_gib=0.6, foreign_processes=None)
    bounds = {"foreign_gib": 1.0, "free_gib": 60.0}
    assert judge_idle(facts, **bounds).passed and judge_idle(None, **bounds).passed
    for change in ({"foreign_gib": 1.1}, {"free_gib": 59.0}, {"foreign_processes": (77,)}):
        assert not judge_idle(replace(facts, **change), **bounds).passed
    assert foreign_processes(None) is None and foreign_processes([1, 2]) is None  # of another process namespace
    assert foreign_processes([os.getpid(), 77]) == (77,)
    assert gates.device_facts("cpu") is None


def test_memory_is_what_the_driver_says_and_not_what_this_process_has_allocated(monkeypatch):
    """Of 80 GiB 10 are free; this process's pool holds 30, of which 1 is in use: others hold 40."""
    told = {"mem_get_info": (10, 80), "memory_reserved": 30, "memory_allocated": 1, "max_memory_allocated": 1}
    for name, gib in told.items():
        answer = tuple(g * 2**30 for g in gib) if isinstance(gib, tuple) else gib * 2**30
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(device, "_compute_pids", lambda: None)
    facts = device.device_facts("cuda")
    assert facts == DeviceFacts(total_gib=80.0, free_gib=10.0, foreign_gib=40.0, foreign_processes=None)
    assert not judge_idle(facts, foreign_gib=1.0, free_gib=60.0).passed


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_state_of_a_gpu_adds_up():
    held = torch.zeros(2**28, device="cuda")  # 1 GiB
    facts = gates.device_facts("cuda")
    assert facts is not None and 0 < facts.free_gib < facts.total_gib - 1
    assert facts.foreign_gib == pytest.approx(facts.total_gib - facts.free_gib - held.nbytes / 2**30, abs=0.01)
