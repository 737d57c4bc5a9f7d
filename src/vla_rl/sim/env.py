"""The boat-to-disk task as a `gymnasium.Env`: joint targets in, two pictures and six joint angles out.

In: an environment seed, then chunks of absolute joint targets in degrees (LeRobot v3 frame, gripper -10 closed .. 100
open), executed open loop at a nominal 30 Hz. Out: one observation per chunk, and the episode's metrics. The reward is
always 0: prices are set by `vla_rl.rl.reward` from the metrics. Many environments share one compiled model and one
renderer per process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from vla_rl.errors import ConfigError, RolloutError
from vla_rl.sim import metrics as M
from vla_rl.sim.frames import CAMERAS, to_degrees, to_radians
from vla_rl.sim.gl import mujoco
from vla_rl.sim.look import Look
from vla_rl.sim.protocol import Protocol
from vla_rl.sim.scene import MAX_PICTURE_PX, scene_digest, shared_scene
from vla_rl.sim.snapshot import EnvSnapshot, derived_arrays, load
from vla_rl.sim.spawn import Spawn, draw_spawn

TERMINATE_ON = ("success_documented", "success_strict", "never")
_UNSTABLE = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)


class BoatToDisk(gym.Env[Any, np.ndarray]):
    """Pick up the toy boat and place it on the wooden disk.

    Args:
        protocol: id of the task definition, e.g. ``"sim100b"`` (an ablation may pass constants of its own).
        image_px: height and width of both pictures.
        chunk_ticks: length of the chunks that the policy predicts; the protocol says how many of these ticks are
            executed before the next observation (`execute_ticks`, the first axis of an action).
        max_ticks: the episode is truncated after this many ticks.
        terminate_on: ``success_documented``, ``success_strict`` or ``never``.
        stop_hopeless: also terminate once the boat cannot be placed any more.
        look: the keys of `vla_rl.config.schema.LookConfig`: what pictures look like.

    Raises:
        ConfigError: unknown protocol or test, lengths that do not fit, or a look that cannot be shown.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    render_mode = "rgb_array"

    def __init__(
        self,
        *,
        protocol: str | Protocol,
        image_px: int,
        chunk_ticks: int,
        max_ticks: int,
        terminate_on: str,
        stop_hopeless: bool,
        look: Mapping[str, Any],
    ) -> None:
        if terminate_on not in TERMINATE_ON:
            raise ConfigError(
                f"no such test: {terminate_on!r}", where="sim.terminate_on", remedy=f"one of: {', '.join(TERMINATE_ON)}"
            )
        if max_ticks < 1:
            raise ConfigError(f"an episode of {max_ticks} ticks", where="sim.max_ticks", remedy="at least 1")
        if not 1 <= image_px <= MAX_PICTURE_PX:
            raise ConfigError(f"pictures of {image_px} px", where="sim.image_px", remedy=f"1 to {MAX_PICTURE_PX}")
        self.scene = shared_scene(protocol, Look.from_config(look))
        execute_ticks = self.scene.protocol.execute_ticks
        if chunk_ticks < execute_ticks:
            raise ConfigError(
                f"protocol {self.scene.protocol.name} executes {execute_ticks} ticks of a chunk of {chunk_ticks}",
                where="sim.chunk_ticks",
                remedy=f"at least {execute_ticks}, or a protocol with a shorter horizon (-h15, -h10)",
            )
        self.image_px, self.chunk_ticks, self.max_ticks, self.execute_ticks = (
            image_px,
            chunk_ticks,
            max_ticks,
            execute_ticks,
        )
        self.terminate_on, self.stop_hopeless = terminate_on, stop_hopeless
        self.scene_hash = scene_digest(self.scene.protocol, self.scene.look)
        self.data = mujoco.MjData(self.scene.model)
        self.seed = -1
        self._trace: list[M.TickSample] = []
        self._strikes = self._strict_run = self._hopeless_run = 0
        self.terminated = self.truncated = False
        low_deg, high_deg = to_degrees(self.scene.ctrl_low_rad), to_degrees(self.scene.ctrl_high_rad)
        shape = (execute_ticks, 6)
        self.action_space = spaces.Box(
            np.broadcast_to(low_deg, shape).copy(), np.broadcast_to(high_deg, shape).copy(), dtype=np.float64
        )
        picture = spaces.Box(0, 255, (image_px, image_px, 3), np.uint8)
        # A joint may be pushed past its soft limit by a little; the state is what is measured.
        state = spaces.Box(low_deg - 30.0, high_deg + 30.0, dtype=np.float64)
        self.observation_space = spaces.Dict({"top": picture, "wrist": picture, "state": state})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start the episode of an environment seed.

        Args:
            seed: decides the initial state completely. Without one, gymnasium's own generator draws it.
            options: ``{"arm_deg": [6]}`` starts the arm there instead of at home (demonstrations).

        Returns:
            observation, and info: the seed, the boat's ``spawn`` [3] (m, m, rad) and the ``disk`` [2] (m).

        Raises:
            ConfigError: an option of another name, or a pose that is not six finite angles.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        spawn = self.begin(drawn, _start_pose(options or {}))
        pose = np.array([spawn.x_m, spawn.y_m, spawn.yaw_rad])
        return self.observe(), {"seed": self.seed, "spawn": pose, "disk": np.array(spawn.disk_xy_m)}

    def begin(self, seed: int, arm_deg: np.ndarray | None = None) -> Spawn:
        """`reset` without rendering: arm settled at home, boat put at its spawn, 30 settling steps."""
        scene, data, protocol = self.scene, self.data, self.scene.protocol
        spawn = draw_spawn(seed, protocol)
        scene.park(data, spawn.disk_xy_m, arm_deg)
        half = spawn.yaw_rad / 2
        pose = (spawn.x_m, spawn.y_m, protocol.spawn_height_m, np.cos(half), 0.0, 0.0, np.sin(half))
        data.qpos[scene.boat_qpos : scene.boat_qpos + 7] = pose
        data.qvel[scene.boat_qvel : scene.boat_qvel + 6] = 0.0
        self._strikes = 0
        for _ in range(protocol.boat_settle_steps):
            mujoco.mj_step(scene.model, data)
            self._strikes += scene.boat_strikes(data)
        self.seed, self._trace = seed, [self._sample()]
        self._strict_run = self._hopeless_run = 0
        self.terminated = self.truncated = False
        return spawn

    def tick(self, target_deg: np.ndarray) -> bool:
        """One control tick (`Protocol.tick_s`) towards absolute joint targets, held constant; no rendering.

        Args:
            target_deg: float [6]; clipped to the servo ranges.

        Returns:
            True when the episode has ended.
        """
        scene, data = self.scene, self.data
        # np.clip would give the same and take several times as long.
        data.ctrl[:6] = np.minimum(np.maximum(to_radians(target_deg), scene.ctrl_low_rad), scene.ctrl_high_rad)
        mujoco.mj_step(scene.model, data, scene.protocol.substeps)
        sample = self._sample()
        self._trace.append(sample)
        self._strict_run = self._strict_run + 1 if sample.placed() else 0
        self._hopeless_run = self._hopeless_run + 1 if sample.hopeless() else 0
        self.terminated = (
            (self.terminate_on == "success_strict" and self.passes_strict)
            or (self.terminate_on == "success_documented" and sample.documented())
            or (self.stop_hopeless and self._hopeless_run >= M.HOPELESS_TICKS)
        )
        self.truncated = not self.terminated and self.ticks >= self.max_ticks
        return self.terminated or self.truncated

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Execute one chunk open loop, stopping inside it when the episode ends.

        Args:
            action: float [execute_ticks, 6], absolute joint targets in degrees.

        Returns:
            observation, 0.0, terminated, truncated, info (``ticks`` executed so far).

        Raises:
            ValueError: wrong shape or a target that is not finite.
            gymnasium.error.ResetNeeded: no episode is running.
            RolloutError: the physics became unstable.
        """
        targets_deg = np.asarray(action, dtype=np.float64)
        if targets_deg.shape != (self.execute_ticks, 6) or not np.isfinite(targets_deg).all():
            raise ValueError(f"an action is [{self.execute_ticks}, 6] finite degrees, not {targets_deg.shape}")
        if not self._trace or self.terminated or self.truncated:
            raise gym.error.ResetNeeded("the episode has ended: call reset(seed=...) first")
        for target_deg in targets_deg:
            if self.tick(target_deg):
                break
        self.check_stable()
        return self.observe(), 0.0, self.terminated, self.truncated, {"ticks": self.ticks}

    def check_stable(self) -> None:
        """Refuse a state that no physics led to.

        Raises:
            RolloutError: the physics became unstable.
        """
        if any(self.data.warning[warning].number for warning in _UNSTABLE):
            raise RolloutError("the physics became unstable", where=f"seed {self.seed}, tick {self.ticks}")

    def observe(self) -> dict[str, np.ndarray]:
        """``top`` and ``wrist`` uint8 [image_px, image_px, 3], ``state`` float64 [6] measured degrees."""
        pictures = {camera: self.get_frame(camera, self.image_px, self.image_px) for camera in CAMERAS}
        return pictures | {"state": self.state_deg}

    def get_frame(self, camera: str, width_px: int, height_px: int) -> np.ndarray:
        """uint8 [height, width, 3] of the present moment, e.g. for a video."""
        return self.scene.picture(self.data, camera, width_px, height_px, seed=self.seed, tick=self.ticks)

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The top camera at 480 x 480."""
        return self.get_frame("top", 480, 480)

    def describe(self) -> dict[str, Any]:
        """What a record of results must say about its simulator; JSON-able.

        Returns:
            ``protocol`` id, ``scene_hash``, ``max_replans`` of an episode and ``image_px``.
        """
        return {
            "protocol": self.scene.protocol.name,
            "scene_hash": self.scene_hash,
            "max_replans": math.ceil(self.max_ticks / self.execute_ticks),
            "image_px": self.image_px,
        }

    def snapshot(self) -> EnvSnapshot:
        """The present moment of the episode, to `restore` it later.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        self._require_episode()
        return EnvSnapshot(
            scene_hash=self.scene_hash,
            seed=self.seed,
            state=self.scene.integration_state(self.data),
            derived=derived_arrays(self.data),
            trace=tuple(self._trace),
            strikes=self._strikes,
            strict_run=self._strict_run,
            hopeless_run=self._hopeless_run,
            terminated=self.terminated,
            truncated=self.truncated,
        )

    def restore(self, snapshot: EnvSnapshot) -> None:
        """Continue from a snapshot: same physics, metrics and pictures as if nothing had come between, bit for bit.

        Raises:
            ValueError: the snapshot belongs to another scene.
        """
        if snapshot.scene_hash != self.scene_hash:
            raise ValueError(f"a snapshot of scene {snapshot.scene_hash[:12]} in scene {self.scene_hash[:12]}")
        load(self.scene.model, self.data, snapshot)
        self.seed, self._trace = snapshot.seed, list(snapshot.trace)
        self._strikes, self._strict_run, self._hopeless_run = (
            snapshot.strikes,
            snapshot.strict_run,
            snapshot.hopeless_run,
        )
        self.terminated, self.truncated = snapshot.terminated, snapshot.truncated

    @property
    def disk_xy_m(self) -> tuple[float, float]:
        """Centre of the disk in this episode, in metres."""
        return self.scene.disk_xy_m(self.data)

    @property
    def ticks(self) -> int:
        """Ticks executed since reset."""
        return len(self._trace) - 1

    @property
    def tick_s(self) -> float:
        """Duration of one control tick in seconds."""
        return self.scene.protocol.tick_s

    @property
    def trace(self) -> tuple[M.TickSample, ...]:
        """The episode so far: the settled state after reset, then one sample a tick."""
        return tuple(self._trace)

    @property
    def passes_strict(self) -> bool:
        """Whether the strict test holds at this moment: the boat has been placed for `metrics.STRICT_TICKS` ticks."""
        return self._strict_run >= M.STRICT_TICKS

    @property
    def last_sample(self) -> M.TickSample:
        """The newest sample of the trace."""
        return self._trace[-1]

    @property
    def state_deg(self) -> np.ndarray:
        """Measured joint angles, float64 [6] degrees."""
        return to_degrees(self.data.qpos[:6])

    def metrics(self) -> M.EpisodeMetrics:
        """Metrics of the episode so far.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        self._require_episode()
        return M.episode_metrics(
            self._trace,
            reset_strikes=self._strikes,
            terminate_on=self.terminate_on,
            tick_s=self.tick_s,
        )

    def _require_episode(self) -> None:
        if not self._trace:
            raise gym.error.ResetNeeded("there is no episode yet: call reset(seed=...) first")

    def _sample(self) -> M.TickSample:
        """Boat and speeds from the state itself; contacts are those that the last physics step resolved."""
        scene, data = self.scene, self.data
        p, v = scene.boat_qpos, scene.boat_qvel
        x_m, y_m, z_m, _, qx, qy, _ = data.qpos[p : p + 7].tolist()
        speed = np.abs(data.qvel)
        disk_x, disk_y = scene.disk_xy_m(data)
        return M.TickSample(
            distance_m=float(np.hypot(x_m - disk_x, y_m - disk_y)),
            z_m=z_m,
            upright=1.0 - 2.0 * (qx * qx + qy * qy),
            boat_speed_m_s=float(speed[v : v + 3].max()),
            boat_spin_rad_s=float(speed[v + 3 : v + 6].max()),
            max_speed=float(speed.max()),
            grip=scene.grip_code(data),
        )


def _start_pose(options: dict[str, Any]) -> np.ndarray | None:
    """The pose that `reset` was asked to start from."""
    unknown = sorted(options.keys() - {"arm_deg"})
    if unknown:
        raise ConfigError(
            f"there is no option {unknown[0]!r}", where="reset(options=)", remedy="arm_deg is the only one"
        )
    if options.get("arm_deg") is None:
        return None
    arm_deg = np.asarray(options["arm_deg"], dtype=np.float64)
    if arm_deg.shape != (6,) or not np.isfinite(arm_deg).all():
        raise ConfigError(
            f"arm_deg has shape {arm_deg.shape}" if arm_deg.shape != (6,) else "arm_deg is not finite",
            where="reset(options=)",
            remedy="six angles in degrees",
        )
    return arm_deg
