"""The one place that imports MuJoCo, because the OpenGL backend must be chosen before that import.

In: the environment variable ``MUJOCO_GL`` (honoured when set) and the GL libraries of this machine. Out: the module
`mujoco`, and `check_rendering`, a canary picture. Without any GL library the physics still works; rendering raises a
`MachineError` that names the missing package (`backend`).
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import importlib.util
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.sim.backend import DISABLE, VARIABLE, choose_backend, rendering_error, users_choice


def _load_compiler() -> None:
    """Load triton's library, if there is one, before a driver.

    Mesa's software rasteriser and triton each bring an LLVM, and triton crashes the process if its own comes second;
    torch's optimisers load it. Its Python package and torch stay unloaded.
    """
    found = importlib.util.find_spec("triton")
    for place in (found and found.submodule_search_locations) or ():
        with suppress(OSError):  # not there, or not for this processor: then nothing of it will come second
            ctypes.CDLL(str(Path(place, "_C", "libtriton.so")))


def _import_mujoco() -> Any:
    """Import MuJoCo under the chosen backend.

    Raises:
        MachineError: the backend's library is missing or broken.
    """
    backend = choose_backend()
    had = users_choice()
    os.environ[VARIABLE] = backend
    if backend != DISABLE:
        _load_compiler()  # the import itself loads OSMesa, and with it its LLVM
    try:
        return importlib.import_module("mujoco")
    except (ImportError, AttributeError, RuntimeError) as error:
        raise rendering_error(backend, error) from None
    finally:
        # A "disable" of our own must not outlive this import: a child process would take it for the user's wish.
        if had is None and backend == DISABLE:
            del os.environ[VARIABLE]


# MuJoCo's compiled module has no type information; these names say what is meant where a signature needs one.
mujoco: Any = _import_mujoco()
type MjModel = Any
type MjData = Any
type MjSpec = Any
type Renderer = Any


def new_renderer(model: MjModel, width_px: int, height_px: int) -> Renderer:
    """An off-screen renderer for `model`.

    Raises:
        MachineError: no OpenGL context can be made on this machine.
    """
    backend = choose_backend()
    make = getattr(mujoco, "Renderer", None)
    if make is None or backend == DISABLE:
        raise rendering_error(backend)
    try:
        renderer = make(model, height=height_px, width=width_px)
    except Exception as error:  # PyOpenGL, EGL and OSMesa each raise classes of their own
        raise rendering_error(backend, error) from None
    _open_renderers.add(renderer)
    _close_at_exit()
    return renderer


def switch_effects_off(scene: Any) -> None:
    """No shadow map, reflection or sky in a renderer's scene: cheap, and the same on every driver."""
    for flag in (
        mujoco.mjtRndFlag.mjRND_SHADOW,
        mujoco.mjtRndFlag.mjRND_REFLECTION,
        mujoco.mjtRndFlag.mjRND_SKYBOX,
    ):
        scene.flags[flag] = 0


_open_renderers: weakref.WeakSet[Any] = weakref.WeakSet()


@functools.cache
def _close_at_exit() -> None:
    """Free the contexts before MuJoCo's own exit handler ends the display, or each prints a traceback.

    Handlers run last in, first out, and MuJoCo adds its own with the first context: so register after that.
    """
    atexit.register(lambda: [renderer.close() for renderer in list(_open_renderers)])


@functools.cache
def check_rendering() -> str:
    """Render one small picture and check that it is not blank. Returns the backend in use.

    Raises:
        MachineError: no context, or the picture does not show what it must (a broken driver).
    """
    backend = choose_backend()
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><light pos='0 0 3'/><camera name='c' pos='0 0 2'/>"
        "<geom size='.4' rgba='1 0 0 1'/></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = new_renderer(model, 32, 32)
    try:
        renderer.update_scene(data, "c")
        picture_HW3 = renderer.render()
        centre, corner = np.asarray(picture_HW3[16, 16], int), np.asarray(picture_HW3[0, 0], int)
    finally:
        renderer.close()
    if not (centre[0] > 60 and centre[0] > 2 * centre[1] and corner[0] < centre[0]):
        raise rendering_error(backend, RuntimeError(f"the canary picture shows {centre.tolist()}, not a red ball"))
    return backend
