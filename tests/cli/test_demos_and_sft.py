"""`vla-rl demos` and `vla-rl sft` as a chain of commands that can be stopped and continued."""

import json
import subprocess
import sys

import pytest
from hf_support import write_model
from safetensors.numpy import load_file

from vla_rl.cli.main import main

TWIN = "twin.vision_width=32 twin.vision_layers=2 twin.vision_mlp=32 twin.text_width=64 twin.text_layers=1"
STEPS = "sft.steps=4 sft.batch_rows=4 sft.warmup_steps=1 sft.log_every=1 run.device=cpu run.threads=1".split()
SFT = [*STEPS, *TWIN.split()]


def vla_rl(*arguments):
    command = [sys.executable, "-m", "vla_rl.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=400)


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demos") / "small"
    seeds = ("demos.seeds=100000-100001", "demos.shard_episodes=1", "demos.workers=1", "sim.image_px=56")
    stopped = vla_rl("demos", *seeds, f"run.dir={directory}", "run.max_wall_s=0", "--json")
    assert stopped.returncode == 0 and not json.loads(stopped.stdout)["complete"]
    assert f"run.resume={directory}" in stopped.stderr
    done = vla_rl("demos", f"run.resume={directory}", "demos.workers=2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["complete"] and (directory / "meta/info.json").is_file()
    return directory


def test_recording_into_a_used_directory_is_refused(demos):
    again = vla_rl("demos", "demos.seeds=100000-100002", f"run.dir={demos}")
    assert again.returncode == 2 and f"run.resume={demos}" in again.stderr


def test_recycling_refuses_what_its_own_run_decides(tmp_path):
    for override, message in (("sim.image_px=224", "the simulator of their own run"), ("demos.seeds=1000", "nothing")):
        refused = vla_rl("demos", f"demos.from_run={tmp_path}", override)
        assert refused.returncode == 2 and message in refused.stderr, refused.stderr
    bare = vla_rl("demos", f"demos.from_run={tmp_path}")
    assert bare.returncode == 2 and "no training run here" in bare.stderr


@pytest.mark.slow
def test_a_stopped_training_goes_on_to_the_same_policy(demos, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert vla_rl("sft", f"sft.demos={demos}", *SFT, f"run.dir={whole}").returncode == 0
    stopped = vla_rl("sft", f"sft.demos={demos}", *SFT, f"run.dir={parts}", "run.max_wall_s=0")
    assert stopped.returncode == 0 and f"run.resume={parts}" in stopped.stderr, stopped.stderr
    assert vla_rl("sft", f"run.resume={parts}", "sft.lr=1").returncode == 2
    assert vla_rl("sft", f"run.resume={parts}").returncode == 0
    first, second = (load_file(d / "policy" / "model.safetensors") for d in (whole, parts))
    assert all((first[name] == second[name]).all() for name in first)
    scene = json.loads((whole / "policy" / "training_scene.json").read_text())
    assert scene["protocol"] == "sim100b" and len(scene["scene_hash"]) == 64


@pytest.mark.slow
def test_evaluations_between_steps_are_of_the_demonstrations_scene_and_on_open_seeds(demos, tmp_path, capfd):
    """In this process: each command would import torch anew."""
    own = [f"sft.demos={demos}", *SFT, "sft.ema=0.5", "sft.eval_every=2", "pool=serial", "sim.max_ticks=30"]

    def sft(*arguments):
        return main(["sft", *own, *map(str, arguments)]), capfd.readouterr()

    good = ("sim.image_px=56", "eval.seeds=300,301", f"run.dir={tmp_path / 'good'}")
    code, said = sft(*good, "--json")
    assert code == 0, said.err
    rows = [json.loads(line) for line in (tmp_path / "good" / "eval.jsonl").read_text().splitlines()]
    assert [(row["step"], row["trials"], row["training_scene_match"]) for row in rows] == [
        (0, 2, "same"), (2, 2, "same"), (4, 2, "same"),
    ]  # fmt: skip
    code, said = sft("run.resume=" + str(tmp_path / "good"))
    assert code == 2  # beside run.resume nothing else may be given
    assert main(["sft", f"run.resume={tmp_path / 'good'}"]) == 0
    assert "Learning curve" in capfd.readouterr().err
    assert len((tmp_path / "good" / "eval.jsonl").read_text().splitlines()) == 3
    for overrides, message in (
        (("sim.image_px=112", "eval.seeds=300"), "sim.image_px=56"),
        (("sim.image_px=56", "sim.protocol=sim100", "eval.seeds=300"), "would act in sim100"),
        (("sim.image_px=56", "eval.seeds=10000-10019"), "evaluation during training"),
        (("sim.image_px=56", "eval.seeds=300", "eval.traces=true"), "stores no traces"),
        (("sft.eval_every=0",), "nothing reads sim.max_ticks here"),
    ):
        code, said = sft(*overrides, f"run.dir={tmp_path / 'bad' / message[:9].replace(' ', '_')}")
        assert code == 2 and message in said.err, said.err


def test_training_starts_from_a_model_that_is_given_action_tokens_and_goes_on_from_its_policy(demos, tmp_path, capfd):
    """In this process: each command would import torch anew."""
    model, first, second = write_model(tmp_path / "SmolVLM", "smolvlm"), tmp_path / "first", tmp_path / "second"

    def sft(*arguments):
        return main(["sft", f"sft.demos={demos}", *STEPS, *map(str, arguments)]), capfd.readouterr().err

    assert sft(f"sft.base={model}", f"run.dir={first}")[0] == 0
    code, said = sft(f"sft.base={first / 'policy'}", f"run.dir={second}")
    assert code == 0 and "its own action tokens" in said
    before, after = (load_file(d / "policy" / "model.safetensors") for d in (first, second))
    assert before.keys() == after.keys() and any((before[name] != after[name]).any() for name in before)
    assert main(["checkpoint", "validate", str(second / "policy")]) == 0
    code, said = sft("sft.base=/nowhere", f"run.dir={tmp_path / 'x'}")
    assert code == 2 and "/nowhere" in said
    code, said = sft(f"sft.base={first / 'policy'}", "twin.text_width=64", f"run.dir={tmp_path / 'y'}")
    assert code == 2 and "nothing reads twin.text_width" in said


@pytest.fixture(scope="module")
def joint(demos, tmp_path_factory):
    """A fresh twin trained on both heads, with evaluations of its flow head."""
    directory = tmp_path_factory.mktemp("sft") / "joint"
    played = "sft.eval_every=4 sft.eval_head=flow eval.seeds=300 pool=serial sim.max_ticks=30 sim.image_px=56".split()
    heads = "sft.objective=joint sft.insulate=true sft.expert_width=32 sft.expert_lr=1e-3".split()
    assert main(["sft", f"sft.demos={demos}", *SFT, *heads, *played, f"run.dir={directory}"]) == 0
    return directory


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_heads_are_trained_evaluated_and_served(joint, capfd):
    rows, played = lines(joint / "sft.jsonl"), lines(joint / "eval.jsonl")
    assert all(row["loss"] == pytest.approx(row["flow_loss"] + row["token_loss"]) for row in rows) and len(rows) == 4
    assert [(row["step"], row["head"], row["tokens"], row["trials"]) for row in played] == [
        (0, "flow", 0, 1), (4, "flow", 0, 1),
    ]  # fmt: skip
    assert main(["checkpoint", "validate", str(joint / "policy")]) == 0
    state = {"trained_by": "joint", "insulated": True, "stale": False}
    assert json.loads((joint / "policy" / "checkpoint.json").read_text())["heads"] == {"ar": state, "flow": state}
    assert main(["sft", f"run.resume={joint}"]) == 0
    shown = capfd.readouterr().err
    assert "Learning curve, flow head" in shown
    assert f"{rows[-1]['token_loss']:.3f}" in shown and f"{rows[-1]['flow_loss']:.4f}" in shown
    assert len(lines(joint / "eval.jsonl")) == 2


def test_a_closed_cell_is_told_before_anything_is_made_and_its_remedy_leads_on(demos, joint, tmp_path, capfd):
    def sft(name, *arguments):
        base = ["sft", f"sft.demos={demos}", *STEPS, f"sft.base={joint / 'policy'}", f"run.dir={tmp_path / name}"]
        return main([*base, *arguments]), capfd.readouterr().err

    code, said = sft("ar")
    assert code == 2 and "sft.allow_stale_head=true" in said and not (tmp_path / "ar").exists()
    code, said = sft("ar", "sft.allow_stale_head=true")
    assert code == 0, said
    left = tmp_path / "ar" / "policy"
    evaluate = ["eval", f"policy.checkpoint={left}", "policy.serve_head=flow", "eval.seeds=300", "sim.max_ticks=30"]
    evaluate += ["pool=serial", "sim.image_px=56", "run.device=cpu", "--video", "none"]
    assert main([*evaluate, f"run.dir={tmp_path / 'told'}"]) == 2 and "stale" in capfd.readouterr().err
    assert main([*evaluate, f"run.dir={tmp_path / 'leg'}", "policy.allow_stale_head=true"]) == 0
    assert json.loads((tmp_path / "leg" / "eval.json").read_text())["policy"]["stale"] is True
    capfd.readouterr()
    code, said = sft("again", f"sft.base={left}", "sft.objective=flow", "sft.insulate=true", "run.max_wall_s=0")
    assert code == 0 and "stopped" in said
    assert main(["sft", f"run.resume={tmp_path / 'again'}"]) == 0
    before, after = (load_file(d / "model.safetensors") for d in (left, tmp_path / "again" / "policy"))
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert moved and all("action_expert" in name for name in moved)
    assert main(evaluate[:1] + [f"policy.checkpoint={tmp_path / 'again' / 'policy'}", *evaluate[2:],
                                f"run.dir={tmp_path / 'whole'}"]) == 0  # fmt: skip
    assert "stale" not in json.loads((tmp_path / "whole" / "eval.json").read_text())["policy"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["sft.objective=flow"], "fresh twin"),
        (["sft.ce_weight=0.5"], "sft.objective=joint"),
        (["sft.objective=joint", "sft.eval_head=flow", "sft.eval_every=2", "eval.temperature=0.7"], "temperature 0.7"),
        (["sft.objective=both"], "sft.objective"),
        (["sft.objective=joint", "sft.expert_width=40"], "heads 32 wide"),
    ],
)
def test_objectives_that_cannot_be_are_refused(demos, tmp_path, capfd, overrides, says):
    assert main(["sft", f"sft.demos={demos}", *SFT, *overrides, f"run.dir={tmp_path / 'run'}"]) == 2
    assert says in capfd.readouterr().err
