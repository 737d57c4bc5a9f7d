"""The scripted expert: reads the boat's true pose, picks the boat up by its cabin and places it on the disk.

In: an environment seed and, for demonstrations, how much to disturb. Out: `ExpertEpisode`: 30 Hz joint targets,
pictures and states to learn from, and the episode's metrics. It acts only through joint targets; nothing is teleported.

It is written to be learned by a policy that executes 30-tick chunks open loop: it stands still nowhere, since a greedy
policy stalls wherever its teacher waits. Disturbed demonstrations execute noisy targets but store the clean ones
(M. Laskey et al., "DART: noise injection for robust imitation learning", 2017), and may begin with a deliberate miss,
which is not stored; the recovery from it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_rl import seeds
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.ik import ArmKinematics, ArmPose
from vla_rl.sim.metrics import EpisodeMetrics
from vla_rl.sim.motion import BLEND_TICKS, Abandon, BlendedMotion, DemoFrame

# Joint speeds in degrees per second: free motion, near the boat, and lowering onto the disk.
FREE_DEG_S, NEAR_DEG_S, LOWER_DEG_S = 90.0, 60.0, 24.0
OPEN_DEG, CLOSED_DEG = 24.0, -10.0
# Gripper frame: inner face of the fixed jaw, and the height of its tip's middle. The cabin is 19 mm wide.
FIXED_FACE_X_M, TIP_Z_M, CABIN_HALF_M = -0.0080, -0.0975, 0.0095
CLEARANCE_M = 0.013  # on the fixed jaw's side; the open jaws are 50 mm apart, so the cabin is in the middle
CABIN_IN_BOAT_M = np.array([-0.006, 0.0, 0.0])
GRASP_Z_M, HOVER_M, LIFT_M, CARRY_KEEL_M, TOUCH_M = 0.028, 0.040, 0.035, 0.048, 0.0015
MIN_LIFTED_M, MIN_CARRIED_M = 0.014, 0.020
UP = np.array([0.0, 0.0, 1.0])
# Away from table and disk a slight tilt is worth the reach; where the jaws work the tool points straight down.
TILT_ALLOWED, OVER_DISK_TILT = 0.03, 0.02
PRECISE = 0.4  # share of the noise that is left while grasping and placing
MAX_ATTEMPTS = 3


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


class ScriptedExpert:
    """Runs episodes in an environment that it is given.

    Args:
        env: the size of its pictures is used; its own end of episode is not (the expert decides when it is done).
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
            MachineError: `render` on a machine that cannot.
        """
        self._rng, noisy, missed, phase, noise_deg = None, False, False, 0, 0.0
        start_deg = self._home_deg
        if noise is not None:
            self._rng = rng = seeds.stream("demo-expert", seed)
            noisy, missed = bool(rng.random() < noise.noisy_share), bool(rng.random() < noise.miss_share)
            phase = int(rng.integers(record_every))
            if noisy:
                start_deg = start_deg + rng.normal(0.0, noise.start_jitter_deg, 6)
                start_deg[5] = max(start_deg[5], CLOSED_DEG)
                noise_deg = float(rng.uniform(*noise.noise_deg))
        self.env.begin(seed, start_deg if noisy else None)
        motion = BlendedMotion(
            self.env,
            self.arm,
            start_deg=self.env.state_deg if noisy else start_deg,
            record_every=record_every,
            phase=phase,
            render=render,
            noise_deg=noise_deg,
            rng=self._rng,
        )
        fail = self._perform(motion, missed)
        metrics = self.env.metrics()
        ok = fail is None and metrics.success_strict and self.env.last_sample.placed()
        return ExpertEpisode(
            ok=ok,
            fail=fail or (None if ok else "misplaced"),
            observations=motion.frames,
            targets_deg=np.array(motion.targets_deg),
            trainable_T=np.array(motion.trainable),
            metrics=metrics,
            noisy=noisy,
            missed=missed,
        )

    def _perform(self, motion: BlendedMotion, missed: bool) -> str | None:
        """The whole task, with up to `MAX_ATTEMPTS` tries. Returns why it failed, or None."""
        try:
            if missed:
                self._miss(motion)
            for _ in range(MAX_ATTEMPTS):
                first_tick = len(motion.targets_deg)
                if self._pick(motion):
                    self._place(motion)
                    self._retreat(motion)
                    if self.env.last_sample.placed():
                        return None
                motion.forget_since(first_tick)
        except Abandon as reason:
            return str(reason)
        return "out of attempts"

    def _boat(self) -> tuple[np.ndarray, np.ndarray]:
        """True position [3] and rotation [3, 3] of the boat."""
        data, body = self.env.data, self.env.scene.boat_body
        return data.xpos[body].copy(), data.xmat[body].reshape(3, 3).copy()

    def _jitter(self, sigma: float, size: int) -> np.ndarray:
        return np.zeros(size) if self._rng is None else self._rng.normal(0.0, sigma, size)

    def _grasp_pose(self, motion: BlendedMotion, xy_m: np.ndarray, across: float, tool: np.ndarray) -> float:
        """Which of the two ways round to take the cabin: the one with the shorter way there. Returns the jaw heading.

        Raises:
            Abandon: neither can be reached with the tool pointing down.
        """
        options: list[tuple[float, float]] = []
        for heading in (across, across + np.pi):
            pose = self.arm.solve(
                np.append(xy_m, GRASP_Z_M), tool, self.arm.guess(xy_m, heading), jaw_heading_rad=heading
            )
            if pose.error_m < 0.002 and pose.upright > 0.97:
                options.append((float(np.abs(pose.joints_rad - motion.joints_rad).max()), heading))
        if not options:
            raise Abandon("the boat is out of reach")
        return min(options)[1]

    def _approach(self, motion: BlendedMotion, offset_m: np.ndarray, turn_rad: float, depth: float) -> float:
        """Open the jaws around the cabin (shifted and turned for a miss). Returns the jaws' heading.

        Raises:
            Abandon: the boat lies on its side or out of reach.
        """
        position, rotation = self._boat()
        if rotation[2, 2] < 0.9:
            raise Abandon("boat tipped over")
        cabin_xy = (position + rotation @ CABIN_IN_BOAT_M)[:2] + offset_m
        tool = np.array([FIXED_FACE_X_M + CABIN_HALF_M + CLEARANCE_M, 0.0, TIP_Z_M])
        across = float(np.arctan2(rotation[1, 1], rotation[0, 1])) + turn_rad
        heading = self._grasp_pose(motion, cabin_xy, across, tool)
        grasp_m = np.append(cabin_xy, GRASP_Z_M)
        above_m = grasp_m + HOVER_M * UP
        tip_m, _ = self.arm.tool(motion.joints_rad, tool)
        if tip_m[2] < above_m[2] - 0.01:  # low, after a miss: rise before crossing the boat
            motion.line(
                np.append(tip_m[:2], above_m[2]),
                tool,
                jaw_heading_rad=None,
                jaw_deg=OPEN_DEG,
                speed_deg_s=NEAR_DEG_S,
                pieces=2,
                vertical_weight=TILT_ALLOWED,
            )
        above: ArmPose = self.arm.solve(
            above_m, tool, self.arm.guess(cabin_xy, heading), jaw_heading_rad=heading, vertical_weight=TILT_ALLOWED
        )
        motion.move(above.joints_rad, OPEN_DEG, FREE_DEG_S)
        goal_m = above_m + depth * (grasp_m - above_m)
        motion.line(goal_m, tool, jaw_heading_rad=heading, jaw_deg=OPEN_DEG, speed_deg_s=NEAR_DEG_S, pieces=3)
        return heading

    def _miss(self, motion: BlendedMotion) -> None:
        """Go down beside the boat, perhaps close the jaws on nothing. Not taught; what follows is."""
        rng = self._rng
        assert rng is not None
        motion.recording = False
        angle, radius_m = rng.uniform(-np.pi, np.pi), rng.uniform(0.008, 0.035)
        offset_m = radius_m * np.array([np.cos(angle), np.sin(angle)])
        self._approach(motion, offset_m, turn_rad=rng.uniform(-0.7, 0.7), depth=rng.uniform(0.3, 1.0))
        if rng.random() < 0.5:
            motion.move(motion.joints_rad, CLOSED_DEG, NEAR_DEG_S)
        motion.recording = True

    def _pick(self, motion: BlendedMotion) -> bool:
        """Grasp by the cabin and lift. Returns whether the boat came along."""
        heading = self._approach(motion, self._jitter(0.001, 2), float(self._jitter(0.04, 1)[0]), depth=1.0)
        motion.steadiness = PRECISE
        closing = np.array([FIXED_FACE_X_M + CABIN_HALF_M, 0.0, TIP_Z_M])
        cabin_m, _ = self.arm.tool(motion.joints_rad, closing + [CLEARANCE_M, 0.0, 0.0])
        # The arm carries the fixed jaw to the cabin while the other one closes: both touch it at about the same time.
        closed = self.arm.solve(cabin_m, closing, motion.joints_rad, jaw_heading_rad=heading)
        motion.move(closed.joints_rad, CLOSED_DEG, NEAR_DEG_S)
        motion.stay(3)  # within the blend: the jaws are still closing
        motion.line(
            cabin_m + LIFT_M * UP,
            closing,
            jaw_heading_rad=heading,
            jaw_deg=CLOSED_DEG,
            speed_deg_s=NEAR_DEG_S,
            pieces=3,
            vertical_weight=TILT_ALLOWED,
        )
        motion.steadiness = 1.0
        return self._boat()[0][2] > MIN_LIFTED_M

    def _place(self, motion: BlendedMotion) -> None:
        """Carry the boat over the disk and lower it until its keel all but touches.

        Raises:
            Abandon: the boat hangs in the hand so that the disk cannot be reached.
        """
        gripper = self.env.scene.model.body("gripper").id
        rotation = self.env.data.xmat[gripper].reshape(3, 3)
        keel = rotation.T @ (self._boat()[0] - self.env.data.xpos[gripper])  # where the hand holds the boat
        goal_xy = self._disk_xy + self._jitter(0.003, 2)
        start_rad = np.append(
            self.arm.guess(goal_xy, 0.0)[:4], motion.joints_rad[4]
        )  # placed at any yaw: keep the roll
        touch_m = np.append(goal_xy, self.env.scene.protocol.disk_top_m + TOUCH_M)
        over_m = np.append(goal_xy, CARRY_KEEL_M)
        over = self.arm.solve(over_m, keel, start_rad, jaw_heading_rad=None, vertical_weight=OVER_DISK_TILT)
        down = self.arm.solve(touch_m, keel, over.joints_rad, jaw_heading_rad=None)
        if over.error_m > 0.010 or down.error_m > 0.004 or down.upright < 0.97:
            raise Abandon("the disk is out of reach")
        motion.move(over.joints_rad, CLOSED_DEG, FREE_DEG_S)
        if self._boat()[0][2] < MIN_CARRIED_M:
            return
        motion.steadiness = PRECISE
        for height_m, speed_deg_s, pieces in ((0.010, NEAR_DEG_S, 1), (0.0, LOWER_DEG_S, 2)):
            motion.line(
                touch_m + height_m * UP,
                keel,
                jaw_heading_rad=None,
                jaw_deg=CLOSED_DEG,
                speed_deg_s=speed_deg_s,
                pieces=pieces,
            )

    def _retreat(self, motion: BlendedMotion) -> None:
        """Open, taking the fixed jaw off the boat as well, rise, and go home."""
        tip = np.array([FIXED_FACE_X_M, 0.0, TIP_Z_M])
        tip_m, rotation = self.arm.tool(motion.joints_rad, tip)
        jaw_axis = rotation[:, 0].copy()
        heading = float(np.arctan2(jaw_axis[1], jaw_axis[0]))
        free_m = tip_m - CLEARANCE_M * jaw_axis
        opened = self.arm.solve(free_m, tip, motion.joints_rad, jaw_heading_rad=heading)
        motion.move(opened.joints_rad, OPEN_DEG, NEAR_DEG_S)
        motion.line(
            free_m + HOVER_M * UP,
            tip,
            jaw_heading_rad=heading,
            jaw_deg=OPEN_DEG,
            speed_deg_s=NEAR_DEG_S,
            pieces=3,
            vertical_weight=TILT_ALLOWED,
        )
        motion.steadiness = 1.0
        motion.move(np.deg2rad(self._home_deg[:5]), self._home_deg[5], FREE_DEG_S)
        motion.stay(BLEND_TICKS + 2)
