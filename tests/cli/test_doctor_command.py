"""`vla-rl doctor` in processes of its own: on this machine as it is, and on machines that are broken on purpose.

Packages are broken by modules of the same name earlier on the path, the package's files in a copy of the checkout.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import base_sums
import bundle_contents
import pytest

from vla_rl.cli.doctor import content, graphics, project
from vla_rl.cli.doctor.packages import EXTRAS, SPARED
from vla_rl.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PATIENT = ("--patience", "200")  # the suite may keep every core busy
NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"


def stubs(place, **modules):
    """A directory with modules that have the given text."""
    place.mkdir()
    for name, text in modules.items():
        (place / f"{name}.py").write_text(text)
    return place


def doctor(here, *arguments, path=(), sources=ROOT / "src", **variables):
    """Exit code and output of the command, run in the directory `here`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "VLA_RL_"))}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, (*path, sources))), **variables}
    command = [sys.executable, "-m", "vla_rl.cli.main", "doctor", *arguments]
    return subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=300)


def told(done):
    """Findings by check, in order."""
    found = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return found


def status(found, check):
    return [finding["status"] for finding in found[check]]


def test_a_machine_that_runs_the_tests_is_fine_and_nothing_is_left_behind(tmp_path):
    done = doctor(tmp_path, "--json", *PATIENT)
    body, found = json.loads(done.stdout), told(done)
    assert done.returncode == body["exit_code"] == 0, [f for f in body["findings"] if f["status"] == "failure"]
    assert body["failures"] == 0 and list(tmp_path.iterdir()) == []
    for check in ("python", "cores", "memory", "outputs", "disk", "packages", "imports", "mujoco", "rendering", "torch",
                  "gpu", "configuration", "robot", "mesh cache", "git"):  # fmt: skip
        assert set(status(found, check)) <= {"ok", "warning"}, check
    assert re.search(r"^(egl|osmesa|glfw) renders", found["rendering"][0]["what"])
    assert {finding["what"].split()[0] for finding in found["bases"]} == {"tiny_start", "tiny_full"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [finding["what"].split()[0] for finding in found["extras"]] == list(extras)
    model = next(finding["what"] for finding in found["licences"] if "robot model" in finding["what"])
    assert "Apache License, Version 2.0" in model and "so101_nexus" in model


def test_what_is_broken_is_named_with_a_remedy_and_the_rest_is_still_looked_at(tmp_path):
    broken = stubs(tmp_path / "stubs", torch="raise OSError('libcudart.so.13: cannot open shared object file')",
                   pyarrow="import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")  # fmt: skip
    here = tmp_path / "here"
    here.mkdir()
    (here / "outputs").symlink_to("/proc")  # not even root writes there
    done = doctor(
        here, "--json", *PATIENT, path=[broken], MUJOCO_GL="nonsense", PATH=str(tmp_path), VLA_RL_CACHE="/proc/cache"
    )
    found, body = told(done), json.loads(done.stdout)
    assert done.returncode == body["exit_code"] == 1
    assert "libcudart.so.13" in found["torch"][0]["what"] and str(broken) in found["torch"][0]["remedy"]
    assert "pyarrow" in (crash := found["imports"][0])["what"] and "signal 11" in crash["what"]
    assert len(found["imports"]) == 1, "the packages after the one that crashed can be imported"
    assert status(found, "mujoco") == ["ok"], "physics works without pictures"
    assert "MUJOCO_GL=nonsense" in found["rendering"][0]["what"] and "egl or osmesa" in found["rendering"][0]["remedy"]
    assert status(found, "outputs") == ["failure"] and str(here / "outputs") in found["outputs"][0]["what"]
    assert status(found, "mesh cache") == ["warning"] and "VLA_RL_CACHE" in found["mesh cache"][0]["remedy"]
    assert status(found, "git") == ["warning"] and "not installed" in found["git"][0]["what"]
    assert status(found, "packages") == ["ok"] and status(found, "bases") == ["ok", "ok"]
    assert body["failures"] == 4
    assert all(f["remedy"] and "\n" not in f["remedy"] for f in body["findings"] if f["status"] != "ok")


def test_a_hanging_library_is_left_behind_and_a_check_that_raises_is_one_finding(tmp_path):
    broken = stubs(
        tmp_path / "stubs", torch="import time; time.sleep(600)", packaging="raise RuntimeError('not today')"
    )
    done = doctor(tmp_path, "--json", "--patience", "2", path=[broken])
    found = told(done)
    assert done.returncode == 1
    assert status(found, "torch") == ["failure"] and "no answer within" in found["torch"][0]["what"]
    for check in ("python", "packages", "imports"):
        assert status(found, check) == ["failure"] and "RuntimeError: not today" in found[check][0]["what"]
    assert status(found, "extras") == ["warning"], "an extra is nothing that a run on a laptop needs"
    assert status(found, "bases") == ["ok", "ok"] and status(found, "configuration") == ["ok"]


FAKE_TORCH = """
import time
from types import SimpleNamespace as Namespace
__version__, version = "9.9", Namespace(cuda="99.0")
def ones(*shape, device): raise RuntimeError("CUDA error: no kernel image is available\\nmore")
cuda = Namespace(is_available=lambda: {available}, device_count=lambda: 1,
    get_device_name=lambda index: "Novel", mem_get_info=lambda index: (2**30, 80 * 2**30))
"""


def test_a_gpu_without_kernels_and_a_driver_that_hangs_are_told_apart_from_a_broken_torch(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    found = {}
    for name, answer in (("deaf", "time.sleep(600)"), ("novel", "True"), ("none", "False")):
        place = stubs(tmp_path / name, torch=FAKE_TORCH.replace("{available}", answer))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(place), str(ROOT / "src"))))
        torch, found[name] = graphics.gpu(2.0 if name == "deaf" else 60.0)
        assert (torch.status, torch.what) == ("ok", "torch 9.9, built for CUDA 99.0")
    assert found["deaf"].status == "failure" and "CUDA_VISIBLE_DEVICES=" in found["deaf"].remedy
    assert found["novel"].status == "failure" and found["novel"].what.endswith("no kernel image is available")
    assert "run.device=cpu" in found["novel"].remedy
    assert (found["none"].status, found["none"].what) == ("ok", "no GPU: runs use the CPU")


@pytest.fixture
def copy(tmp_path):
    """A checkout of its own, without a repository, that can be damaged."""
    root = tmp_path / "copy"
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "conf", root / "conf")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    return root


def test_a_damaged_installation_without_mujoco_and_torch_is_told_line_by_line(tmp_path, copy):
    weights = copy / "src/vla_rl/bases/tiny_start/model-00002-of-00002.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    shutil.rmtree(copy / "src/vla_rl/bases/tiny_full")
    needs = copy / "pyproject.toml"
    needs.write_text(needs.read_text().replace('"numpy>=2"', '"numpy>=99", "no-such-package-of-ours>=1"'))
    lock = copy / "constraints.txt"
    lock.write_text(re.sub(r"^rich==.*", "rich==1.0", lock.read_text(), flags=re.M))
    broken = stubs(tmp_path / "stubs", mujoco="raise ImportError('mujoco.so: wrong ELF class')", torch=NO_TORCH)
    done = doctor(copy, *PATIENT, path=[broken], sources=copy / "src")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    lines = done.stdout.splitlines()

    def line(*parts):
        return next(n for n, text in enumerate(lines) if all(part in text for part in parts))

    at = line("FAILURE", "mujoco", "wrong ELF class")
    assert lines[at + 1].strip().startswith(f"remedy: remove {broken}")
    assert "repair mujoco" in lines[line("FAILURE", "rendering") + 1]
    assert line("FAILURE", "torch", "No module named 'torch'")
    assert line("FAILURE", "tiny_start is damaged: model-00002-of-00002.safetensors")
    assert line("ok", "tiny_full is not part of this installation")
    assert line("FAILURE", "numpy", "needed is numpy>=99") and line(
        "FAILURE", "no-such-package-of-ours is not installed"
    )
    assert line("warning", "tested versions", "rich", "(tested: 1.0)")
    assert line("warning", "vla-rl Apache-2.0: its licence text is not here")
    assert line("warning", "git", "registrations need one")
    assert lines[-1].startswith("6 failures, ")


def test_the_digests_of_the_bases_are_those_of_the_files_in_the_format_of_sha256sum():
    assert content.SUMS.read_text() == base_sums.sums(), "python scripts/base_sums.py writes it anew"
    done = subprocess.run(["sha256sum", "--check", "--quiet", content.SUMS.name], cwd=content.SUMS.parent)
    assert done.returncode == 0


def test_what_an_offline_bundle_leaves_out_is_no_failure_and_every_extra_says_what_it_is_for():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=\[]", line)[0] for line in table["dependencies"]}
    assert set(bundle_contents.LEFT_OUT) & needed == set(SPARED)
    assert set(table["optional-dependencies"]) == set(EXTRAS)


def test_a_wheel_knows_its_needs_and_extras_from_its_metadata():
    try:
        known = project._installed()
    except metadata.PackageNotFoundError:
        pytest.skip("vla-rl is not installed here, only on the path")
    assert {"torch", "mujoco"} <= {one.name for one in known.needed} and ">=" in known.python
    assert "peft" in {one.name for one in known.extras["lora"]} - {one.name for one in known.needed}
    every = [one for extra in known.extras.values() for one in extra]
    assert not any("extra ==" in str(one) for one in (*known.needed, *every)), "pip would install nothing for these"


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_patience_that_is_no_time_is_a_mistake_of_usage(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", f"--patience={text}"])
    assert ended.value.code == 2 and "no number of seconds" in capsys.readouterr().err


def test_it_starts_without_any_package_but_the_standard_library():
    code = "import sys, vla_rl.cli.doctor; print({m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": str(ROOT / "src")})  # fmt: skip
    assert done.stdout.strip() in ("{'vla_rl'}", "{'vla_rl', '__main__'}", "{'__main__', 'vla_rl'}")
