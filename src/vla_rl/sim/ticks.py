"""The boat-to-disk task one tick at a time, with the names that LeRobot's evaluation expects of an environment.

In: one absolute joint target a step, in degrees (LeRobot v3 frame). Out: ``pixels`` (``top``, ``wrist``) and
``agent_pos`` after every tick, and `info` with both success tests. It is `BoatToDisk` with another grain: the same
seeds, physics, pictures and metrics. How many ticks of a chunk are executed is then the policy's own affair, so a
protocol's horizon says nothing here. Nothing of LeRobot is imported; `plugins/lerobot_env_vla_rl` makes this known to
it. Left out: chunks, and prices beyond 1 for the tick that completes the strict test.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from vla_rl.seeds import check_use
from vla_rl.sim import metrics as M
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.frames import CAMERAS


class BoatToDiskTicks(gym.Env[Any, np.ndarray]):
    """Pick up the toy boat and place it on the wooden disk, a tick a step.

    Args:
        task: the instruction, which LeRobot hands to its policies.
        render_px: size of the pictures of `render` (the top camera); LeRobot films with them.
        seeds_for: a use, e.g. ``"eval"``, that seeds must be open to (`vla_rl.seeds`); None takes every seed.
        settings: constructor arguments of `BoatToDisk`.

    Attributes:
        task, task_description: the instruction.

    Raises:
        ConfigError: see `BoatToDisk`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": BoatToDisk.metadata["render_fps"]}
    render_mode = "rgb_array"

    def __init__(self, *, task: str, render_px: int, seeds_for: str | None, **settings: Any) -> None:
        self.world = BoatToDisk(**settings)
        self.task = self.task_description = task
        self._max_episode_steps = self.world.max_ticks  # by this name LeRobot's evaluation asks for it
        self._render_px, self._seeds_for = render_px, seeds_for
        self._strict = self._documented = False
        chunk: Any = self.world.action_space
        seen: Any = self.world.observation_space
        self.action_space = spaces.Box(
            chunk.low[0].astype(np.float32), chunk.high[0].astype(np.float32), dtype=np.float32
        )
        state = seen["state"]
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Dict({camera: seen[camera] for camera in CAMERAS}),
                "agent_pos": spaces.Box(state.low.astype(np.float32), state.high.astype(np.float32), dtype=np.float32),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start the episode of an environment seed, the one that `BoatToDisk` starts.

        Args:
            seed: decides the initial state completely. Without one, gymnasium's own generator draws it.
            options: not used; LeRobot marks new rollouts with them.

        Raises:
            ConfigError: the seed is not open to `seeds_for`.
        """
        super().reset(seed=seed)
        if seed is not None and self._seeds_for:
            check_use([seed], self._seeds_for, where="seed")
        self.world.begin(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._strict = self._documented = False
        return self._observe(), self._info()

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """One control tick towards absolute joint targets.

        Args:
            action: float [6], degrees; clipped to the servo ranges.

        Returns:
            observation; 1.0 at the tick that first completes the strict test, else 0.0; terminated; truncated; info:
            ``is_success`` (the strict test so far), ``is_success_documented``, ``seed``, ``ticks``.

        Raises:
            ValueError: wrong shape or a target that is not finite.
            gymnasium.error.ResetNeeded: no episode is running.
            RolloutError: the physics became unstable.
        """
        world, target_deg = self.world, np.asarray(action, dtype=np.float64)
        if target_deg.shape != (6,) or not np.isfinite(target_deg).all():
            raise ValueError(f"an action is [6] finite degrees, not {target_deg.shape}")
        if world.seed < 0 or world.terminated or world.truncated:
            raise gym.error.ResetNeeded("the episode has ended: call reset(seed=...) first")
        world.tick(target_deg)
        world.check_stable()
        before = self._strict
        self._strict = before or world.passes_strict
        self._documented = self._documented or world.last_sample.documented()
        reward = float(self._strict and not before)
        return self._observe(), reward, world.terminated, world.truncated, self._info()

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The top camera, uint8 [render_px, render_px, 3]."""
        return self.world.get_frame("top", self._render_px, self._render_px)

    def metrics(self) -> M.EpisodeMetrics:
        """Metrics of the episode so far, see `BoatToDisk.metrics`."""
        return self.world.metrics()

    def describe(self) -> dict[str, Any]:
        """What a record of results must say about its simulator, see `BoatToDisk.describe`."""
        return self.world.describe()

    def _observe(self) -> dict[str, Any]:
        seen = self.world.observe()
        pixels = {camera: seen[camera] for camera in CAMERAS}
        return {"pixels": pixels, "agent_pos": seen["state"].astype(np.float32)}

    def _info(self) -> dict[str, Any]:
        return {
            "is_success": self._strict,
            "is_success_documented": self._documented,
            "seed": self.world.seed,
            "ticks": self.world.ticks,
        }
