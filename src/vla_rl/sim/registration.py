"""Makes the task known to gymnasium as ``vla_rl/BenchyDisk-v0``.

In: keyword arguments of `BoatToDisk`, all optional. Out: an environment; what is not given has the default of the
configuration schema. After ``import vla_rl.sim``, ``gymnasium.make("vla_rl/BenchyDisk-v0")`` works; so does
``gymnasium.make("vla_rl.sim:vla_rl/BenchyDisk-v0")`` without an import of one's own. (gymnasium 1.0 and later look for
no plug-ins by themselves.)
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from vla_rl.sim.env import BoatToDisk

ENV_ID = "vla_rl/BenchyDisk-v0"


def register() -> None:
    """Add the task to gymnasium's registry, once."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(ENV_ID, entry_point="vla_rl.sim.registration:make")


def make(*, render_mode: str | None = "rgb_array", **settings: Any) -> BoatToDisk:
    """A `BoatToDisk`.

    Args:
        render_mode: ``"rgb_array"`` is the only one; None stands for it.
        settings: constructor arguments that differ from the schema's defaults.

    Raises:
        ConfigError: a setting that does not exist or does not fit.
    """
    from vla_rl.config.schema import SimConfig
    from vla_rl.errors import ConfigError
    from vla_rl.sim.env import BoatToDisk

    if render_mode not in (None, *BoatToDisk.metadata["render_modes"]):
        raise ConfigError(f"no render mode {render_mode!r}", where="gymnasium.make", remedy="rgb_array")
    defaults = dataclasses.asdict(SimConfig())
    del defaults["_target_"]
    if unknown := sorted(set(settings) - set(defaults)):
        raise ConfigError(
            f"{ENV_ID} has no setting {unknown[0]!r}", where="gymnasium.make", remedy=f"one of: {', '.join(defaults)}"
        )
    return BoatToDisk(**(defaults | settings))
