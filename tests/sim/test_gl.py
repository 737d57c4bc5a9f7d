"""Choosing an OpenGL backend, and what a machine without one is told."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vla_rl.errors import MachineError
from vla_rl.sim import backend, canary, gl

# Hides every GL library from ctypes, as on a bare machine.
HIDE_GL = """
import ctypes, ctypes.util
real_load, real_find = ctypes.CDLL.__init__, ctypes.util.find_library
hidden = lambda name: any(word in str(name) for word in ("EGL", "OSMesa", "GL.so", "OpenGL"))
def load(self, name, *args, **kwargs):
    if hidden(name): raise OSError(f"{name}: cannot open shared object file")
    return real_load(self, name, *args, **kwargs)
ctypes.CDLL.__init__ = load
names = ("EGL", "OSMesa", "GL", "OpenGL", "GLESv2", "GLX")
ctypes.util.find_library = lambda name: None if name in names else real_find(name)
from vla_rl.errors import MachineError
"""


def on_a_bare_machine(code: str, backend: str | None) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    env |= {"MUJOCO_GL": backend} if backend else {}
    done = subprocess.run([sys.executable, "-c", HIDE_GL + code], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_this_machine_renders() -> None:
    assert gl.check_rendering() in ("egl", "osmesa", "glfw")


def test_who_renders_first_can_train_afterwards() -> None:
    """Mesa and triton each bring an LLVM, and triton's coming second used to end the process."""
    code = "import sys; from vla_rl.sim import gl; gl.check_rendering()"
    code += "; assert 'torch' not in sys.modules; import torch._dynamo"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton here")
@pytest.mark.parametrize("choice", ["osmesa", "egl"])
def test_the_compiler_is_there_before_the_first_gl_library(choice: str) -> None:
    """OSMesa brings its LLVM when MuJoCo is imported, long before a picture is taken."""
    code = """
import ctypes, sys
loaded, load = [], ctypes.CDLL.__init__
def noted(self, name, *args, **kwargs):
    loaded.append(str(name))
    return load(self, name, *args, **kwargs)
ctypes.CDLL.__init__ = noted
from vla_rl.errors import MachineError
try: from vla_rl.sim import gl
except MachineError: pass  # this machine has no such backend
first = next((i for i, name in enumerate(loaded) if "OSMesa" in name or "EGL" in name), len(loaded))
assert any("libtriton" in name for name in loaded[:first]), loaded
assert "torch" not in sys.modules and "triton" not in sys.modules
"""
    env = os.environ | {"MUJOCO_GL": choice}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr


def test_the_users_choice_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    assert backend.choose_backend() == "osmesa"


def test_egl_comes_before_osmesa_before_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(backend, "_loads", lambda name: True)
    assert backend.choose_backend() == "egl"
    monkeypatch.setattr(backend, "_loads", lambda name: "OSMesa" in name)
    assert backend.choose_backend() == "osmesa"
    monkeypatch.setattr(backend, "_loads", lambda name: "EGL" in name)  # libegl1 alone is not enough
    assert backend.choose_backend() == "disable"


def test_without_a_library_physics_works_and_rendering_names_the_package() -> None:
    code = """
import os
from vla_rl.errors import MachineError
from vla_rl.sim import backend, canary, gl
model = gl.mujoco.MjModel.from_xml_string("<mujoco/>")
gl.mujoco.mj_step(model, gl.mujoco.MjData(model))
assert "MUJOCO_GL" not in os.environ
try: gl.check_rendering()
except MachineError as error: print(error)
"""
    assert "apt-get install -y --no-install-recommends libosmesa6" in on_a_bare_machine(code, None)


@pytest.mark.parametrize(("chosen", "package"), [("osmesa", "libosmesa6"), ("egl", "libegl1 libgl1")])
def test_a_chosen_backend_without_its_library_names_the_package(chosen: str, package: str) -> None:
    code = "\ntry: import vla_rl.sim.gl\nexcept MachineError as error: print(error)\n"
    message = on_a_bare_machine(code, chosen)
    assert f"MUJOCO_GL={chosen}" in message and package in message


def test_a_misspelt_backend_is_said_to_be_none_and_no_package_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "garbage")
    with pytest.raises(MachineError, match="MUJOCO_GL=garbage is no rendering backend") as caught:
        canary.require_rendering()
    assert "apt-get" not in str(caught.value) and caught.value.remedy == "unset MUJOCO_GL, or set it to egl or osmesa"
    assert "window" in backend.rendering_error("glfw").what


class Machine:
    """Replaces the interpreter of the canary by a script that behaves by backend, and sees what it was started with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, **cases: str) -> None:
        monkeypatch.setenv("MUJOCO_GL", "")  # so that what is set from here on is taken back
        monkeypatch.delenv("MUJOCO_GL")
        monkeypatch.setattr(backend, "_loads", lambda name: True)
        script, arms = folder / "python", "".join(f"  {name}) {what} ;;\n" for name, what in cases.items())
        script.write_text(f"#!/bin/sh\nenv > {folder}/$MUJOCO_GL.env\ncase $MUJOCO_GL in\n{arms}esac\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))


RENDERS = """echo '{"backend": "any"}'"""
BROKEN = """echo '{"what": "egl is broken", "where": "rendering", "remedy": "repair it"}'; exit 2"""


def test_the_preferred_backend_that_renders_is_taken_and_handed_on(monkeypatch, tmp_path) -> None:
    Machine(monkeypatch, tmp_path, egl=RENDERS, osmesa=RENDERS)
    assert canary.require_rendering() == "egl" and os.environ["MUJOCO_GL"] == "egl"
    started_with = (tmp_path / "egl.env").read_text()
    assert "OMP_NUM_THREADS=1" in started_with and not (tmp_path / "osmesa.env").exists()


@pytest.mark.parametrize("egl", [BROKEN, "sleep 60", "kill -SEGV $$"], ids=["broken", "hangs", "crashes"])
def test_a_backend_that_fails_hangs_or_crashes_is_passed_over_for_one_that_renders(
    monkeypatch, tmp_path, caplog, egl: str
) -> None:
    Machine(monkeypatch, tmp_path, egl=egl, osmesa=RENDERS)
    assert canary.require_rendering(timeout_s=0.5) == "osmesa" and os.environ["MUJOCO_GL"] == "osmesa"
    assert "rendering with osmesa, because" in caplog.text and "egl" in caplog.text


def test_when_nothing_renders_the_error_is_about_the_preferred_backend(monkeypatch, tmp_path) -> None:
    Machine(monkeypatch, tmp_path, egl="sleep 60", osmesa="exit 1")
    with pytest.raises(MachineError, match="MUJOCO_GL=egl does not work .*no answer within 0 s") as caught:
        canary.require_rendering(timeout_s=0.3)
    assert "libegl1 libgl1" in caught.value.remedy and "MUJOCO_GL" not in os.environ


def test_a_users_backend_is_the_only_one_tried(monkeypatch, tmp_path) -> None:
    Machine(monkeypatch, tmp_path, egl=RENDERS, osmesa=BROKEN)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(MachineError, match="egl is broken"):
        canary.require_rendering()
    assert not (tmp_path / "egl.env").exists()


def test_a_user_who_switched_rendering_off_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    assert "unset MUJOCO_GL" in backend.rendering_error("disable").render()
