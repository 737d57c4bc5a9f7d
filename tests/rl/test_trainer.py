"""The trainer: the files of the contract, the same numbers twice, and the same end after any kill."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_policy import tiny_policy, tiny_sampler
from toy_run import STEPS, toy_trainer
from toy_world import spec

from vla_rl.config.schedule import evaluation_steps
from vla_rl.config.schema import GeometryConfig, LossConfig, OptimConfig
from vla_rl.errors import ConfigError, RolloutError, StoppedRun
from vla_rl.rl import events
from vla_rl.rl import trainer as trainer_module
from vla_rl.rl.checkpoint import checkpoints, load_checkpoint
from vla_rl.rl.drift import Drift
from vla_rl.rl.plan import Geometry
from vla_rl.rollout.events import EpisodeDone, PredictRound
from vla_rl.rollout.pool import ProcessPool

TRAIN_KEYS = """step episodes successes reward_mean median_group_std_cm groups_total groups_refilled
    groups_kept groups_dropped
    lone_replans mixed_groups_frac success_advantage_share
    mean_ratio min_ratio max_ratio clip_fraction approx_kl anchor_kl
    anchor_k3_pre update_kl rolled_back rollout_gap loss grad_norm step_skipped chosen_nll entropy
    knockaway_frac setback_frac tip_frac strikes earned_progress_mean_cm ungrasped_disp_mean_cm oom_retries rows tokens
    predict_rounds mean_predict_batch rollout_s update_s eval_s save_s env_steps_per_s vram_gib gpu_h
    gpu_h_total masked_violations wider_bins zero_fallbacks predict_latency_s tripwires""".split()
TIMES = {"rollout_s", "update_s", "eval_s", "save_s", "env_steps_per_s", "wall_s", "predict_s", "predict_latency_s"}
SRC = str(Path(__file__).parents[2] / "src")


class Killed(BaseException):
    """Stands for SIGKILL inside this process: nothing catches it."""


def read(path, name):
    return [json.loads(line) for line in (path / name).read_text().splitlines()]


def evidence(path):
    """Everything a run records, without times, in an order that does not depend on when it was killed."""
    files = {
        name: [{k: v for k, v in row.items() if k not in TIMES} for row in read(path, name)]
        for name in ("train.jsonl", "episodes.jsonl", "eval.jsonl")
    }
    last = load_checkpoint(checkpoints(path / "checkpoints")[-1])
    counters = {k: v for k, v in last.state["counters"].items() if k != "device_s"}
    digests = last.state["policy_digest"], {n: w.numpy().tobytes() for n, w in (last.weights | last.moments).items()}
    return files, counters, digests, last.step


def finish(trainer):
    try:
        return trainer.run()
    finally:
        trainer.run_dir.close()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    seen = []
    outcome = finish(toy_trainer(path, on_event=seen.append))
    return path, outcome, seen


def test_the_files_of_the_contract_with_the_documented_keys(reference):
    path, outcome, _ = reference
    rows = read(path, "train.jsonl")
    assert outcome.finished and [row["step"] for row in rows] == [1, 2, 3]
    assert all(list(row) == TRAIN_KEYS for row in rows)
    assert all(not isinstance(v, float) or math.isfinite(v) for row in rows for v in row.values())
    assert sorted(os.listdir(path / "checkpoints")) == ["step_0002", "step_0003"]
    assert not list((path / "waves").iterdir())  # rows go once their update is checkpointed
    assert json.loads((path / "heartbeat.json").read_text())["phase"] == "finished"
    assert [row["step"] for row in read(path, "eval.jsonl")] == [0, STEPS]


def test_every_episode_is_one_row_with_reward_terms_metrics_tokens_and_time(reference):
    path, _, _ = reference
    rows = read(path, "episodes.jsonl")
    keys = [(r["phase"], r["step"], r["seed"], r["draw"]) for r in rows]
    train = [("train", s, 200000 + 2 * (s - 1) + k, d) for s in (1, 2, 3) for k in (0, 1) for d in (0, 1, 2)]
    held_out = [("eval", s, seed, 0) for s in (0, 3) for seed in (300, 301, 302)]
    assert len(set(keys)) == len(keys) and set(keys) == set(train + held_out)
    for row in rows:
        assert row["reward"] == sum(row[f"reward_{t}"] for t in ("progress", "success", "tip", "strike"))
        assert {"tokens", "wall_s", "replans", "success", "ticks", "progress_final_cm"} <= set(row)


def test_the_first_update_is_on_policy_and_the_weights_move(reference):
    path, outcome, _ = reference
    rows = read(path, "train.jsonl")
    first = rows[0]
    assert abs(first["mean_ratio"] - 1) < 1e-4 and first["clip_fraction"] == 0 and first["rollout_gap"] < 1e-5
    assert all(row["rollout_gap"] < 1e-5 for row in rows)  # later waves too: the sampler follows the weights
    assert any(row["grad_norm"] for row in rows)
    states = [load_checkpoint(path).state for path in checkpoints(path / "checkpoints")]
    assert len({s["policy_digest"] for s in states} | {(path / "base_policy.sha256").read_text().strip()}) == 3
    assert outcome.counters.updates_applied == sum(not row["step_skipped"] for row in rows) > 0
    assert outcome.counters.episodes == 18


def test_device_figures_are_null_on_a_cpu_and_the_evaluation_before_a_step_is_in_its_row(reference):
    rows = read(reference[0], "train.jsonl")
    assert all(row[k] is None for row in rows for k in ("vram_gib", "gpu_h", "gpu_h_total", "anchor_k3_pre"))
    assert rows[0]["eval_s"] > 0 and rows[1]["eval_s"] is None


def test_events_tell_the_story_in_order(reference):
    names = [type(event).__name__ for event in reference[2]]
    milestones = [n for n in names if n not in ("PredictRound", "EpisodeDone", "UpdateProgress")]
    step = ["WaveStarted", "CheckpointSaved", "StepDone"]
    evaluation = ["EvalStarted", "EvalDone"]
    assert milestones == ["PreflightDone", "RunStarted", *evaluation, *step * 3, *evaluation, "RunEnded"]
    progress = [e for e in reference[2] if isinstance(e, events.UpdateProgress) and e.step == 1]
    assert progress[-1].done == progress[-1].total


def test_the_same_run_twice_gives_the_same_numbers_and_weights(reference, tmp_path):
    finish(toy_trainer(tmp_path / "run"))
    assert evidence(tmp_path / "run") == evidence(reference[0])


@pytest.mark.parametrize(("workers", "groups"), [(1, 1), (2, 2)])
def test_worker_processes_give_the_same_numbers_and_weights(reference, tmp_path, workers, groups):
    env_spec = spec(max_chunks=3)
    with ProcessPool(workers=workers, groups=groups, timeout_s=60.0, env_spec=env_spec, plugins=("toy_world",)) as pool:
        finish(toy_trainer(tmp_path / "run", pool=pool))
    (mine, *rest), (theirs, *others) = evidence(tmp_path / "run"), evidence(reference[0])
    if groups > 1:  # the batches are smaller, and that alone may show
        for row in (*mine["train.jsonl"], *theirs["train.jsonl"]):
            del row["predict_rounds"], row["mean_predict_batch"]
    assert mine == theirs and rest == others


def kill_at(count):
    """A callback that stops the run dead at its `count`-th event."""
    left = [count]

    def on_event(event):
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    return on_event


def lived(run, strides):
    """How many lives a run took: each is killed at its stride-th event, until one reaches the end.

    Args:
        run: begins or continues it; called with what is told of every event.
    """
    for life, stride in enumerate(strides, 1):
        try:
            run(kill_at(stride))
            return life
        except Killed:
            continue
    raise AssertionError(f"not one of {len(strides)} lives reached the end")


@pytest.mark.parametrize("every", [1, 2])
def test_killed_at_event_after_event_it_ends_in_the_same_weights_rows_and_counters(reference, tmp_path, every):
    """Each life of the run is a few events longer than what it must redo, until one life reaches the end."""
    path = tmp_path / "run"
    assert lived(lambda die: finish(toy_trainer(path, on_event=die, every=every)), range(5, 200, 7)) > 3
    assert evidence(path) == evidence(reference[0])


def test_killed_in_the_middle_of_any_durable_write_it_ends_the_same(reference, tmp_path, monkeypatch):
    """Every file that matters is fsynced before it counts; die at the n-th fsync of each life."""
    path, real, lives = tmp_path / "run", os.fsync, 0
    for life in range(40):
        left = [3 + 4 * life]

        def fsync(handle, left=left):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        lives += 1
        try:
            finish(toy_trainer(path))
            break
        except Killed:
            continue
    monkeypatch.setattr(os, "fsync", real)
    assert lives > 4
    assert evidence(path) == evidence(reference[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "count", "every"),
    [
        ("EpisodeDone", 7, 1),
        ("UpdateProgress", 3, 1),
        ("CheckpointSaved", 2, 1),
        ("EvalStarted", 1, 1),
        ("StepDone", 1, 2),
    ],
)
def test_kill_minus_9_then_resume_ends_in_the_same_weights(reference, lives, tmp_path, event, count, every):
    assert lives(tmp_path / "run", event, count, every, 0, STEPS) == -9
    finish(toy_trainer(tmp_path / "run", every=every))
    assert evidence(tmp_path / "run") == evidence(reference[0])


MOMENTS = {  # what happens, and how often in the life of a run that nothing disturbs
    "EpisodeDone": 24, "PredictRound": 36, "UpdateProgress": 12, "CheckpointSaved": 3, "EvalStarted": 2, "EvalDone": 2,
    "StepDone": 3, "replace": 50, "fsync": 120,
}  # fmt: skip


@pytest.mark.slow
def test_kill_minus_9_at_twenty_random_moments_whatever_the_workers(lives, tmp_path):
    """Every life of a run has a number of workers of its own and goes on from where the last one died, up to another
    moment. A run that got to its end is compared with the undisturbed one; others are begun until 20 kills are done."""
    whole = tmp_path / "whole"
    assert lives(whole, "never", 1, 1, 1, STEPS) == 0
    expected, random, kills, runs = comparable(whole), np.random.default_rng(6), 0, 0
    while kills < 20:
        path, runs = tmp_path / f"run{runs}", runs + 1
        while True:
            moment = str(random.choice(list(MOMENTS)))
            count, workers = random.integers(1, MOMENTS[moment] // 2 + 2), random.choice([0, 0, 1, 2])
            code = lives(path, moment, count, 1, workers, STEPS)
            assert code in (0, -9), (moment, count, workers)
            if code == 0:
                break
            kills += 1
        assert comparable(path) == expected, f"run {runs} after {kills} kills"
    assert runs > 1


@pytest.fixture(scope="module")
def lives():
    """Runs one life of a toy run in a process of its own and returns what it ended with."""
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SRC, str(here), str(here.parent / "rollout")])}
    command = [sys.executable, str(here / "toy_run.py")]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin and program.stdout

        def live(*words):
            print(*words, file=program.stdin, flush=True)
            return int(program.stdout.readline())

        yield live


def comparable(path):
    """`evidence` without the size of predict batches, which may depend on the workers."""
    files, *rest = evidence(path)
    for row in files["train.jsonl"]:
        del row["predict_rounds"], row["mean_predict_batch"]
    return files, *rest


def test_a_killed_wave_runs_only_the_episodes_that_were_in_flight(tmp_path):
    path, finished = tmp_path / "run", []

    def die_after_four(event):
        finished.extend([event] if isinstance(event, EpisodeDone) and (path / "eval.jsonl").exists() else [])
        if len(finished) == 4:
            raise Killed

    with pytest.raises(Killed):
        finish(toy_trainer(path, on_event=die_after_four))
    seen = []
    finish(toy_trainer(path, on_event=seen.append))
    first_wave = next(e for e in seen if isinstance(e, events.WaveStarted))
    assert (first_wave.step, first_wave.episodes, first_wave.stored) == (1, 6, 4)


def test_the_schedule_of_evaluations_is_start_end_cadence_and_named_updates():
    assert evaluation_steps(7, 3, [1, 6]) == {0, 1, 3, 6, 7}
    assert evaluation_steps(7, None, []) == {0, 7} and evaluation_steps(0, 2, [0]) == {0}
    for named in (8, -1):
        with pytest.raises(ConfigError, match="eval.at_steps"):
            evaluation_steps(7, None, [named])


@pytest.mark.parametrize("every", [1, 3])
def test_evaluations_in_between_are_made_once_whatever_the_kills_and_change_nothing(reference, tmp_path, every):
    path, made = tmp_path / "run", []

    def run(die):
        finish(toy_trainer(path, on_event=lambda e: (made.append(e), die(e)), every=every, evaluate_at={1, 2}))

    assert lived(run, range(6, 200, 9)) > 1
    assert [row["step"] for row in read(path, "eval.jsonl")] == [0, 1, 2, 3]
    episodes = [(r["step"], r["seed"]) for r in read(path, "episodes.jsonl") if r["phase"] == "eval"]
    assert len(episodes) == len(set(episodes)) == 12
    if every == 1:  # a checkpoint stands behind each of them
        assert [event.step for event in made if isinstance(event, events.EvalDone)] == [0, 1, 2, 3]
    assert evidence(path)[2] == evidence(reference[0])[2]


def test_resuming_a_finished_run_changes_no_row(reference, tmp_path):
    path, _, _ = reference
    before = {p.name: p.read_bytes() for p in path.glob("*.jsonl")}
    assert finish(toy_trainer(path)).finished
    assert {p.name: p.read_bytes() for p in path.glob("*.jsonl")} == before


def test_out_of_time_it_stops_at_a_safe_point_and_the_next_launch_goes_on(reference, tmp_path):
    path = tmp_path / "run"
    outcome = finish(toy_trainer(path, max_wall_s=0.0))
    assert not outcome.finished and outcome.step == 0 and "max_wall_s" in outcome.reason
    assert json.loads((path / "heartbeat.json").read_text())["phase"] == "stopped"
    assert finish(toy_trainer(path)).finished
    assert evidence(path) == evidence(reference[0])


@pytest.mark.parametrize("phase", [PredictRound, events.UpdateProgress])
def test_the_wall_limit_falls_inside_a_wave_or_an_update_and_the_next_launch_ends_in_the_same_run(
    reference, tmp_path, phase
):
    """The clock jumps past the limit at the first round, or micro-batch, of step 2."""
    path = tmp_path / "run"
    trainer = toy_trainer(path, max_wall_s=1000.0)
    seen = []

    def jump(event):
        seen.append(event)
        if isinstance(event, phase) and any(isinstance(e, events.StepDone) for e in seen):
            trainer.max_wall_s = -1.0

    trainer.on_event = jump
    outcome = finish(trainer)
    assert not outcome.finished and outcome.step == 1
    assert sum(isinstance(e, events.StepDone) for e in seen) == 1
    kept = len(list((path / "waves" / "step_0002").glob("*.npz"))) if (path / "waves" / "step_0002").exists() else 0
    assert kept < 6 if phase is PredictRound else kept == 6
    assert finish(toy_trainer(path)).finished
    assert evidence(path) == evidence(reference[0])


def test_device_time_of_killed_attempts_is_not_forgotten(tmp_path):
    path = tmp_path / "run"
    finish(toy_trainer(path, max_wall_s=0.0))
    beat = json.loads((path / "heartbeat.json").read_text())
    (path / "heartbeat.json").write_text(json.dumps({**beat, "device_s": 5000.0}))
    assert finish(toy_trainer(path)).counters.device_s > 5000.0


def test_rows_are_kept_on_request_and_hold_what_was_sampled(reference, tmp_path):
    finish(toy_trainer(tmp_path / "run", keep_rows=True))
    assert sorted(p.name for p in (tmp_path / "run" / "waves").iterdir()) == ["step_0001", "step_0002", "step_0003"]
    assert evidence(tmp_path / "run") == evidence(reference[0])


def test_against_what_was_recorded_a_wave_from_disk_has_ratio_one_and_clips_nothing(tmp_path):
    """The run dies when its first wave is on disk; the next launch reads it, pictures included."""

    def die(event):
        if isinstance(event, events.UpdateProgress):
            raise Killed

    recorded, played = LossConfig(old_logp="recorded"), []
    with pytest.raises(Killed):
        finish(toy_trainer(tmp_path / "run", loss=recorded, on_event=die))
    finish(toy_trainer(tmp_path / "run", loss=recorded, steps=1, on_event=played.append))
    assert not any(isinstance(event, EpisodeDone) and event.episode_id.startswith("seed200") for event in played)
    (row,) = read(tmp_path / "run", "train.jsonl")
    assert row["rows"] > 0 and row["clip_fraction"] == 0 and row["rollout_gap"] < 1e-5
    assert max(abs(row[name] - 1) for name in ("mean_ratio", "min_ratio", "max_ratio")) < 1e-4


@pytest.mark.parametrize(("lr", "betas"), [(0.0, (0.9, 0.95)), (1e-4, (0.0, 0.5))])
def test_the_update_after_a_resume_is_made_with_the_constants_of_its_launch(tmp_path, lr, betas):
    """The command refuses other constants at resume; were they given to the trainer, they would be in force."""
    finish(toy_trainer(tmp_path / "run", steps=1))
    constants = OptimConfig(lr=lr, beta1=betas[0], beta2=betas[1], microbatch_rows=4)
    resumed = toy_trainer(tmp_path / "run", steps=2, optim=constants)
    finish(resumed)
    (group,) = resumed.optimizer.param_groups
    assert (group["lr"], group["betas"]) == (lr, betas)
    first, second = (load_checkpoint(path).weights for path in checkpoints(resumed.run_dir.checkpoints))
    moved = max(float((second[name] - first[name]).abs().max()) for name in first)
    assert moved == 0.0 if lr == 0.0 else 0.0 < moved < 5 * lr


def test_a_loss_that_is_not_finite_is_recorded_and_stops_the_run_before_any_checkpoint(tmp_path):
    trainer = toy_trainer(tmp_path / "run")

    def poison(event):
        if isinstance(event, PredictRound) and (tmp_path / "run" / "eval.jsonl").exists() and event.done == event.total:
            with torch.no_grad():
                trainer.policy.model.lm_head.weight.fill_(float("nan"))

    trainer.on_event = poison
    with pytest.raises(StoppedRun, match="not finite"):
        finish(trainer)
    row = read(tmp_path / "run", "train.jsonl")[-1]
    assert row["step_skipped"] is True and row["loss"] is None and row["grad_norm"] is None
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert list((tmp_path / "run" / "waves" / "step_0001").iterdir())  # kept, to look at


def test_a_wave_without_spread_is_recorded_as_a_skipped_step_and_the_run_goes_on(tmp_path):
    outcome = finish(toy_trainer(tmp_path / "run", geometry={"min_group_std_cm": 1e6}))
    rows = read(tmp_path / "run", "train.jsonl")
    assert outcome.finished and outcome.counters.updates_applied == 0
    assert all(r["step_skipped"] and r["groups_kept"] == 0 and r["loss"] is None and r["tokens"] == 0 for r in rows)
    base = (tmp_path / "run" / "base_policy.sha256").read_text().strip()
    assert load_checkpoint(checkpoints(tmp_path / "run" / "checkpoints")[-1]).state["policy_digest"] == base


def test_a_broken_environment_stops_the_run_with_finished_episodes_saved(tmp_path):
    env_spec = spec("raise@in_reset", 200001, max_chunks=3)
    with ProcessPool(workers=1, groups=2, timeout_s=60.0, env_spec=env_spec, plugins=("toy_world",)) as pool:
        with pytest.raises(RolloutError, match="seed200001"):
            finish(toy_trainer(tmp_path / "run", pool=pool, geometry={"draws": 4}))
    stored = {p.name for p in (tmp_path / "run" / "waves" / "step_0001").glob("seed*.npz")}
    assert stored and stored <= {f"seed200000_draw0{draw}.npz" for draw in range(4)}


@pytest.mark.parametrize(
    "change",
    [
        {"geometry": {"draws": 1}},
        {"geometry": {"train_seed_base": 300}},
        {"geometry": {"train_seed_base": 700000}},
        {"optim": OptimConfig(microbatch_rows=0)},
        {"loss": LossConfig(old_logp="sampler")},
        {"loss": LossConfig(kl_in="rewards", kl_beta=0.1)},
        {"loss": LossConfig(trust_region=0.1, kl_rows=0)},
    ],
)
def test_constants_that_make_no_sense_are_refused_before_anything_runs(tmp_path, change):
    with pytest.raises(ConfigError):
        toy_trainer(tmp_path / "run", **change)


def test_steps_never_share_a_training_seed():
    geometry = Geometry.of(GeometryConfig(seeds=3, draws=2, temperature=1.0, train_seed_base=200000))
    assert [(s.seed, s.draw) for s in geometry.specs(2)] == [(200000 + k, d) for k in (3, 4, 5) for d in (0, 1)]
    assert {s.seed for step in (1, 2, 3) for s in geometry.specs(step)} == set(geometry.training_seeds(3))


def test_the_seeds_of_refills_are_set_aside_for_their_step():
    geometry = Geometry.of(GeometryConfig(seeds=3, draws=2, temperature=1.0, train_seed_base=200000, refill=2))
    assert [s.seed for s in geometry.specs(2)[::2]] == [200009, 200010, 200011]
    assert [s.seed for s in geometry.specs(2, 2, used=4)[::2]] == [200013, 200014]
    assert geometry.training_seeds(2) == range(200000, 200018)


REFILLED = {"seeds": 2, "draws": 3, "refill": 2, "min_success_rate": 0.0}  # a group without a success is replaced


@pytest.fixture(scope="module")
def refilled(tmp_path_factory):
    path = tmp_path_factory.mktemp("refilled") / "run"
    finish(toy_trainer(path, geometry=REFILLED))
    return path


def test_dropped_groups_are_replaced_by_fresh_seeds_of_the_same_step(refilled):
    rows, episodes = read(refilled, "train.jsonl"), read(refilled, "episodes.jsonl")
    assert any(row["groups_refilled"] for row in rows)
    for row in rows:
        seeds = sorted({e["seed"] for e in episodes if e["phase"] == "train" and e["step"] == row["step"]})
        first = 200000 + 6 * (row["step"] - 1)
        assert seeds == list(range(first, first + 2 + row["groups_refilled"]))
        assert row["groups_total"] == len(seeds) and row["episodes"] == 3 * len(seeds)
        assert row["groups_kept"] == 2 or row["groups_refilled"] >= 2
        assert row["groups_kept"] <= 2


def test_a_run_with_refills_killed_at_event_after_event_ends_the_same(refilled, tmp_path):
    path = tmp_path / "run"
    assert lived(lambda die: finish(toy_trainer(path, on_event=die, geometry=REFILLED)), range(8, 300, 11)) > 1
    assert evidence(tmp_path / "run") == evidence(refilled)


def test_a_sampler_that_only_decodes_greedily_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="sampler.mode"):
        toy_trainer(tmp_path / "run", sampler=tiny_sampler(tiny_policy(), mode="reference"))


def test_a_policy_that_acts_with_its_flow_head_is_refused_at_once(tmp_path, monkeypatch):
    policy = tiny_policy()
    policy.head = "flow"
    monkeypatch.setattr("toy_run.tiny_policy", lambda: policy)
    with pytest.raises(ConfigError, match=r"needs the token head[\s\S]*serve_head=ar"):
        toy_trainer(tmp_path / "run")


def test_the_distance_to_step_0_is_measured_after_each_update(reference):
    path = reference[0]
    kls = [row["anchor_kl"] for row in read(path, "train.jsonl")]
    assert all(kl > 0 for kl in kls) and all(not row["rolled_back"] for row in read(path, "train.jsonl"))


def test_a_resumed_run_is_anchored_to_step_0_and_not_to_the_weights_that_it_goes_on_from(tmp_path):
    """The anchor is taken before a checkpoint is put in place: the other way round it would move with every resume."""
    finish(toy_trainer(tmp_path / "run", steps=1))
    anchored, live = set(), []

    def on_event(event):
        with resumed.anchor.installed():
            anchored.add(resumed.policy.digest())
        live.append(resumed.policy.digest())

    resumed = toy_trainer(tmp_path / "run", steps=2, on_event=on_event)
    finish(resumed)
    first, second = (load_checkpoint(path).state["policy_digest"] for path in checkpoints(resumed.run_dir.checkpoints))
    assert anchored == {tiny_policy().digest()} and live[-1] == second and first in live


def test_the_distance_is_measured_on_rows_of_every_seed(tmp_path, monkeypatch):
    """Four rows of two seeds with three draws each: two rows a seed, of two draws. The first four of the wave are of
    one seed and of two episodes at most."""
    samples, real = [], trainer_module.measure

    def measured(policy, anchor, rows, **rest):
        samples.append([row.spec for row in rows])
        return real(policy, anchor, rows, **rest)

    monkeypatch.setattr(trainer_module, "measure", measured)
    finish(toy_trainer(tmp_path / "run", loss=LossConfig(kl_rows=4)))
    assert len(samples) == STEPS
    for step, specs in enumerate(samples):
        assert len(set(specs)) == 4 and sorted(spec.seed - 200000 - 2 * step for spec in specs) == [0, 0, 1, 1]


def test_an_update_beyond_the_trust_region_is_undone_and_recorded(reference, tmp_path):
    trainer = toy_trainer(tmp_path / "run", loss=LossConfig(trust_region=1e-12))
    before = trainer.policy.digest()
    finish(trainer)
    rows = read(tmp_path / "run", "train.jsonl")
    assert all(row["rolled_back"] and row["step_skipped"] and row["update_kl"] > 1e-12 for row in rows)
    assert trainer.policy.digest() == before and trainer.account.counters.updates_applied == 0
    wide = toy_trainer(tmp_path / "wide", loss=LossConfig(trust_region=1e6))
    finish(wide)
    assert evidence(tmp_path / "wide")[2] == evidence(reference[0])[2]


def test_an_update_whose_distance_is_no_number_is_undone_too(tmp_path, monkeypatch):
    monkeypatch.setattr(
        trainer_module, "measure", lambda *a, **k: Drift(rows=1, anchor_kl=math.nan, update_kl=math.nan)
    )
    trainer = toy_trainer(tmp_path / "run", loss=LossConfig(trust_region=1.0))
    before = trainer.policy.digest()
    finish(trainer)
    assert trainer.policy.digest() == before and trainer.account.counters.updates_applied == 0


def test_the_time_limit_stops_the_first_pass_of_an_update_and_no_later_one(tmp_path):
    trainer = toy_trainer(tmp_path / "run", loss=LossConfig(epochs=2))
    seen = []

    def watch(event):
        if isinstance(event, events.UpdateProgress):
            seen.append(event)
            if event.done > event.total // 2:  # the second pass is under way
                trainer.max_wall_s = 0.0

    trainer.on_event = watch
    outcome = finish(trainer)
    assert not outcome.finished and outcome.step == 1 and seen[-1].done == seen[-1].total


def test_a_kl_cost_in_the_reward_is_a_term_of_every_episode(tmp_path):
    finish(toy_trainer(tmp_path / "run", loss=LossConfig(kl_beta=0.5, kl_in="reward", kl_estimator="k1")))
    episodes = [row for row in read(tmp_path / "run", "episodes.jsonl") if row["phase"] == "train"]
    terms = [name for name in episodes[0] if name.startswith("reward_") and episodes[0][name] is not None]
    assert "reward_kl" in terms
    for row in episodes:
        assert row["reward"] == pytest.approx(sum(row[name] for name in terms))
    assert any(row["reward_kl"] != 0 for row in episodes if row["step"] > 1)


def test_shuffled_advantages_are_recorded_as_they_were_dealt(reference, tmp_path):
    finish(toy_trainer(tmp_path / "run", geometry={"shuffle_advantages": True}))
    dealt, straight = (
        [row["advantage"] for row in read(path, "episodes.jsonl") if row["phase"] == "train" and row["step"] == 1]
        for path in (tmp_path / "run", reference[0])
    )
    assert dealt != straight and sorted(dealt) == sorted(straight)
