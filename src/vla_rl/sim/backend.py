"""Which OpenGL backend MuJoCo should use, and what a machine without one is told.

In: the environment variable ``MUJOCO_GL`` and the GL libraries of this machine. Out: backend names, and errors that
name the missing package. MuJoCo is not imported, so a parent process can ask. Windowed rendering (GLFW) is used only
when the user asks for it.
"""

from __future__ import annotations

import ctypes
import os

from vla_rl.errors import MachineError

VARIABLE = "MUJOCO_GL"
DISABLE = "disable"
APT_OSMESA = "apt-get install -y --no-install-recommends libosmesa6"
APT_EGL = "apt-get install -y --no-install-recommends libegl1 libgl1"
# In order of preference: EGL is what a GPU renders through; without one both are the same software rasteriser.
_LIBRARIES = {
    "egl": (("libEGL.so.1",), ("libGL.so.1", "libOpenGL.so.0")),
    "osmesa": (("libOSMesa.so.8", "libOSMesa.so.6"),),
}
# Other values that MuJoCo takes: off, and windowed.
_OFF = (DISABLE, "disabled", "off", "false", "0")
_WINDOWED = ("glfw", "enable", "enabled", "on", "true", "1")


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def users_choice() -> str | None:
    """The backend that ``MUJOCO_GL`` names, or None."""
    return os.environ.get(VARIABLE, "").strip().lower() or None


def candidates() -> list[str]:
    """Backends to try, best first: the user's own alone, else those whose libraries are there, else ``disable``."""
    if chosen := users_choice():
        return [chosen]
    return [backend for backend, needed in _LIBRARIES.items() if all(any(map(_loads, names)) for names in needed)] or [
        DISABLE
    ]


def choose_backend() -> str:
    """The value for ``MUJOCO_GL``: the first of the `candidates`."""
    return candidates()[0]


def rendering_error(backend: str, cause: BaseException | str | None = None) -> MachineError:
    """The `MachineError` for a machine that cannot render, with the package or setting that makes it work.

    Args:
        backend: what ``MUJOCO_GL`` was or would have been.
        cause: the original exception or its description, quoted in the message.
    """
    told = f"{type(cause).__name__}: {cause}" if isinstance(cause, BaseException) else cause
    reason = f" ({told})" if told else ""
    if backend in _OFF:
        if users_choice() == backend:
            what, remedy = f"{VARIABLE}={backend} switches rendering off", f"unset {VARIABLE}"
        else:
            what, remedy = "no OpenGL library was found for rendering", f"run: {APT_OSMESA}  (or: {APT_EGL})"
    elif backend in _WINDOWED:
        what = f"{VARIABLE}={backend} renders into a window, which does not work on this machine"
        remedy = f"unset {VARIABLE}, or set it to egl or osmesa"
    elif backend in _LIBRARIES:
        what = f"rendering with {VARIABLE}={backend} does not work on this machine"
        other = f", or set {VARIABLE}=osmesa" if backend == "egl" else f", or set {VARIABLE}=egl"
        remedy = f"run: {APT_EGL if backend == 'egl' else APT_OSMESA}{other}"
    else:
        what = f"{VARIABLE}={backend} is no rendering backend"
        remedy = f"unset {VARIABLE}, or set it to egl or osmesa"
    return MachineError(what + reason, where="rendering", remedy=remedy)
