"""Checkpoints and run directories: complete or absent, verified, exclusive."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from vla_rl.errors import ConfigError, IntegrityError, UsageError
from vla_rl.rl import checkpoint as ckpt
from vla_rl.rl.rundir import EPISODES, EVAL, MANIFEST, TRAIN, RunDir, stored_config

CONFIG = {"run": {"seed": 0, "max_wall_s": None}, "optim": {"lr": 1e-5}, "plugins": []}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def parts(model, lr=1e-2):
    parameters = sorted(model.named_parameters())
    return parameters, torch.optim.AdamW([p for _, p in parameters], lr=lr, betas=(0.9, 0.95))


def learn(model, optimizer, steps, start=0):
    for step in range(start, start + steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_six_steps_equal_three_saved_restored_and_three_more_bit_for_bit(tmp_path):
    whole = network()
    learn(whole, parts(whole)[1], 6)
    first = network()
    parameters, optimizer = parts(first)
    learn(first, optimizer, 3)
    ckpt.save_checkpoint(tmp_path, 3, parameters, optimizer, {"counters": {"a": 1}})
    second = network(seed=9)
    parameters, optimizer = parts(second)
    loaded = ckpt.load_checkpoint(ckpt.checkpoints(tmp_path)[-1])
    ckpt.restore(loaded, parameters, optimizer)
    assert loaded.step == 3 and loaded.state == {"counters": {"a": 1}}
    learn(second, optimizer, 3, start=3)
    assert same(weights(whole), weights(second))


def test_the_learning_rate_after_a_restore_is_the_configured_one(tmp_path):
    model = network()
    parameters, optimizer = parts(model, lr=1e-2)
    learn(model, optimizer, 1)
    path = ckpt.save_checkpoint(tmp_path, 1, parameters, optimizer, {})
    parameters, optimizer = parts(model, lr=3e-7)
    ckpt.restore(ckpt.load_checkpoint(path), parameters, optimizer)
    assert optimizer.param_groups[0]["lr"] == 3e-7


def test_the_step_after_a_restore_is_that_of_the_configured_learning_rate_and_betas(tmp_path):
    """By hand: the moments are those that were saved, everything else is the new optimiser's own."""
    model = network()
    parameters, optimizer = parts(model, lr=1e-2)
    learn(model, optimizer, 1)
    path = ckpt.save_checkpoint(tmp_path, 1, parameters, optimizer, {})
    new = {"lr": 3e-4, "betas": (0.5, 0.25), "eps": 1e-3, "weight_decay": 0.5}
    optimizer = torch.optim.AdamW([p for _, p in parameters], **new)
    ckpt.restore(ckpt.load_checkpoint(path), parameters, optimizer)
    assert {name: optimizer.param_groups[0][name] for name in new} == new
    learn(model, optimizer, 1, start=1)
    loaded = ckpt.load_checkpoint(path)
    for name, parameter in parameters:
        mean = 0.5 * loaded.moments[f"{name}.exp_avg"] + 0.5 * parameter.grad
        square = 0.25 * loaded.moments[f"{name}.exp_avg_sq"] + 0.75 * parameter.grad**2
        step = mean / (1 - 0.5**2) / ((square / (1 - 0.25**2)).sqrt() + 1e-3)
        expected = loaded.weights[name] * (1 - 3e-4 * 0.5) - 3e-4 * step
        assert torch.allclose(parameter, expected, rtol=1e-6, atol=1e-8), name


@pytest.mark.parametrize("name", ["surface.safetensors", "optimizer.safetensors", ckpt.STATE])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_any_damage_is_an_integrity_error(tmp_path, name, damage):
    model = network()
    parameters, optimizer = parts(model)
    learn(model, optimizer, 1)
    path = ckpt.save_checkpoint(tmp_path, 1, parameters, optimizer, {"counters": {"episodes": 64}})
    data = bytearray((path / name).read_bytes())
    if damage == "remove":
        (path / name).unlink()
    elif damage == "cut":
        (path / name).write_bytes(data[:-5])
    else:
        at = data.index(b"64") if name == ckpt.STATE else len(data) - 3
        data[at] ^= 1
        (path / name).write_bytes(data)
    with pytest.raises(IntegrityError):
        ckpt.load_checkpoint(path)


def test_a_large_checkpoint_lies_in_capped_shards_and_damage_to_any_is_an_integrity_error(tmp_path):
    """Weights of 32 MiB in pieces of 4 MiB: three shards below 16 MiB, the moments six."""
    parameters = [(f"part.{i}", nn.Parameter(torch.full((1024, 1024), float(i)))) for i in range(8)]
    optimizer = torch.optim.AdamW([p for _, p in parameters], lr=1e-2)
    for _, parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = {"average": {"part.0": torch.arange(3.0)}}
    path = ckpt.save_checkpoint(tmp_path, 1, parameters, optimizer, {}, extra=kept)
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    assert max(sizes.values()) < 16 * 2**20 and len([n for n in sizes if n.startswith("surface-")]) == 3
    loaded = ckpt.load_checkpoint(path)
    assert all(torch.equal(loaded.weights[name], p) for name, p in parameters)
    assert torch.equal(loaded.moments["part.7.exp_avg"], optimizer.state[parameters[7][1]]["exp_avg"])
    assert list(loaded.extra) == ["average"] and torch.equal(loaded.extra["average"]["part.0"], torch.arange(3.0))
    for name in ("optimizer-00004-of-00006.safetensors", "surface.safetensors.index.json"):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(IntegrityError, match=name):
            ckpt.load_checkpoint(path)
        (path / name).write_bytes(whole)


def test_a_checkpoint_of_another_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(ckpt, "FORMAT", 1)
        path = ckpt.save_checkpoint(tmp_path, 1, *parts(network()), {})
    with pytest.raises(IntegrityError, match="format 1, not 3"):
        ckpt.load_checkpoint(path)


def test_another_surface_is_refused_by_name(tmp_path):
    model = network()
    parameters, optimizer = parts(model)
    path = ckpt.save_checkpoint(tmp_path, 1, parameters, optimizer, {})
    with pytest.raises(IntegrityError, match="1.bias"):
        ckpt.restore(ckpt.load_checkpoint(path), parameters[:2], optimizer)


def test_a_crash_while_saving_leaves_the_older_checkpoint_and_is_cleaned_up(tmp_path):
    model = network()
    parameters, optimizer = parts(model)
    for step in (1, 2, 10):
        ckpt.save_checkpoint(tmp_path, step, parameters, optimizer, {})
    (tmp_path / ".step_0011.tmp").mkdir()
    (tmp_path / ".step_0011.tmp" / "surface.safetensors").write_bytes(b"half")
    assert [p.name for p in ckpt.checkpoints(tmp_path)] == ["step_0001", "step_0002", "step_0010"]
    ckpt.prune(tmp_path, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step_0002", "step_0010"]


def create(path):
    return RunDir.create(path, config=CONFIG, manifest={"device": "cpu"})


def test_a_non_empty_directory_is_refused_with_the_way_to_resume(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError) as caught:
        create(tmp_path / "run")
    assert f"run.resume={tmp_path / 'run'}" in caught.value.remedy
    assert os.listdir(tmp_path / "run") == ["notes.txt"]


def test_a_new_run_holds_its_configuration_and_manifest(tmp_path):
    run = create(tmp_path / "a" / "run")
    assert stored_config(run.path) == CONFIG
    assert json.loads((run.path / MANIFEST).read_text())["launches"][0]["device"] == "cpu"


def test_two_processes_that_start_at_once_one_wins(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from vla_rl.rl.rundir import RunDir\nfrom vla_rl.errors import UsageError\n"
        "time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
        "try:\n    run = RunDir.create(Path(sys.argv[1]), config={}, manifest={}); time.sleep(1); print('won')\n"
        "except UsageError: print('refused')\n"
    )
    start = str(time.time() + 2.0)
    racers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run"), start], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert sorted(r.communicate()[0].strip() for r in racers) == ["refused", "refused", "won"]


def test_a_run_in_progress_cannot_be_resumed_and_a_stopped_one_can_with_a_second_launch_entry(tmp_path):
    run = create(tmp_path / "run")
    with pytest.raises(UsageError, match="another process"):
        RunDir.resume(run.path, config=CONFIG, manifest={}, free=())
    run.close()
    first = json.loads((run.path / MANIFEST).read_text())["launches"]
    again = RunDir.resume(run.path, config=CONFIG, manifest={"device": "cuda"}, free=())
    launches = json.loads((again.path / MANIFEST).read_text())["launches"]
    assert launches[:1] == first and [launch["device"] for launch in launches] == ["cpu", "cuda"]


def test_a_changed_configuration_is_refused_by_key_and_value_unless_the_key_is_free(tmp_path):
    create(tmp_path / "run").close()
    changed = {**CONFIG, "optim": {"lr": 3e-5}}
    with pytest.raises(ConfigError, match=r"optim.lr: 1e-05 -> 3e-05"):
        RunDir.resume(tmp_path / "run", config=changed, manifest={}, free=("run.max_wall_s",))
    longer = {**CONFIG, "run": {"seed": 0, "max_wall_s": 9.0}}
    RunDir.resume(tmp_path / "run", config=longer, manifest={}, free=("run.max_wall_s",)).close()
    fewer = {"run": CONFIG["run"], "optim": CONFIG["optim"]}
    with pytest.raises(ConfigError, match="plugins"):
        RunDir.resume(tmp_path / "run", config=fewer, manifest={}, free=())


def test_resuming_what_is_no_run_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no run to resume"):
        RunDir.resume(tmp_path, config=CONFIG, manifest={}, free=())


def test_rewinding_drops_later_rows_cut_lines_and_unfinished_evaluations(tmp_path):
    run = create(tmp_path / "run")
    run.append(TRAIN, [{"step": s} for s in (1, 2, 3)])
    run.append(EVAL, [{"step": 0}])
    evals = [{"phase": "eval", "step": s} for s in (0, 2)]  # the evaluation after step 2 was cut short
    run.append(EPISODES, [evals[0], *({"phase": "train", "step": s} for s in (1, 2, 3)), evals[1]])
    with open(run.path / TRAIN, "ab") as file:
        file.write(b'{"step": 4')
    run.rewind(2)
    assert [r["step"] for r in run.rows(TRAIN)] == [1, 2]
    assert [(r["phase"], r["step"]) for r in run.rows(EPISODES)] == [("eval", 0), ("train", 1), ("train", 2)]
    assert [r["step"] for r in run.rows(EVAL)] == [0]


def test_another_base_policy_is_refused_on_resume(tmp_path):
    run = create(tmp_path / "run")
    run.check_base("a" * 64)
    run.check_base("a" * 64)
    with pytest.raises(IntegrityError, match="base policy"):
        run.check_base("b" * 64)


def test_the_scene_is_in_the_manifest_of_every_launch_and_another_one_is_refused(tmp_path):
    scene = {"protocol": "sim100b", "scene_hash": "a1", "max_replans": 30, "image_px": 112}
    first = create(tmp_path / "run")
    first.record_scene(scene)
    first.close()
    again = RunDir.resume(tmp_path / "run", config=CONFIG, manifest={}, free=())
    again.record_scene({**scene, "max_replans": 15})
    launches = json.loads((tmp_path / "run" / MANIFEST).read_text())["launches"]
    assert [launch["scene"]["max_replans"] for launch in launches] == [30, 15]
    with pytest.raises(IntegrityError, match="scene_hash a1 -> b2"):
        again.record_scene({**scene, "scene_hash": "b2"})


def test_the_heartbeat_is_whole_json_at_any_time_and_remembers(tmp_path):
    run = create(tmp_path / "run")
    assert run.last_heartbeat() == {}
    run.heartbeat({"step": 1, "device_s": 2.0})
    run.heartbeat({"step": 2, "device_s": 3.0})  # within a second: not written
    assert run.last_heartbeat()["step"] == 1
    run.heartbeat({"step": 3, "device_s": 4.0}, force=True)
    assert run.last_heartbeat()["step"] == 3


class Killed(BaseException):
    """Stands for SIGKILL inside this process: nothing catches it."""


@pytest.mark.parametrize("function", ["fsync", "replace", "link"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_killed_anywhere_while_it_is_created_a_run_can_be_started_or_gone_on_with(
    tmp_path, monkeypatch, function, count
):
    real, left = getattr(os, function), [count]

    def call(*arguments):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return real(*arguments)

    with monkeypatch.context() as killing:
        killing.setattr(os, function, call)
        killing.setattr(os, "unlink", lambda *_, **__: None)  # what a dead process would not have cleaned up
        with contextlib.suppress(Killed):
            RunDir.create(tmp_path / "run", config=CONFIG, manifest={}).close()
    if (tmp_path / "run" / "config.yaml").exists():
        run = RunDir.resume(tmp_path / "run", config=CONFIG, manifest={}, free=())
    else:
        run = RunDir.create(tmp_path / "run", config=CONFIG, manifest={})
    run.record_gate({"gate": "any", "passed": True})
    assert run.passed_gates() == ["any"]
    run.close()
