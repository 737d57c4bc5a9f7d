"""The scripted expert: reads the boat's true pose, picks the boat up by its cabin and places it on the disk.

In: an environment seed and, for demonstrations, how much to disturb. Out: `ExpertEpisode`: joint targets of every tick,
pictures and states to learn from, and the episode's metrics. It acts only through joint targets; nothing is teleported.

It is a feedback law, and the simulator's state is all it goes by: at every tick it looks at the world, tells from that
alone which phase it shows (`phases`), and moves the servos' present target one step of that manoeuvre (`manoeuvres`).
There is no plan, clock or counter. The one thing that it keeps is the target that it last commanded, and that is what
the servos hold, unless noise is added on the way to them; an expert that is put before a running simulation therefore
goes on exactly as the one before it would have.

It is written to be learned by a policy that executes 30-tick chunks open loop: it stands still nowhere, since a greedy
policy stalls wherever its teacher waits. Disturbed demonstrations execute noisy targets but store the clean ones
(M. Laskey et al., "DART: noise injection for robust imitation learning", 2017). The clean targets go on from the clean
ones before, not from the displaced arm: absolute targets lead back by themselves, and a chunk of them then holds
nothing of the noise that is yet to come, which a learner could not predict. Only once the servos have lost the command
for good (an arm that was held or pushed away) does it start again from where the arm is. An episode may also begin with
a deliberate miss, which is not stored; the recovery from it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vla_rl.sim.demonstration import DemoNoise, Disturbance, ExpertEpisode, Miss, Recorder
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.frames import to_degrees
from vla_rl.sim.gl import mujoco
from vla_rl.sim.ik import ArmKinematics
from vla_rl.sim.manoeuvres import STUCK_DEG, Manoeuvres
from vla_rl.sim.phases import CLOSED_DEG, HOVER_M, CabinInHand, Hand, Phase, World, phase
from vla_rl.sim.poses import Abandon

HOME_DEG = 1.0  # the episode ends this near to home
# The command is taken anew from the measured joints once the servos have lost it by this much.
LOST_DEG = 12.0
MISS_TICKS = 90  # a miss that has not come about by then is given up
REACHING = (Phase.RISE, Phase.APPROACH, Phase.DESCEND)


@dataclass(frozen=True)
class Action:
    """What is due: the phase, joint targets float64 [6] in degrees for the next tick, and whether it is the last."""

    phase: Phase
    target_deg: np.ndarray
    last: bool


class ScriptedExpert:
    """Runs episodes in an environment that it is given.

    Args:
        env: the size of its pictures and its `max_ticks` are used; `terminate_on` and `stop_hopeless` are not (the
            expert decides when it is done).
    """

    def __init__(self, env: BoatToDisk) -> None:
        self.env = env
        self.arm = ArmKinematics(env.scene)
        self._manoeuvres = Manoeuvres(self.arm, env.scene.protocol)
        self._home_deg = np.array(env.scene.protocol.home_deg)
        bias = env.scene.model.actuator_biasprm[:6]  # a servo's force: kp (target - angle) - kv velocity
        self._servo_lag_s = bias[:, 2] / bias[:, 1]

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
        disturbance = Disturbance.drawn(noise, seed, record_every)
        start_deg = self._home_deg + disturbance.start_deg
        start_deg[5] = max(start_deg[5], CLOSED_DEG)
        self.env.begin(seed, start_deg if disturbance.noisy else None)
        recorder = Recorder(self.env, disturbance, record_every=record_every, render=render)
        fail = None
        try:
            if disturbance.miss is not None:
                self._miss(recorder, disturbance.miss)
            self.go_on(recorder)
        except Abandon as reason:
            fail = str(reason)
        return recorder.episode(fail)

    def go_on(self, recorder: Recorder) -> None:
        """From whatever state the environment is in until the boat is placed and the arm is home.

        Raises:
            Abandon: the expert cannot go on, or it takes too long.
        """
        finished = False
        while not finished:
            action = self.act(recorder.told_deg)
            recorder.tick(action.phase, action.target_deg)
            finished = action.last

    def act(self, told_deg: np.ndarray | None = None) -> Action:
        """The law itself: what the present state of the environment calls for.

        Args:
            told_deg: [6], the target commanded last; None: the one that the servos hold.

        Raises:
            Abandon: as `Manoeuvres.step`.
        """
        world = self.observe(told_deg)
        due = phase(world)
        step_deg = self._manoeuvres.step(due, world)
        target_deg = world.aim_deg + step_deg
        # Where the boat on its disk stands in the way of home, this is as near as the arm gets.
        near = np.abs(target_deg - self._home_deg).max() < HOME_DEG or np.abs(step_deg).max() < STUCK_DEG
        return Action(due, target_deg, due is Phase.HOME and bool(near or world.lost))

    def observe(self, told_deg: np.ndarray | None = None) -> World:
        """The world of the present moment; arguments as for `act`."""
        env, scene, data = self.env, self.env.scene, self.env.data
        told_deg = to_degrees(data.ctrl[:6]) if told_deg is None else told_deg
        # Where the servos have no pull left: the measured angle, further along by what they trail at this speed.
        led_deg = to_degrees(data.qpos[:6] + self._servo_lag_s * data.qvel[:6])
        lost = np.abs(told_deg - led_deg)[:5].max() > LOST_DEG
        if lost:
            told_deg = np.append(led_deg[:5], told_deg[5])
        boat, velocity = scene.boat_qpos, data.qvel[scene.boat_qvel : scene.boat_qvel + 6]
        rotation = np.empty(9)
        mujoco.mju_quat2Mat(rotation, data.qpos[boat + 3 : boat + 7])
        return World(
            joints_deg=env.state_deg,
            hand=self._hand(env.state_deg),
            aim=self._hand(told_deg),
            aim_deg=told_deg,
            boat_m=data.qpos[boat : boat + 3].copy(),
            boat_rotation=rotation.reshape(3, 3),
            arm_speed=float(np.abs(data.qvel[:6]).max()),
            boat_speed=float(np.abs(velocity).max()),
            lost=bool(lost),
            grip=env.last_sample.grip or 0,
            disk_xy_m=np.array(env.disk_xy_m),
            disk_top_m=scene.protocol.disk_top_m,
        )

    def _hand(self, joints_deg: np.ndarray) -> Hand:
        position_m, rotation = self.arm.tool(np.deg2rad(joints_deg[:5]), np.zeros(3))
        return Hand(position_m, rotation.copy(), float(joints_deg[5]))

    def _miss(self, recorder: Recorder, miss: Miss) -> None:
        """Go for a boat that stands elsewhere, part of the way down. Not taught; what follows is.

        Raises:
            Abandon: it takes too long.
        """
        cos, sin = np.cos(miss.turn_rad), np.sin(miss.turn_rad)
        boat = self.observe(recorder.told_deg)
        elsewhere = {
            "boat_m": boat.boat_m + np.append(miss.offset_m, 0.0),
            "boat_rotation": np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]]) @ boat.boat_rotation,
            "grip": 0,
        }
        for _ in range(MISS_TICKS):
            seen = replace(self.observe(recorder.told_deg), **elsewhere)
            phase_now = phase(seen)
            deep = CabinInHand.seen(seen.aim, seen).above_m < (1.0 - miss.depth) * HOVER_M
            if phase_now not in REACHING or (phase_now is Phase.DESCEND and deep):
                break
            try:
                step_deg = self._manoeuvres.step(phase_now, seen)
            except Abandon:  # nothing can be reached there: miss less
                return
            recorder.tick(phase_now, seen.aim_deg + step_deg, taught=False)
        while miss.closes and (seen := self.observe(recorder.told_deg)).aim.jaw_deg > CLOSED_DEG + 1.0:
            recorder.tick(Phase.CLOSE, seen.aim_deg + self._manoeuvres.close_jaw(seen), taught=False)
