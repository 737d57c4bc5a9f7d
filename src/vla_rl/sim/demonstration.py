"""A demonstration: how it is disturbed, and what is kept of it.

In: the disturbance's settings and an episode's ticks, one by one. Out: `ExpertEpisode`. Which targets to command is not
decided here (`expert`); storing episodes is not either (`vla_rl.sft`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_rl import seeds
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.frames import CAMERAS
from vla_rl.sim.metrics import STRICT_TICKS, EpisodeMetrics, TickSample
from vla_rl.sim.phases import Phase
from vla_rl.sim.poses import Abandon

NOISE_MEMORY = 0.9
PRECISE = 0.4  # share of the noise that is left while grasping and placing
PRECISE_PHASES = (Phase.CLOSE, Phase.LIFT, Phase.LOWER, Phase.RELEASE, Phase.WITHDRAW)
# Going for the boat again after one of the others, with jaws that had shut, means that an attempt has failed.
SHUT_DEG = 10.0
ANEW = (Phase.LET_GO, Phase.RISE, Phase.APPROACH)
GRASPED = (Phase.CLOSE, Phase.LIFT, Phase.TRAVERSE, Phase.LOWER, Phase.RELEASE, Phase.WITHDRAW, Phase.HOME)
# Teaching goes on this long after the strict test: the policy must learn to leave, not to wait at home.
STRICT_TAIL_TICKS = 10


@dataclass(frozen=True)
class DemoNoise:
    """How demonstrations are disturbed.

    Attributes:
        noisy_share: share of episodes with noise on the executed targets and a jittered start pose.
        noise_deg: range of the noise's standard deviation in degrees (drawn once an episode).
        start_jitter_deg: standard deviation of the start pose around home.
        miss_share: share of episodes that begin with a deliberate miss, for the recovery from it.
    """

    noisy_share: float
    noise_deg: tuple[float, float]
    start_jitter_deg: float
    miss_share: float


@dataclass(frozen=True)
class Miss:
    """Where a deliberate miss goes: beside the boat and turned, part of the way down, perhaps closing the jaws."""

    offset_m: tuple[float, float]
    turn_rad: float
    depth: float
    closes: bool


@dataclass(frozen=True)
class Disturbance:
    """What `DemoNoise` comes to in one episode.

    Attributes:
        noisy: whether targets are executed with noise.
        noise_deg: its standard deviation.
        start_deg: [6], offset of the start pose.
        miss: the deliberate miss, or None.
        first_tick: the first recorded tick.
        rng: source of the noise; None without any disturbance.
    """

    noisy: bool
    noise_deg: float
    start_deg: np.ndarray
    miss: Miss | None
    first_tick: int
    rng: np.random.Generator | None

    @staticmethod
    def drawn(noise: DemoNoise | None, seed: int, record_every: int) -> Disturbance:
        """Draw from stream ``demo-expert`` of the environment seed; nothing is drawn without `noise`."""
        if noise is None:
            return Disturbance(False, 0.0, np.zeros(6), None, 0, None)
        rng = seeds.stream("demo-expert", seed)
        noisy, missed = bool(rng.random() < noise.noisy_share), bool(rng.random() < noise.miss_share)
        first_tick = int(rng.integers(record_every))
        start_deg, noise_deg, miss = np.zeros(6), 0.0, None
        if noisy:
            start_deg = rng.normal(0.0, noise.start_jitter_deg, 6)
            noise_deg = float(rng.uniform(*noise.noise_deg))
        if missed:
            angle, radius_m = rng.uniform(-np.pi, np.pi), rng.uniform(0.008, 0.035)
            offset_m = (float(radius_m * np.cos(angle)), float(radius_m * np.sin(angle)))
            turn_rad, depth, closes = rng.uniform(-0.7, 0.7), rng.uniform(0.3, 1.0), bool(rng.random() < 0.5)
            # Jaws that close half way down tip the boat over by its roof.
            miss = Miss(offset_m, float(turn_rad), 1.0 if closes else float(depth), closes)
        return Disturbance(noisy, noise_deg, start_deg, miss, first_tick, rng)


@dataclass(frozen=True)
class DemoFrame:
    """Seen before `tick`: frames uint8 [2, H, W, 3] ordered as `CAMERAS` (None: not rendered), state_deg [6]."""

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
        phases: [T], what the expert was about.
        trace: [T + 1], the world after each tick; the settled state comes first.
        metrics: the episode's metrics.
        noisy, missed: how it was disturbed.
    """

    ok: bool
    fail: str | None
    observations: list[DemoFrame]
    targets_deg: np.ndarray
    trainable_T: np.ndarray
    phases: list[Phase]
    trace: list[TickSample]
    metrics: EpisodeMetrics
    noisy: bool
    missed: bool


class Recorder:
    """Executes an episode's targets with its noise and keeps what a learner needs.

    Args:
        env: an episode that has just begun.
        disturbance: of this episode.
        record_every: ticks between stored observations.
        render: store pictures (False: states only).

    Attributes:
        told_deg: [6], the clean target commanded last; None while the servos hold just that.
    """

    def __init__(self, env: BoatToDisk, disturbance: Disturbance, *, record_every: int, render: bool) -> None:
        self._env, self._disturbance = env, disturbance
        self._record_every, self._render = record_every, render
        self.told_deg: np.ndarray | None = None
        self._targets_deg: list[np.ndarray] = []
        self._trainable: list[bool] = []
        self._phases: list[Phase] = []
        self._frames: list[DemoFrame] = []
        self._trace = [env.last_sample]
        self._noise_deg = np.zeros(6)
        self._placed_ticks, self._over, self._attempt = 0, False, 0

    def tick(self, phase: Phase, target_deg: np.ndarray, *, taught: bool = True) -> None:
        """Store a clean target and what was seen before it, then execute it.

        Raises:
            Abandon: the episode has become too long.
            MachineError: this machine cannot render.
        """
        tick, env = len(self._targets_deg), self._env
        if tick >= env.max_ticks:
            raise Abandon("too long")
        if phase in ANEW and self._phases and self._phases[-1] in GRASPED and self._targets_deg[-1][5] < SHUT_DEG:
            self._forget_attempt()
        taught = taught and not self._over
        if taught and tick % self._record_every == self._disturbance.first_tick:
            frames = [env.get_frame(c, env.image_px, env.image_px) for c in CAMERAS] if self._render else None
            self._frames.append(DemoFrame(tick, None if frames is None else np.stack(frames), env.state_deg))
        self._targets_deg.append(target_deg)
        self._trainable.append(taught)
        self._phases.append(phase)
        if not self._disturbance.noisy:
            env.tick(target_deg)
        else:
            self.told_deg = target_deg
            env.tick(target_deg + self._next_noise_deg() * (PRECISE if phase in PRECISE_PHASES else 1.0))
        self._trace.append(env.last_sample)
        self._placed_ticks = self._placed_ticks + 1 if env.last_sample.placed() else 0
        self._over = self._over or self._placed_ticks == STRICT_TICKS + STRICT_TAIL_TICKS

    def episode(self, fail: str | None) -> ExpertEpisode:
        """What was recorded; `fail` says why the expert gave up."""
        metrics = self._env.metrics()
        ok = fail is None and metrics.success_strict and self._trace[-1].placed()
        return ExpertEpisode(
            ok=ok,
            fail=fail or (None if ok else "misplaced"),
            observations=self._frames,
            targets_deg=np.array(self._targets_deg).reshape(-1, 6),
            trainable_T=np.array(self._trainable, dtype=bool),
            phases=self._phases,
            trace=self._trace,
            metrics=metrics,
            noisy=self._disturbance.noisy,
            missed=self._disturbance.miss is not None,
        )

    def _next_noise_deg(self) -> np.ndarray:
        """An Ornstein-Uhlenbeck process of the episode's standard deviation."""
        rng = self._disturbance.rng
        assert rng is not None
        kick_deg = np.sqrt(1.0 - NOISE_MEMORY**2) * self._disturbance.noise_deg * rng.normal(size=6)
        self._noise_deg = NOISE_MEMORY * self._noise_deg + kick_deg
        return self._noise_deg

    def _forget_attempt(self) -> None:
        """A failed attempt teaches nothing: its frames go, its ticks are marked."""
        self._frames = [frame for frame in self._frames if frame.tick < self._attempt]
        self._trainable[self._attempt :] = [False] * (len(self._trainable) - self._attempt)
        self._attempt = len(self._trainable)
