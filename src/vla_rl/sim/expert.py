"""The scripted expert: reads the boat's true pose, picks the boat up by its cabin and places it on the disk.

In: an environment seed and, for demonstrations, how much to disturb. Out: `ExpertEpisode`: 30 Hz joint targets, pictures
and states to learn from, and the episode's metrics. It acts only through joint targets; nothing is teleported.

It is written to be learned by a policy that executes 30-tick chunks open loop. All motion is one piecewise linear path in
joint space behind a short moving average: corners are blended, a move starts in the tick it is decided in, and the arm
stands still nowhere, since a greedy policy stalls wherever its teacher waits. Disturbed demonstrations execute noisy
targets but store the clean ones (M. Laskey et al., "DART: noise injection for robust imitation learning", 2017), and may
begin with a deliberate miss, which is not stored; the recovery from it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from vla_rl import seeds
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.frames import CAMERAS
from vla_rl.sim.ik import ArmKinematics, ArmPose
from vla_rl.sim.metrics import STRICT_TICKS, EpisodeMetrics

BLEND_TICKS = 6
# Joint speeds in degrees per second: free motion, near the boat, lowering onto the disk, and the jaw.
FREE_DEG_S, NEAR_DEG_S, LOWER_DEG_S, JAW_DEG_S = 90.0, 60.0, 24.0, 110.0
OPEN_DEG, CLOSED_DEG = 24.0, -10.0
# Gripper frame: inner face of the fixed jaw, and the height of its tip's middle. The cabin is 19 mm wide.
FIXED_FACE_X_M, TIP_Z_M, CABIN_HALF_M = -0.0080, -0.0975, 0.0095
CLEARANCE_M = 0.013  # on the fixed jaw's side; the open jaws are 50 mm apart, so the cabin is in the middle
CABIN_IN_BOAT_M = np.array([-0.006, 0.0, 0.0])
GRASP_Z_M, HOVER_M, LIFT_M, CARRY_KEEL_M, TOUCH_M = 0.028, 0.040, 0.035, 0.048, 0.0015
SHORT_OF_GRASP_Z_M = 0.020
MAX_ATTEMPTS, MAX_TICKS = 3, 900
STRICT_TAIL_TICKS = 10


@dataclass(frozen=True)
class DemoNoise:
    """How demonstrations are disturbed.

    Attributes:
        noisy_share: share of episodes with noise on the executed targets and a jittered start pose.
        noise_deg: range of the noise's standard deviation in degrees (drawn once an episode).
        start_jitter_deg: standard deviation of the start pose around home.
        miss_share: share of episodes that begin with a deliberate miss.
    """

    noisy_share: float
    noise_deg: tuple[float, float]
    start_jitter_deg: float
    miss_share: float


@dataclass(frozen=True)
class DemoFrame:
    """What was seen before `tick`: frames uint8 [2, H, W, 3] in the order of `CAMERAS` (None unrendered), state_deg [6]."""

    tick: int
    frames: np.ndarray | None
    state_deg: np.ndarray


@dataclass(frozen=True)
class ExpertEpisode:
    """One episode of the expert.

    Attributes:
        ok: the strict test was passed and the boat is still placed at the end.
        fail: why not, or None.
        observations: every `record_every`-th trainable tick.
        targets_deg: float64 [T, 6], the clean targets; a chunk for the frame of tick t is ``targets_deg[t : t + 30]``.
        trainable_T: bool [T], False while missing on purpose, in a failed attempt, and after the boat is safely placed.
        metrics: the episode's metrics.
        noisy, missed: how it was disturbed.
    """

    ok: bool
    fail: str | None
    observations: list[DemoFrame]
    targets_deg: np.ndarray
    trainable_T: np.ndarray
    metrics: EpisodeMetrics
    noisy: bool
    missed: bool


class _Abandon(Exception):
    """The expert cannot go on."""


@dataclass
class _Recording:
    """What one episode accumulates."""

    record_every: int
    phase: int
    render: bool
    noise_deg: float = 0.0
    recording: bool = True
    placed_run: int = 0
    targets_deg: list[np.ndarray] = field(default_factory=list)
    trainable: list[bool] = field(default_factory=list)
    frames: list[DemoFrame] = field(default_factory=list)


class ScriptedExpert:
    """Runs episodes in an environment that it is given.

    Args:
        env: its pictures' size is used; its own end of episode is not (the expert decides when it is done).
    """

    def __init__(self, env: BoatToDisk) -> None:
        self.env = env
        self.arm = ArmKinematics(env.scene)
        self._home_deg = np.array(env.scene.protocol.home_deg)
        self._disk_xy = np.array(env.scene.protocol.disk_xy_m)

    def run(self, seed: int, *, noise: DemoNoise | None, record_every: int, render: bool) -> ExpertEpisode:
        """One episode.

        Args:
            seed: environment seed; with `noise` it also decides the disturbance.
            noise: None for the undisturbed expert, which draws no random number at all.
            record_every: ticks between stored observations.
            render: store pictures (False: states only).

        Raises:
            RolloutError: the physics became unstable.
            MachineError: `render` on a machine that cannot.
        """
        self._rng = seeds.stream("demo-expert", seed) if noise else None
        rng = self._rng
        noisy = bool(rng is not None and noise and rng.random() < noise.noisy_share)
        missed = bool(rng is not None and noise and rng.random() < noise.miss_share)
        start_deg = self._home_deg.copy()
        phase = int(rng.integers(record_every)) if rng is not None else 0
        self._log = _Recording(record_every, phase, render)
        if rng is not None and noise and noisy:
            start_deg += rng.normal(0.0, noise.start_jitter_deg, 6)
            start_deg[5] = max(start_deg[5], CLOSED_DEG)
            self._log.noise_deg = float(rng.uniform(*noise.noise_deg))
        self.env.begin(seed, start_deg if noisy else None)
        self._disturbance_deg, self._steady = np.zeros(6), 1.0
        self._reference_deg = self.env.state_deg if noisy else start_deg
        self._window = deque([self._reference_deg] * BLEND_TICKS, maxlen=BLEND_TICKS)
        fail = self._perform(missed)
        sample, metrics = self.env.last_sample, self.env.metrics()
        ok = fail is None and metrics.success_strict and sample.placed()
        fail = fail or (None if ok else "misplaced")
        return ExpertEpisode(
            ok,
            fail,
            self._log.frames,
            np.array(self._log.targets_deg),
            np.array(self._log.trainable),
            metrics,
            noisy,
            missed,
        )

    def _perform(self, missed: bool) -> str | None:
        """The whole task, with up to `MAX_ATTEMPTS` tries. Returns why it failed, or None."""
        try:
            if missed:
                self._miss()
            for _ in range(MAX_ATTEMPTS):
                first_tick = len(self._log.targets_deg)
                if self._pick():
                    self._place()
                    self._retreat()
                    if self.env.last_sample.placed():
                        return None
                self._forget_since(first_tick)
        except _Abandon as reason:
            return str(reason)
        return "out of attempts"

    # ---- motion -------------------------------------------------------------------------------------------------

    def _tick(self, reference_deg: np.ndarray) -> None:
        """One control tick: blend the reference, store, disturb, act."""
        log, env = self._log, self.env
        if len(log.targets_deg) >= MAX_TICKS:
            raise _Abandon("too long")
        self._reference_deg = reference_deg
        self._window.append(reference_deg)
        target_deg = np.mean(self._window, axis=0)
        tick = len(log.targets_deg)
        if log.recording and tick % log.record_every == log.phase:
            frames = np.stack([env.get_frame(c, env.image_px, env.image_px) for c in CAMERAS]) if log.render else None
            log.frames.append(DemoFrame(tick, frames, env.state_deg))
        log.targets_deg.append(target_deg)
        log.trainable.append(log.recording)
        if self._rng is not None and log.noise_deg > 0.0:
            kick_deg = np.sqrt(1.0 - 0.9**2) * log.noise_deg * self._rng.normal(size=6)
            self._disturbance_deg = 0.9 * self._disturbance_deg + kick_deg
        env.tick(target_deg + self._steady * self._disturbance_deg)
        log.placed_run = log.placed_run + 1 if env.last_sample.placed() else 0
        if log.placed_run == STRICT_TICKS + STRICT_TAIL_TICKS:
            log.recording = False

    def _move(self, joints_rad: np.ndarray, jaw_deg: float, speed_deg_s: float) -> None:
        """Straight in joint space to a pose, all joints arriving together; returns while the blend is still catching up."""
        start_deg, goal_deg = self._reference_deg, np.append(np.rad2deg(joints_rad), jaw_deg)
        limits = np.append(np.full(5, speed_deg_s), JAW_DEG_S) / 30.0
        ticks = max(1, int(np.ceil((np.abs(goal_deg - start_deg) / limits).max())))
        for k in range(1, ticks + 1):
            self._tick(start_deg + (goal_deg - start_deg) * (k / ticks))

    def _line(
        self,
        goal_m: np.ndarray,
        tool: np.ndarray,
        heading: float | None,
        jaw_deg: float,
        speed_deg_s: float,
        pieces: int,
        vertical_weight: float = 0.1,
    ) -> ArmPose:
        """Straight in space: the tool point from where the reference has it to `goal_m`."""
        joints_rad = np.deg2rad(self._reference_deg[:5])
        start_m, _ = self.arm.tool(joints_rad, tool)
        pose = ArmPose(joints_rad, 0.0, 1.0)
        for part in np.linspace(0.0, 1.0, pieces + 1)[1:]:
            pose = self.arm.solve(
                start_m + part * (goal_m - start_m),
                tool,
                pose.joints_rad,
                jaw_heading_rad=heading,
                vertical_weight=vertical_weight,
                iterations=25,
            )
            self._move(pose.joints_rad, jaw_deg, speed_deg_s)
        return pose

    # ---- phases -------------------------------------------------------------------------------------------------

    def _boat(self) -> tuple[np.ndarray, np.ndarray]:
        """True position [3] and rotation [3, 3] of the boat."""
        data, body = self.env.data, self.env.scene.boat_body
        return data.xpos[body].copy(), data.xmat[body].reshape(3, 3).copy()

    def _jitter(self, sigma: float, size: int) -> np.ndarray:
        return np.zeros(size) if self._rng is None else self._rng.normal(0.0, sigma, size)

    def _approach(self, offset_m: np.ndarray, turn_rad: float, depth: float) -> float:
        """Open the jaws around the cabin (shifted and turned for a miss). Returns the jaws' heading."""
        position, rotation = self._boat()
        if rotation[2, 2] < 0.9:
            raise _Abandon("boat tipped over")
        cabin_xy = (position + rotation @ CABIN_IN_BOAT_M)[:2] + offset_m
        across = float(np.arctan2(rotation[1, 1], rotation[0, 1])) + turn_rad
        tool = np.array([FIXED_FACE_X_M + CABIN_HALF_M + CLEARANCE_M, 0.0, TIP_Z_M])
        grasp_m, here_rad = np.append(cabin_xy, GRASP_Z_M), np.deg2rad(self._reference_deg[:5])
        poses: list[tuple[float, float, ArmPose]] = []
        for heading in (across, across + np.pi):
            pose = self.arm.solve(grasp_m, tool, self.arm.guess(cabin_xy, heading), jaw_heading_rad=heading)
            if pose.error_m < 0.002 and pose.upright > 0.97:
                poses.append((float(np.abs(pose.joints_rad - here_rad).max()), heading, pose))
        if not poses:
            raise _Abandon("the boat is out of reach")
        _, heading, pose = min(poses, key=lambda item: item[0])
        above_m = grasp_m + [0.0, 0.0, HOVER_M]
        tip_m, _ = self.arm.tool(here_rad, tool)
        if tip_m[2] < above_m[2] - 0.01:  # beside the boat, after a miss: rise before crossing it
            self._line(np.append(tip_m[:2], above_m[2]), tool, None, OPEN_DEG, NEAR_DEG_S, 2, vertical_weight=0.03)
        above = self.arm.solve(above_m, tool, pose.joints_rad, jaw_heading_rad=heading, vertical_weight=0.03)
        self._move(above.joints_rad, OPEN_DEG, FREE_DEG_S)
        self._line(above_m + depth * (grasp_m - above_m), tool, heading, OPEN_DEG, NEAR_DEG_S, 3)
        return heading

    def _miss(self) -> None:
        """Go down beside the boat, perhaps close the jaws on nothing. Not stored; what follows is."""
        rng = self._rng
        assert rng is not None
        self._log.recording = False
        angle, radius_m = rng.uniform(-np.pi, np.pi), rng.uniform(0.008, 0.035)
        self._approach(
            radius_m * np.array([np.cos(angle), np.sin(angle)]), rng.uniform(-0.7, 0.7), rng.uniform(0.3, 1.0)
        )
        if rng.random() < 0.5:
            self._move(np.deg2rad(self._reference_deg[:5]), CLOSED_DEG, NEAR_DEG_S)
        self._log.recording = True

    def _pick(self) -> bool:
        """Grasp by the cabin and lift. Returns whether the boat came along."""
        heading = self._approach(self._jitter(0.001, 2), float(self._jitter(0.04, 1)[0]), 1.0)
        self._steady = 0.4
        closing = np.array([FIXED_FACE_X_M + CABIN_HALF_M, 0.0, TIP_Z_M])
        cabin_m, _ = self.arm.tool(np.deg2rad(self._reference_deg[:5]), closing + [CLEARANCE_M, 0.0, 0.0])
        # The arm carries the fixed jaw to the cabin while the other one closes: both touch it at about the same time.
        closed = self.arm.solve(cabin_m, closing, np.deg2rad(self._reference_deg[:5]), jaw_heading_rad=heading)
        self._move(closed.joints_rad, CLOSED_DEG, NEAR_DEG_S)
        for _ in range(3):
            self._tick(self._reference_deg)
        self._line(cabin_m + [0.0, 0.0, LIFT_M], closing, heading, CLOSED_DEG, NEAR_DEG_S, 3, vertical_weight=0.03)
        self._steady = 1.0
        return self._boat()[0][2] > 0.4 * LIFT_M

    def _place(self) -> None:
        """Carry the boat over the disk and lower it until its keel all but touches."""
        gripper = self.env.scene.model.body("gripper").id
        rotation = self.env.data.xmat[gripper].reshape(3, 3)
        keel = rotation.T @ (self._boat()[0] - self.env.data.xpos[gripper])  # the boat in the hand
        goal_xy = self._disk_xy + self._jitter(0.003, 2)
        start_rad = np.deg2rad(self._reference_deg[:5])
        start_rad = np.append(self.arm.guess(goal_xy, 0.0)[:4], start_rad[4])
        touch_z = self.env.scene.protocol.disk_top_m + TOUCH_M
        over = self.arm.solve(
            np.append(goal_xy, CARRY_KEEL_M), keel, start_rad, jaw_heading_rad=None, vertical_weight=0.02
        )
        down = self.arm.solve(np.append(goal_xy, touch_z), keel, over.joints_rad, jaw_heading_rad=None)
        if over.error_m > 0.010 or down.error_m > 0.004 or down.upright < 0.97:
            raise _Abandon("the disk is out of reach")
        self._move(over.joints_rad, CLOSED_DEG, FREE_DEG_S)
        if self._boat()[0][2] < 0.02:
            return
        self._steady = 0.4
        self._line(np.append(goal_xy, touch_z + 0.010), keel, None, CLOSED_DEG, NEAR_DEG_S, 1)
        self._line(np.append(goal_xy, touch_z), keel, None, CLOSED_DEG, LOWER_DEG_S, 2)

    def _retreat(self) -> None:
        """Open, taking the fixed jaw off the boat as well, rise, and go home."""
        joints_rad = np.deg2rad(self._reference_deg[:5])
        tip = np.array([FIXED_FACE_X_M, 0.0, TIP_Z_M])
        tip_m, rotation = self.arm.tool(joints_rad, tip)
        tip_m, away = tip_m.copy(), -rotation[:, 0].copy()
        heading = float(np.arctan2(-away[1], -away[0]))
        free_m = tip_m + CLEARANCE_M * away
        opened = self.arm.solve(free_m, tip, joints_rad, jaw_heading_rad=heading)
        self._move(opened.joints_rad, OPEN_DEG, NEAR_DEG_S)
        self._line(free_m + [0.0, 0.0, HOVER_M], tip, heading, OPEN_DEG, NEAR_DEG_S, 3, vertical_weight=0.03)
        self._steady = 1.0
        self._move(np.deg2rad(self._home_deg[:5]), self._home_deg[5], FREE_DEG_S)
        for _ in range(BLEND_TICKS + 2):
            self._tick(self._reference_deg)

    def _forget_since(self, tick: int) -> None:
        """A failed attempt teaches nothing: its frames go, its ticks are marked."""
        self._log.frames = [frame for frame in self._log.frames if frame.tick < tick]
        self._log.trainable[tick:] = [False] * (len(self._log.trainable) - tick)
        self._log.recording = True
