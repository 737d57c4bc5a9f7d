"""The boat-to-disk world of vla_rl as ``--env.type=vla_rl`` of LeRobot.

In: LeRobot's command line. Out: an `EnvConfig` in its registry, which makes vectors of `vla_rl.sim.ticks`. LeRobot
imports this package by the name of its distribution (`register_third_party_plugins`), or because
``--env.discover_packages_path=lerobot_env_vla_rl`` says so. Nothing of vla_rl's policies is imported.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs import EnvConfig
from lerobot.envs.utils import freeze_after_episode_end

from vla_rl.config.compose import compose
from vla_rl.errors import ConfigError
from vla_rl.sim import TICKS_ID
from vla_rl.sim.protocol import TASK
from vla_rl.sim.registration import make_ticks

FPS = 30  # nominal; `vla_rl.sim.protocol` says what a tick lasts
CAMERAS = ("top", "wrist")
__all__ = ["VlaRlEnvConfig"]


@EnvConfig.register_subclass("vla_rl")
@dataclass
class VlaRlEnvConfig(EnvConfig):
    """The world, chosen as in `vla-rl eval`.

    Attributes:
        task: the instruction that policies are given.
        fps: nominal control rate; there is no other.
        protocol: `sim.protocol`. Its horizon says nothing here: the policy's `n_action_steps` decides.
        look: an option of `sim/look`.
        image_px: height and width of both pictures.
        episode_length: the episode is truncated after this many ticks.
        terminate_on: `sim.terminate_on`; success is the strict test in any case.
        render_px: size of films.
        overrides: further overrides of `sim`, e.g. ``["sim.look.blur_px=1.5"]``.
        seeds_for: the use that seeds must be open to (`vla_rl.seeds`); an empty text takes every seed.
    """

    task: str | None = TASK
    fps: int = FPS
    protocol: str = "sim100b"
    look: str = "plain"
    image_px: int = 112
    episode_length: int = 900
    terminate_on: str = "success_strict"
    render_px: int = 224
    overrides: list[str] = field(default_factory=list)
    seeds_for: str = "eval"
    features: dict[str, PolicyFeature] = field(default_factory=dict)
    features_map: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fps != FPS:
            raise ConfigError(f"this world has no {self.fps} Hz", where="--env.fps", remedy=f"{FPS}, or leave it away")
        self.features |= {
            "action": PolicyFeature(FeatureType.ACTION, (6,)),
            "agent_pos": PolicyFeature(FeatureType.STATE, (6,)),
        }
        picture = PolicyFeature(FeatureType.VISUAL, (self.image_px, self.image_px, 3))
        self.features |= {f"observation.images.{camera}": picture for camera in CAMERAS}
        self.features_map |= {name: name for name in self.features} | {"agent_pos": "observation.state"}

    @property
    def gym_id(self) -> str:
        return TICKS_ID

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment, as vla_rl's own configuration composes and checks them."""
        chosen = {
            "sim/look": self.look,
            "sim.protocol": self.protocol,
            "sim.image_px": self.image_px,
            "sim.max_ticks": self.episode_length,
            "sim.terminate_on": self.terminate_on,
        }
        settings = compose("demos", [*(f"{key}={value}" for key, value in chosen.items()), *self.overrides]).tree["sim"]
        settings = {key: value for key, value in settings.items() if key != "_target_"}
        return settings | {"task": self.task, "render_px": self.render_px, "seeds_for": self.seeds_for or None}

    def create_envs(
        self, n_envs: int, use_async_envs: bool = False
    ) -> dict[str, dict[int, gymnasium.vector.VectorEnv]]:
        """LeRobot's own vector, but an environment whose episode has ended waits for the others.

        LeRobot would play on from a seed of nobody's choice until the last one has ended, and throw that away.
        """
        one = freeze_after_episode_end(functools.partial(make_ticks, **self.gym_kwargs))
        mode: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        if use_async_envs and n_envs > 1:
            vector = gymnasium.vector.AsyncVectorEnv([one] * n_envs, context="forkserver", **mode)
        else:
            vector = gymnasium.vector.SyncVectorEnv([one] * n_envs, **mode)
        return {self.type: {0: vector}}
