"""A moment of an episode that can be returned to: in the same environment or in another one of the same scene.

In: the physics of a running episode and its bookkeeping. Out: `EnvSnapshot`, small (about 10 kB), frozen and picklable.
What continues from it is bit-identical to what was interrupted: MuJoCo's *integration* state holds the solver's warm
start (the *full physics* state does not, and drifts). Positions of bodies, geoms and cameras are kept too, because
MuJoCo leaves them one physics step behind the state, and the scripted expert and the renderer read them. Contacts are
not: nothing reads them before the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_rl.sim.gl import MjData, MjModel, mujoco
from vla_rl.sim.metrics import TickSample
from vla_rl.sim.scene import INTEGRATION

DERIVED = (
    "xpos",
    "xquat",
    "xmat",
    "xipos",
    "ximat",
    "geom_xpos",
    "geom_xmat",
    "site_xpos",
    "site_xmat",
    "cam_xpos",
    "cam_xmat",
    "light_xpos",
    "light_xdir",
)


@dataclass(frozen=True)
class EnvSnapshot:
    """What `BoatToDisk.restore` needs.

    Attributes:
        scene_hash: of the scene that it belongs to.
        seed: environment seed of the episode.
        state: float64 [n], MuJoCo's integration state.
        derived: the arrays `DERIVED`, flattened.
        trace: the samples so far, index 0 after reset.
        strikes, strict_run, hopeless_run, terminated, truncated: the environment's counters and flags.
    """

    scene_hash: str
    seed: int
    state: np.ndarray
    derived: tuple[np.ndarray, ...]
    trace: tuple[TickSample, ...]
    strikes: int
    strict_run: int
    hopeless_run: int
    terminated: bool
    truncated: bool


def derived_arrays(data: MjData) -> tuple[np.ndarray, ...]:
    """Copies of the arrays `DERIVED`."""
    return tuple(np.array(getattr(data, name)) for name in DERIVED)


def load(model: MjModel, data: MjData, snapshot: EnvSnapshot) -> None:
    """Put `data` into the moment of the snapshot."""
    mujoco.mj_resetData(model, data)
    mujoco.mj_setState(model, data, snapshot.state, INTEGRATION)
    for name, values in zip(DERIVED, snapshot.derived, strict=True):
        getattr(data, name)[:] = values
