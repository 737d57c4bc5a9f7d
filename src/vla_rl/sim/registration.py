"""Makes the task known to gymnasium as ``vla_rl/BenchyDisk-v0``, a chunk a step, and ``vla_rl/BenchyDiskTicks-v0``, a
tick a step.

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
    from vla_rl.sim.ticks import BoatToDiskTicks

ENV_ID, TICKS_ID = "vla_rl/BenchyDisk-v0", "vla_rl/BenchyDiskTicks-v0"
RENDER_PX = 224


def register() -> None:
    """Add both forms of the task to gymnasium's registry, once."""
    for env_id, maker in ((ENV_ID, "make"), (TICKS_ID, "make_ticks")):
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=f"vla_rl.sim.registration:{maker}")


def make(*, render_mode: str | None = "rgb_array", **settings: Any) -> BoatToDisk:
    """A `BoatToDisk`.

    Args:
        render_mode: ``"rgb_array"`` is the only one; None stands for it.
        settings: constructor arguments that differ from the schema's defaults.

    Raises:
        ConfigError: a setting that does not exist or does not fit.
    """
    from vla_rl.sim.env import BoatToDisk

    return BoatToDisk(**_completed(ENV_ID, render_mode, settings))


def make_ticks(
    *,
    render_mode: str | None = "rgb_array",
    task: str | None = None,
    render_px: int = RENDER_PX,
    seeds_for: str | None = None,
    **settings: Any,
) -> BoatToDiskTicks:
    """A `BoatToDiskTicks`.

    Args:
        render_mode, settings: as for `make`.
        task: the instruction; None for the protocols' own.
        render_px, seeds_for: see `BoatToDiskTicks`.

    Raises:
        ConfigError: a setting that does not exist or does not fit.
    """
    from vla_rl.sim.protocol import TASK
    from vla_rl.sim.ticks import BoatToDiskTicks

    settings = _completed(TICKS_ID, render_mode, settings)
    return BoatToDiskTicks(task=TASK if task is None else task, render_px=render_px, seeds_for=seeds_for, **settings)


def _completed(env_id: str, render_mode: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with the schema's defaults for those that are left out."""
    from vla_rl.config.schema import SimConfig
    from vla_rl.errors import ConfigError

    if render_mode not in (None, "rgb_array"):
        raise ConfigError(f"no render mode {render_mode!r}", where="gymnasium.make", remedy="rgb_array")
    defaults = dataclasses.asdict(SimConfig())
    del defaults["_target_"]
    if unknown := sorted(set(settings) - set(defaults)):
        raise ConfigError(
            f"{env_id} has no setting {unknown[0]!r}", where="gymnasium.make", remedy=f"one of: {', '.join(defaults)}"
        )
    return defaults | settings
