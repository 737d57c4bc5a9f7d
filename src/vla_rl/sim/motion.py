"""Motion of the scripted expert: from poses to blended 30 Hz joint targets, disturbed and recorded on the way.

In: joint or tool poses and speeds. Out: control ticks of an environment, and what a learner needs of them (`DemoFrame`,
clean targets, which ticks may be taught). The path is piecewise linear in joint space behind a short moving average, so
corners are blended and a move begins in the tick it is asked for. Where to go is not decided here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.frames import CAMERAS
from vla_rl.sim.ik import ArmKinematics, ArmPose
from vla_rl.sim.metrics import STRICT_TICKS

BLEND_TICKS = 6
JAW_DEG_S = 110.0
MAX_TICKS = 900
# Teaching goes on this long after the strict test: the policy must learn to leave, not to wait at home.
STRICT_TAIL_TICKS = 10
NOISE_MEMORY = 0.9


class Abandon(Exception):
    """The expert cannot go on; the message says why."""


@dataclass(frozen=True)
class DemoFrame:
    """Seen before `tick`: frames uint8 [2, H, W, 3] ordered as `CAMERAS` (None: not rendered), state_deg [6]."""

    tick: int
    frames: np.ndarray | None
    state_deg: np.ndarray


class BlendedMotion:
    """One episode's motion. The environment must have been begun.

    Args:
        env: acted on through joint targets only.
        arm: its kinematics.
        start_deg: [6], the first reference.
        record_every: ticks between stored frames.
        phase: the first stored tick.
        render: store pictures.
        noise_deg: standard deviation of the noise on executed targets (0: none); stored targets stay clean.
        rng: source of that noise.

    Attributes:
        reference_deg: [6], the newest unblended target.
        recording: whether ticks are taught at present.
        steadiness: factor on the noise, below 1 where precision decides.
        targets_deg, trainable, frames: what was recorded.
    """

    def __init__(
        self,
        env: BoatToDisk,
        arm: ArmKinematics,
        *,
        start_deg: np.ndarray,
        record_every: int,
        phase: int,
        render: bool,
        noise_deg: float,
        rng: np.random.Generator | None,
    ) -> None:
        self.env, self.arm = env, arm
        self.reference_deg = start_deg
        self.recording, self.steadiness = True, 1.0
        self.targets_deg: list[np.ndarray] = []
        self.trainable: list[bool] = []
        self.frames: list[DemoFrame] = []
        self._window = deque([start_deg] * BLEND_TICKS, maxlen=BLEND_TICKS)
        self._record_every, self._phase, self._render = record_every, phase, render
        self._noise_deg, self._rng, self._disturbance_deg = noise_deg, rng, np.zeros(6)
        self._placed_ticks = 0

    @property
    def joints_rad(self) -> np.ndarray:
        """The arm part of the reference, float64 [5] radians."""
        return np.deg2rad(self.reference_deg[:5])

    def tick(self, reference_deg: np.ndarray) -> None:
        """One control tick: blend the reference, store, disturb, act.

        Raises:
            Abandon: the episode has become too long.
        """
        tick, env = len(self.targets_deg), self.env
        if tick >= MAX_TICKS:
            raise Abandon("too long")
        self.reference_deg = reference_deg
        self._window.append(reference_deg)
        target_deg = np.mean(self._window, axis=0)
        if self.recording and tick % self._record_every == self._phase:
            frames = [env.get_frame(c, env.image_px, env.image_px) for c in CAMERAS] if self._render else None
            self.frames.append(DemoFrame(tick, None if frames is None else np.stack(frames), env.state_deg))
        self.targets_deg.append(target_deg)
        self.trainable.append(self.recording)
        if self._rng is not None and self._noise_deg > 0.0:  # an Ornstein-Uhlenbeck process of unit variance, scaled
            kick_deg = np.sqrt(1.0 - NOISE_MEMORY**2) * self._noise_deg * self._rng.normal(size=6)
            self._disturbance_deg = NOISE_MEMORY * self._disturbance_deg + kick_deg
        env.tick(target_deg + self.steadiness * self._disturbance_deg)
        self._placed_ticks = self._placed_ticks + 1 if env.last_sample.placed() else 0
        if self._placed_ticks == STRICT_TICKS + STRICT_TAIL_TICKS:
            self.recording = False

    def move(self, joints_rad: np.ndarray, jaw_deg: float, speed_deg_s: float) -> None:
        """Straight in joint space to a pose, all joints arriving together; the blend is still behind on return."""
        start_deg, goal_deg = self.reference_deg, np.append(np.rad2deg(joints_rad), jaw_deg)
        limits = np.append(np.full(5, speed_deg_s), JAW_DEG_S) / 30.0
        ticks = max(1, int(np.ceil((np.abs(goal_deg - start_deg) / limits).max())))
        for k in range(1, ticks + 1):
            self.tick(start_deg + (goal_deg - start_deg) * (k / ticks))

    def line(
        self,
        goal_m: np.ndarray,
        tool: np.ndarray,
        *,
        jaw_heading_rad: float | None,
        jaw_deg: float,
        speed_deg_s: float,
        pieces: int,
        vertical_weight: float = 0.1,
    ) -> None:
        """Straight in space: the tool point goes from where the reference has it to `goal_m`."""
        start_m, joints_rad = self.arm.tool(self.joints_rad, tool)[0], self.joints_rad
        for part in np.linspace(0.0, 1.0, pieces + 1)[1:]:
            pose: ArmPose = self.arm.solve(
                start_m + part * (goal_m - start_m),
                tool,
                joints_rad,
                jaw_heading_rad=jaw_heading_rad,
                vertical_weight=vertical_weight,
                iterations=25,
            )
            joints_rad = pose.joints_rad
            self.move(joints_rad, jaw_deg, speed_deg_s)

    def stay(self, ticks: int) -> None:
        """Let the blend catch up with the reference."""
        for _ in range(ticks):
            self.tick(self.reference_deg)

    def forget_since(self, tick: int) -> None:
        """A failed attempt teaches nothing: its frames go, its ticks are marked."""
        self.frames = [frame for frame in self.frames if frame.tick < tick]
        self.trainable[tick:] = [False] * (len(self.trainable) - tick)
        self.recording = True
