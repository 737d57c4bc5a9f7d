"""A user's mistake is one message with its remedy, exit code 2, and no traceback."""

import json
import os
import subprocess
import sys

import pytest

from vla_rl.cli.main import main


def vla_rl(*arguments, **environment):
    command = [sys.executable, "-m", "vla_rl.cli.main", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "geometry.seds=4"], "did you mean geometry.seeds?"),
        (["train", "reward=v9"], "options: progress, v1, v1_floored, v2"),
        (["train", "run.device=tpu"], "auto, cpu, cuda"),
        (["train", "eval.seeds=200000"], "may not be used for eval"),
        (["train", "geometry.train_seed_base=300"], "may not be used for train"),
        (["train", "eval.seeds=0-19", "eval.every=1"], "may not be used for evaluation during training"),
        (["train", "run.steps=3", "eval.at_steps=[4]"], "no update 4 in a run of 3"),
        (["train", "run.resume=/nowhere"], "/nowhere"),
        (["train", "geometry.draws=1"], "draws"),
        (["eval", "eval.frames=white"], "own, foreign, black"),
        (["eval", "eval.frames=foreign", "eval.seeds=300"], "two seeds"),
        (["eval", "policy=expert", "sampler.batch_rows=3"], "sampler.batch_rows"),
        (["eval", "policy=expert", "eval.frames=foreign"], "looks at no pictures"),
        (["eval", "eval.seeds=300-301", "--video", "302"], "302 is not evaluated"),
        (["eval", "--video", "first"], "'first' is no seed"),
        (["train", "eval.traces=true"], "eval.traces"),
        (["train", "optim.lr=nan"], "finite"),
        (["train", "loss.weighting=foo"], "token, episode"),
        (["eval", "eval.seeds=3-1"], "backwards"),
        (["demos", "demos.seeds=0-9"], "may not be used for demos"),
        (["compare", "/nowhere", "/nowhere"], "/nowhere"),
        (["sft"], "sft.demos"),
        (["sft", "sft.demos=/nowhere"], "/nowhere"),
        (["trian"], "invalid choice"),
        ([], "command"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(tmp_path, capfd, arguments, expected):
    """In this process: nothing here comes as far as setting threads."""
    fresh = arguments and arguments[0] in ("train", "eval", "demos") and "run.resume" not in arguments[-1]
    directory = [f"run.dir={tmp_path / 'out'}"] if fresh else []
    try:
        code = main([*arguments, *directory])
    except SystemExit as left:  # argparse
        code = left.code
    told = capfd.readouterr()
    assert code == 2, told.err
    assert expected in told.err and told.out == "" and not (tmp_path / "out").exists()


def test_a_mistake_of_a_whole_program_prints_no_traceback(tmp_path):
    done = vla_rl("train", "policy.checkpoint=/nowhere", f"run.dir={tmp_path / 'out'}")
    assert done.returncode == 2 and "policy.checkpoint" in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("eval", "policy=expert", "eval.seeds=300"), ("demos", "demos.seeds=100000")])
def test_a_directory_that_cannot_be_made_is_named_before_anything_is_computed(tmp_path, arguments):
    (tmp_path / "file").write_text("")
    done = vla_rl(*arguments, f"run.dir={tmp_path / 'file' / 'out'}")
    assert done.returncode == 2 and "cannot be created: Not a directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_evaluation_that_cannot_begin_leaves_no_directory(tmp_path):
    done = vla_rl("eval", "policy=expert", "eval.seeds=300", "sim.chunk_ticks=10", f"run.dir={tmp_path / 'out'}")
    assert done.returncode == 2 and not (tmp_path / "out").exists()


# Hides every GL library from ctypes in this process and its children, as on a bare machine.
BARE_MACHINE = """
import ctypes, ctypes.util
load, find = ctypes.CDLL.__init__, ctypes.util.find_library
def init(self, name, *args, **kwargs):
    if any(word in str(name) for word in ("EGL", "OSMesa", "GL.so", "OpenGL")):
        raise OSError(f"{name}: cannot open shared object file")
    load(self, name, *args, **kwargs)
ctypes.CDLL.__init__ = init
names = ("EGL", "OSMesa", "GL", "OpenGL", "GLESv2", "GLX")
ctypes.util.find_library = lambda name: None if name in names else find(name)
"""


@pytest.mark.parametrize("command", ["train", "eval", "demos"])
def test_a_missing_gl_library_names_the_package(command, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(BARE_MACHINE)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = vla_rl(command, f"run.dir={tmp_path / 'out'}", PYTHONPATH=path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "apt-get install -y --no-install-recommends libosmesa6" in done.stderr


def test_rendering_that_was_switched_off_is_switched_on_again_not_installed(tmp_path):
    done = vla_rl("eval", f"run.dir={tmp_path / 'out'}", MUJOCO_GL="disable")
    assert done.returncode == 2 and "unset MUJOCO_GL" in done.stderr and "apt-get" not in done.stderr


@pytest.mark.parametrize("command", ["train", "eval", "compare", "probe", "demos", "sft"])
def test_every_command_has_help_with_an_example(command):
    done = vla_rl(command, "--help")
    assert done.returncode == 0 and f"vla-rl {command} " in done.stdout.split("examples:")[1]


def test_every_key_can_be_listed():
    done = vla_rl("train", "--help-keys")
    assert done.returncode == 0 and "geometry.train_seed_base" in done.stdout


@pytest.mark.slow
def test_the_expert_succeeds_and_json_is_one_object(tmp_path):
    done = vla_rl("eval", "policy=expert", "eval.seeds=300-301", f"run.dir={tmp_path / 'expert'}", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["summary"]["success_strict"] == 2 and [e["seed"] for e in record["episodes"]] == [300, 301]
    assert json.loads((tmp_path / "expert" / "eval.json").read_text()) == record
