"""Choosing an OpenGL backend, and what a machine without one is told."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vla_rl.sim import gl

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


def test_the_users_choice_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    assert gl.choose_backend() == "osmesa"


def test_egl_comes_before_osmesa_before_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(gl, "_loads", lambda name: True)
    assert gl.choose_backend() == "egl"
    monkeypatch.setattr(gl, "_loads", lambda name: "OSMesa" in name)
    assert gl.choose_backend() == "osmesa"
    monkeypatch.setattr(gl, "_loads", lambda name: "EGL" in name)  # libegl1 alone is not enough
    assert gl.choose_backend() == "disable"


def test_without_a_library_physics_works_and_rendering_names_the_package() -> None:
    code = """
import os
from vla_rl.sim import gl
model = gl.mujoco.MjModel.from_xml_string("<mujoco/>")
gl.mujoco.mj_step(model, gl.mujoco.MjData(model))
assert "MUJOCO_GL" not in os.environ
try: gl.check_rendering()
except MachineError as error: print(error)
"""
    assert "apt-get install -y --no-install-recommends libosmesa6" in on_a_bare_machine(code, None)


@pytest.mark.parametrize(("backend", "package"), [("osmesa", "libosmesa6"), ("egl", "libegl1 libgl1")])
def test_a_chosen_backend_without_its_library_names_the_package(backend: str, package: str) -> None:
    code = "\ntry: import vla_rl.sim.gl\nexcept MachineError as error: print(error)\n"
    message = on_a_bare_machine(code, backend)
    assert f"MUJOCO_GL={backend}" in message and package in message


def test_a_user_who_switched_rendering_off_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    assert "unset MUJOCO_GL" in gl.rendering_error("disable").render()
