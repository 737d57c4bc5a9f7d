"""`vla-rl train` as a user meets it: the shipped base, real episodes, a kill, a second try."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from vla_rl.cli.main import main
from vla_rl.paths import bundled_base
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.policy import load_policy
from vla_rl.policy.prompt import Observation
from vla_rl.rl.checkpoint import load_checkpoint
from vla_rl.rl.rundir import RunDir
from vla_rl.rl.trainer import GrpoTrainer
from vla_rl.rollout import store

TINY_RUN = (
    "experiment=quickstart geometry.seeds=2 geometry.draws=2 run.steps=2 eval.seeds=300-301 eval.slots=4 "
    "sampler.batch_rows=4 sim.max_ticks=150 checkpoint.keep_rows=true pool.workers=1 run.device=cpu"
).split()


def vla_rl(*arguments, **kwargs):
    command = [sys.executable, "-m", "vla_rl.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, **kwargs)


def rows(directory, name):
    """Rows of a JSONL file without its times."""
    return [without_times(json.loads(line)) for line in (directory / name).read_text().splitlines()]


def without_times(row):
    return {k: v for k, v in row.items() if not k.endswith("_s") and not k.endswith("_per_s")}


def weights(directory):
    return {name: w.numpy() for name, w in load_checkpoint(directory / "checkpoints" / "step_0002").weights.items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One tiny run of two steps that nothing disturbed."""
    directory = tmp_path_factory.mktemp("runs") / "undisturbed"
    done = vla_rl("train", *TINY_RUN, f"run.dir={directory}", "--json")
    assert done.returncode == 0, done.stderr
    return directory, json.loads(done.stdout)


def test_a_run_writes_the_files_of_the_contract(finished):
    directory, summary = finished
    for name in ("config.yaml", "manifest.json", "train.jsonl", "episodes.jsonl", "eval.jsonl", "heartbeat.json"):
        assert (directory / name).is_file(), name
    assert [row["step"] for row in rows(directory, "train.jsonl")] == [1, 2]
    assert [row["step"] for row in rows(directory, "eval.jsonl")] == [0, 2]
    scene = json.loads((directory / "manifest.json").read_text())["launches"][0]["scene"]
    assert scene["scene_hash"] and scene["max_replans"] == 5  # 150 ticks, 30 at a time
    for row in rows(directory, "eval.jsonl"):
        assert (row["protocol"], row["scene_hash"]) == (scene["protocol"], scene["scene_hash"])
    episodes = rows(directory, "episodes.jsonl")
    assert [e["phase"] for e in episodes].count("train") == 8 and [e["phase"] for e in episodes].count("eval") == 4
    assert summary["finished"] and summary["read"]["success"]["pairs"] == 2
    assert all(np.isfinite(v) for row in summary["steps"] for v in row.values() if isinstance(v, float))


def test_the_first_update_has_ratio_one_and_clips_nothing(finished):
    for row in rows(finished[0], "train.jsonl"):
        assert row["mean_ratio"] == pytest.approx(1, abs=1e-4)
        assert row["clip_fraction"] == 0
        assert row["rollout_gap"] <= 1e-5


def test_stored_log_probabilities_are_those_of_the_trainer(finished):
    policy = load_policy(checkpoint="bundled:tiny_start", device="cpu", serve_head="ar", task=TASK)
    stored = [row for _, episode in store.read_wave(store.wave_dir(finished[0], 1)) for row in episode]
    assert len(stored) > 8
    observations = [Observation(row.frames, row.state_deg) for row in stored]
    sampled_at = yaml.safe_load((finished[0] / "config.yaml").read_text())["geometry"]["temperature"]
    scores = score_rows(policy, observations, [row.bins for row in stored], sampled_at)
    for row, logp in zip(stored, scores.logp_RT.detach().numpy(), strict=True):
        assert np.abs(logp[: len(row.logp)] - row.logp).max() <= 1e-5
        assert np.array_equal(policy.grammar.packed_masks(row.bins), row.legal_packed)


TASK = "Pick up the toy boat and place it on the wooden disk."


def test_a_directory_that_is_in_use_is_refused_with_the_remedy(finished, capsys):
    assert main(["train", *TINY_RUN, f"run.dir={finished[0]}"]) == 2
    told = capsys.readouterr().err
    assert "not empty" in told and "run.resume=" in told and "Traceback" not in told


@pytest.mark.slow
def test_a_finished_run_can_be_resumed_and_changes_nothing(finished):
    directory, _ = finished
    before = {p.name: p.read_bytes() for p in directory.glob("*.jsonl")}
    assert vla_rl("train", f"run.resume={directory}").returncode == 0
    assert {p.name: p.read_bytes() for p in directory.glob("*.jsonl")} == before


def test_an_edit_of_the_stored_configuration_is_found_at_resume(finished, tmp_path, capsys):
    edited = tmp_path / "edited"
    shutil.copytree(finished[0], edited)
    config = edited / "config.yaml"
    config.write_text(config.read_text().replace("lr: 3.0e-05", "lr: 0.5"))
    assert main(["train", f"run.resume={edited}"]) == 5
    assert "config.yaml" in capsys.readouterr().err


@pytest.mark.slow  # the launch of such a run is checked in tests/prereg/test_encoded_drafts.py
def test_a_run_without_updates_is_an_evaluation_and_may_decode_as_the_reference_does(tmp_path):
    for mode in ("reference", "grammar_masked"):
        place = f"run.dir={tmp_path / mode}"
        changes = ("run.steps=0", f"sampler.mode={mode}", "eval.seeds=0-1", "sim.max_ticks=60", place)
        assert vla_rl("train", *TINY_RUN, *changes).returncode == 0
        played = rows(tmp_path / mode, "episodes.jsonl")
        assert [(row["phase"], row["step"], row["seed"]) for row in played] == [("eval", 0, 0), ("eval", 0, 1)]
    refused = vla_rl("train", *TINY_RUN, "sampler.mode=reference", f"run.dir={tmp_path / 'more'}")
    assert refused.returncode == 2 and "it cannot be trained on" in refused.stderr


@pytest.mark.slow
def test_a_refused_launch_leaves_no_directory(tmp_path):
    done = vla_rl("train", *TINY_RUN, "surface=patch_only", "optim.weight_decay=0.1", f"run.dir={tmp_path / 'out'}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_keeps_its_own_configuration(finished, capsys):
    assert main(["train", f"run.resume={finished[0]}", "optim.lr=1e-3"]) == 2
    assert "optim.lr" in capsys.readouterr().err


SMALLEST = (
    "experiment=quickstart geometry.seeds=1 geometry.draws=2 run.steps=1 eval.seeds=300 eval.slots=2 "
    "sampler.batch_rows=2 sim.max_ticks=30 pool.workers=1 run.device=cpu"
).split()


@pytest.mark.slow
def test_a_spent_budget_ends_the_command_with_3_and_a_larger_one_lets_it_go_on(tmp_path):
    directory = tmp_path / "run"
    done = vla_rl("train", *SMALLEST, "budget.env_ticks=1", f"run.dir={directory}")
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert "budget of environment ticks is spent" in done.stderr and "run.resume" in done.stderr
    assert "tripwire budget.env_ticks (30, line 1, streak 1; stops the run)" in done.stderr
    done = vla_rl("train", f"run.resume={directory}", "budget.env_ticks=null", "optim.microbatch_rows=2")
    assert done.returncode == 0, done.stderr
    assert [row["tripwires"] for row in rows(directory, "train.jsonl")] == [[]]


@pytest.mark.slow
def test_a_fired_wire_or_a_gate_ends_the_command_with_3_every_time(tmp_path):
    collapse = ["tripwires=r0", "tripwires.collapse_waves=1", "tripwires.collapse_std_cm=1000"]
    done = vla_rl("train", *SMALLEST, *collapse, f"run.dir={tmp_path / 'run'}")
    assert done.returncode == 3 and "the groups have no spread" in done.stderr, done.stderr
    done = vla_rl("train", f"run.resume={tmp_path / 'run'}")
    assert done.returncode == 3 and "the run is over" in done.stderr, done.stderr
    assert len(json.loads((tmp_path / "run" / "manifest.json").read_text())["launches"]) == 1
    gate = vla_rl("train", *SMALLEST, "gates.mixed_frac=1", f"run.dir={tmp_path / 'gate'}")
    assert gate.returncode == 3 and "the gate mixed_groups is not passed" in gate.stderr, gate.stderr


@pytest.mark.slow
def test_the_same_command_twice_gives_the_same_numbers_whatever_the_workers(finished, tmp_path):
    directory, _ = finished
    again = tmp_path / "again"
    assert vla_rl("train", *TINY_RUN, "pool.workers=2", f"run.dir={again}").returncode == 0
    for name in ("train.jsonl", "episodes.jsonl", "eval.jsonl"):
        assert rows(again, name) == rows(directory, name), name
    first, second = weights(directory), weights(again)
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_the_serial_pool_gives_the_same_run(finished, tmp_path):
    arguments = [a for a in TINY_RUN if not a.startswith("pool.")]
    assert vla_rl("train", *arguments, "pool=serial", f"run.dir={tmp_path / 'serial'}").returncode == 0
    assert rows(tmp_path / "serial", "episodes.jsonl") == rows(finished[0], "episodes.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["step 1: update", "step 2: episodes", "step 1/2"])
def test_a_killed_run_ends_in_the_weights_of_one_that_was_not(finished, tmp_path, moment):
    directory, _ = finished
    killed = tmp_path / "killed"
    kill_at(moment, ["train", *TINY_RUN, f"run.dir={killed}"])
    resumed = vla_rl("train", f"run.resume={killed}")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("train.jsonl", "episodes.jsonl", "eval.jsonl"):
        assert rows(killed, name) == rows(directory, name), name
    first, second = weights(directory), weights(killed)
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_a_killed_run_with_an_adapter_ends_in_the_same_one_and_goes_on_with_no_other_base(tmp_path, capsys):
    base = Path(shutil.copytree(bundled_base("tiny_start"), tmp_path / "base"))
    arguments = [*TINY_RUN, "surface=lora", "surface.rank=4", f"policy.checkpoint={base}"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert vla_rl("train", *arguments, f"run.dir={whole}").returncode == 0
    kill_at("step 2: episodes", ["train", *arguments, f"run.dir={killed}"])
    assert vla_rl("train", f"run.resume={killed}").returncode == 0
    for name in ("train.jsonl", "episodes.jsonl", "eval.jsonl"):
        assert rows(killed, name) == rows(whole, name), name
    first, second = weights(whole), weights(killed)
    assert sum(w.size for w in first.values()) == 4 * 6 * 3584  # 384 + 256 + 256 + 384 + 3 * 768 a layer and rank
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert main(["replay", str(whole), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["logp"]
    assert told["equal"] == told["tokens"] > 0
    shutil.rmtree(base)
    gone = vla_rl("train", f"run.resume={whole}")
    assert gone.returncode == 5 and str(base) in gone.stderr and "Traceback" not in gone.stderr
    shutil.copytree(bundled_base("tiny_full"), base)
    foreign = vla_rl("train", f"run.resume={whole}")
    assert foreign.returncode == 5 and "started from" in foreign.stderr


def kill_at(moment, arguments):
    """Start a command and SIGKILL it, workers included, when it first prints `moment`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vla_rl.cli.main", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if moment in line:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return
    raise AssertionError(f"the run ended before it printed {moment!r}")


@pytest.mark.slow
def test_the_wall_limit_stops_cleanly_and_says_how_to_go_on(tmp_path):
    directory = tmp_path / "short"
    started = time.monotonic()
    done = vla_rl("train", *TINY_RUN, f"run.dir={directory}", "run.max_wall_s=0.1", "eval.seeds=300")
    assert done.returncode == 0 and time.monotonic() - started < 400
    assert f"run.resume={directory}" in done.stderr
    assert Path(directory / "config.yaml").is_file()


def copied(finished, tmp_path):
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def test_a_finished_wave_replays_to_the_bits_that_were_stored(finished, capsys):
    assert main(["replay", str(finished[0]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 2 and told["policy"]["source"] == "checkpoint step_0001" and told["sound"]
    assert told["episodes"] == 4 and told["episodes_missing"] == []
    assert told["logp"]["tokens"] == told["masks"]["tokens"] > 0 and told["logp"]["max"] <= 1e-5


def test_a_wave_of_a_base_from_the_hub_replays_with_the_base_where_it_lies_now(finished, tmp_path, capsys):
    directory = copied(finished, tmp_path)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    base = config["policy"]["checkpoint"]
    config["policy"] |= {"checkpoint": "owner/name", "revision": "a" * 40}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["replay", str(directory), "--base", base, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["logp"]["max"] <= 1e-5


def test_a_changed_mask_and_other_weights_are_named_and_end_with_code_5(finished, tmp_path, capsys):
    directory = copied(finished, tmp_path)
    wave = store.wave_dir(directory, 1)
    (first, rows_), (second, others) = store.read_wave(wave)[:2]
    packed = rows_[0].legal_packed.copy()
    packed[0, 0] ^= 1
    store.write_episode(wave, 1, first, [dataclasses.replace(rows_[0], legal_packed=packed), *rows_[1:]])
    store.write_episode(wave, 1, second, [dataclasses.replace(row, policy_digest="another") for row in others])
    assert main(["replay", str(directory), "--step", "1", "--json"]) == 5
    told = json.loads(capsys.readouterr().out)
    (found,) = told["masks"]["mismatched"]
    assert (found["episode"], found["replan"], found["token"], found["bin"]) == (first.spec.episode_id, 0, 0, 7)
    assert told["refused"] == [second.spec.episode_id] and told["policy"]["source"] == "the base policy"
    assert told["logp"]["rows"] == told["masks"]["rows"] - 1 - len(others)


def test_without_the_checkpoint_before_a_wave_only_its_masks_are_judged(finished, tmp_path, capsys):
    directory = copied(finished, tmp_path)
    shutil.rmtree(directory / "checkpoints" / "step_0001")
    assert main(["replay", str(directory), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["logp"] is None and told["policy"]["digest"] is None and told["masks"]["rows"] > 0


def test_episodes_are_priced_again_from_the_records_or_from_a_wave_under_way(finished, tmp_path, capsys):
    directory = copied(finished, tmp_path)
    shutil.rmtree(directory / "checkpoints")
    assert main(["replay", str(directory), "--advantages", "reward=v2", "geometry.advantage_clip=0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == [1, 2] and told["departures"] == [] and told["used"]["episodes"] == 8
    assert set(told["repriced"]["terms"]) == {"earned", "shoved", "success", "tip", "strike"}
    recorded = (directory / "episodes.jsonl").read_text().splitlines(keepends=True)
    first = [line for line in recorded if json.loads(line)["step"] == 1]
    (directory / "episodes.jsonl").write_text("".join(first))  # as while step 2 is under way
    (directory / "waves" / "step_0002" / "seed200003_draw01.npz").unlink()
    assert main(["replay", str(directory), "--advantages", "--step", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == [2] and told["used"]["episodes"] == 2 and told["used"]["groups"] == 1
    last = json.loads(first[-1])
    edited = json.dumps({**last, "reward": last["reward"] + 1.0}) + "\n"
    (directory / "episodes.jsonl").write_text("".join([*first[:-1], edited]))
    assert main(["replay", str(directory), "--advantages"]) == 5
    for wrong in (["geometry.draws=3"], ["geometry.credit=to_go"], ["geometry.refill=1"], ["--base", "x"]):
        assert main(["replay", str(directory), "--advantages", *wrong]) == 2
    assert main(["replay", str(directory), "reward=v2"]) == 2 and main(["replay", str(directory), "--step", "9"]) == 2


def test_a_reward_without_terms_is_priced_and_a_run_without_its_base_digest_ends_with_code_5(
    finished, tmp_path, capsys, monkeypatch
):
    directory = copied(finished, tmp_path)
    (tmp_path / "rewards_of_a_plan.py").write_text(
        "class Sparse:\n"
        "    def __init__(self, bonus):\n"
        "        self.bonus = bonus\n"
        "    def terms(self, metrics):\n"
        '        return {"total": self.bonus * metrics["ticks"]}\n'
    )
    config = directory / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree |= {"plugins": ["rewards_of_a_plan"], "reward": {"_target_": "rewards_of_a_plan.Sparse", "bonus": 0.5}}
    config.write_text(yaml.safe_dump(tree))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["replay", str(directory), "--advantages", "--json"]) == 5  # it is not what the run was priced with
    assert set(json.loads(capsys.readouterr().out)["used"]["terms"]) == {"rest"}
    (directory / "base_policy.sha256").unlink()
    for step in ("1", "2"):
        assert main(["replay", str(directory), "--step", step, "--json"]) == 5
        assert "base_policy.sha256" in capsys.readouterr().err


def test_a_plan_without_a_probe_measures_and_lists_what_differs(capsys):
    given = ["geometry.draws=4", "geometry.refill=1", "optim.microbatch_rows=2", "pool.workers=1", "run.device=cpu"]
    assert main(["plan", "experiment=quickstart", *given, "--no-probe", "--success-rate", "0.5", "--json",
                 "--against", "experiment=quickstart pool.workers=1"]) == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert told["against"]["differences"] == {
        "geometry.draws": [4, 8], "geometry.refill": [1, 0], "optim.microbatch_rows": [2, 16],
        "run.device": ["cpu", "auto"],
    }  # fmt: skip
    assert told["times"] is None and told["cost"] is None and told["groups"]["mixed_share"] == 0.875
    memory = told["memory_bytes"]
    assert (
        memory["activations"] > 0
        and memory["copies"] > memory["gradients"]  # which tables have a few rows of
        and told["workers"]["bytes"][0] > 2**25
    )
    policy = load_policy(checkpoint="bundled:tiny_start", device="cpu", serve_head="ar", task=TASK)
    a_row = store.row_bytes(112, 2, policy.grammar.total, policy.vocabulary)
    assert told["disk_bytes"]["wave"] == 2 * told["groups"]["groups"] * 4 * 15 * a_row  # with every refill
    assert main(["plan", "--success-rate", "2"]) == 2 and main(["plan", "eval.seeds=200000-200001"]) == 2


@pytest.mark.slow
def test_a_probed_plan_has_times_and_a_price(capsys):
    assert main(["plan", *TINY_RUN, "--price", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    times = told["times"]
    assert told["probe"]["episodes"] == 2 and times["evaluations"] == 2
    assert times["run_s"] == pytest.approx(2 * times["step_s"] + 2 * times["eval_s"])
    assert told["cost"]["run_price"] == pytest.approx(2 * times["run_s"] / 3600)


@pytest.mark.slow
def test_a_run_must_agree_with_the_record_of_another_serving_path_and_plays_it_once(tmp_path, capsys, monkeypatch):
    small = ["sim.max_ticks=30", "pool=serial", "run.device=cpu", "run.threads=1", "eval.slots=2"]
    record = tmp_path / "record"
    assert main(["eval", "eval.seeds=300-301", *small, f"run.dir={record}", "--video", "none", "--json"]) == 0
    capsys.readouterr()
    gated = ["train", *small, "run.steps=0", f"gates.parity_record={record}", "gates.parity_successes=0"]
    assert main([*gated, "eval.seeds=300-301", f"run.dir={tmp_path / 'same'}", "--json"]) == 0
    gates = json.loads((tmp_path / "same" / "manifest.json").read_text())["launches"][0]["gates"]
    assert gates[-1]["gate"] == "parity"
    assert gates[-1]["measured"] == {"successes": 0, "interacted": 0.0, "identical": 2}
    rows = [json.loads(line) for line in (tmp_path / "same" / "episodes.jsonl").read_text().splitlines()]
    assert [row["seed"] for row in rows] == [300, 301]
    body = json.loads((record / "eval.json").read_text())
    (record / "eval.json").unlink()  # the gate is passed; its record may go
    assert main(["train", f"run.resume={tmp_path / 'same'}", "--json"]) == 0
    changes = {
        "protocol": "sim100", "scene_hash": "abc", "max_replans": 3, "success_test": "success_documented",
        "temperature": 0.5,
    }  # fmt: skip
    policy = {"frames": "black"}
    refused = [{"summary": body["summary"] | {key: value}} for key, value in changes.items()]
    refused += [{"policy": body["policy"] | policy}, {"policy": None}, {"episodes": body["episodes"][:1]}]
    refused += [{"episodes": [row | {"interacted": None} for row in body["episodes"]]}]
    for change in refused:
        (record / "eval.json").write_text(json.dumps(body | change))
        with monkeypatch.context() as unplayed:
            unplayed.setattr(GrpoTrainer, "run", lambda self: pytest.fail("it was played"))
            assert main([*gated, "eval.seeds=300-301", f"run.dir={tmp_path / 'unfit'}", "--json"]) == 2, change
        assert not (tmp_path / "unfit").exists()
    capsys.readouterr()
    body["episodes"][0]["success"], body["summary"]["successes"] = True, body["summary"]["successes"] + 1
    (record / "eval.json").write_text(json.dumps(body))
    assert main([*gated, "eval.seeds=300-301", f"run.dir={tmp_path / 'other'}", "--json"]) == 3
    assert main([*gated, "eval.seeds=300-302", f"run.dir={tmp_path / 'seeds'}", "--json"]) == 2


def test_an_evaluation_tells_the_heartbeat_how_far_it_is(tmp_path, monkeypatch):
    beats, real = [], RunDir.heartbeat

    def heartbeat(self, state, *, force=False):
        beats.append((state["phase"], state.get("done"), state.get("total")))
        real(self, state, force=force)

    monkeypatch.setattr(RunDir, "heartbeat", heartbeat)
    small = ["sim.max_ticks=30", "pool=serial", "run.device=cpu", "run.threads=1", "eval.slots=1", "run.steps=0"]
    assert main(["train", *small, "eval.seeds=300-301", f"run.dir={tmp_path / 'run'}", "--json"]) == 0
    assert [beat for beat in beats if beat[0] == "eval"] == [("eval", None, None), ("eval", 1, 2), ("eval", 2, 2)]
