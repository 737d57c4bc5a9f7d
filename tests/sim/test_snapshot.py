"""A snapshot continues bit for bit: physics, metrics and pictures, in the middle of a grasp."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest

from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.expert import ScriptedExpert
from vla_rl.sim.frames import CAMERAS
from vla_rl.sim.metrics import PINCH
from vla_rl.sim.snapshot import EnvSnapshot

MakeEnv = Callable[..., BoatToDisk]


class Recorder(BoatToDisk):
    """Notes every target, and takes a snapshot at one tick."""

    at: int | None = None

    def begin(self, seed, arm_deg=None):
        self.executed: list[np.ndarray] = []
        self.qpos: list[np.ndarray] = []
        return super().begin(seed, arm_deg)

    def tick(self, target_deg):
        ended = super().tick(target_deg)
        self.executed.append(target_deg.copy())
        self.qpos.append(self.data.qpos.copy())
        if self.ticks == self.at:
            self.taken, self.seen = self.snapshot(), pictures(self)
        return ended


def pictures(env: BoatToDisk) -> np.ndarray:
    return np.stack([env.get_frame(camera, 64, 64) for camera in CAMERAS])


@pytest.fixture(scope="module")
def grasp(make_env: MakeEnv) -> Recorder:
    """An episode of the expert, with a snapshot 5 ticks after both jaws first touched the boat."""
    env = make_env(Recorder, terminate_on="never", image_px=64)
    assert isinstance(env, Recorder)
    expert = ScriptedExpert(env)
    expert.run(300, noise=None, record_every=30, render=False)
    env.at = [sample.grip for sample in env.snapshot().trace].index(PINCH) + 5
    expert.run(300, noise=None, record_every=30, render=False)
    assert env.taken.trace[-1].grip == PINCH and env.metrics().success_strict
    return env


def continued(env: BoatToDisk, grasp: Recorder, snapshot: EnvSnapshot) -> list[np.ndarray]:
    """qpos after each remaining target."""
    env.restore(snapshot)
    found = []
    for target_deg in grasp.executed[snapshot_ticks(snapshot) :]:
        env.tick(target_deg)
        found.append(env.data.qpos.copy())
    return found


def snapshot_ticks(snapshot: EnvSnapshot) -> int:
    return len(snapshot.trace) - 1


def test_restored_in_the_middle_of_a_grasp_it_continues_bit_for_bit(grasp: Recorder, make_env: MakeEnv) -> None:
    other = make_env(terminate_on="never", image_px=64)
    other.begin(317)
    other.tick(np.array([20.0, -80.0, 40.0, 60.0, 30.0, 40.0]))  # whatever came before leaves no trace
    snapshot = pickle.loads(pickle.dumps(grasp.taken))
    for env in (other, other):  # twice: restoring does not use the snapshot up
        found = continued(env, grasp, snapshot)
        np.testing.assert_array_equal(found, grasp.qpos[snapshot_ticks(snapshot) :])
        assert env.metrics() == grasp.metrics() and env.seed == 300
        np.testing.assert_array_equal(pictures(env), pictures(grasp))


def test_the_restored_moment_itself_looks_the_same(grasp: Recorder, make_env: MakeEnv) -> None:
    """Also to the expert: positions of bodies are those of the interrupted episode, not recomputed ones."""
    env = make_env(terminate_on="never", image_px=64)
    env.restore(grasp.taken)
    np.testing.assert_array_equal(pictures(env), grasp.seen)
    assert env.ticks == grasp.at and env.last_sample == grasp.taken.trace[-1]
    again = env.snapshot()
    np.testing.assert_array_equal(again.state, grasp.taken.state)
    assert all(np.array_equal(a, b) for a, b in zip(again.derived, grasp.taken.derived, strict=True))


def test_without_the_solvers_warm_start_it_would_drift(grasp: Recorder, make_env: MakeEnv) -> None:
    """The comparison can fail: another warm start, everything else equal, ends elsewhere."""
    env = make_env(terminate_on="never", image_px=64)
    env.restore(grasp.taken)
    env.data.qacc_warmstart[:] = 0.0
    cold = dataclasses.replace(grasp.taken, state=env.scene.integration_state(env.data))
    drift = np.abs(np.array(continued(env, grasp, cold)) - grasp.qpos[snapshot_ticks(cold) :]).max()
    assert drift > 0.0


def test_the_counters_and_the_end_of_the_episode_are_part_of_it(make_env: MakeEnv) -> None:
    env, other = make_env(max_ticks=40, image_px=32), make_env(max_ticks=40, image_px=32)
    env.begin(300)
    home_deg = np.array(env.scene.protocol.home_deg)
    for _ in range(39):
        env.tick(home_deg)
    other.restore(env.snapshot())
    assert not other.truncated and other.tick(home_deg) and other.truncated
    ended = other.snapshot()
    env.restore(ended)
    assert env.truncated
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.tile(home_deg, (30, 1)))


def test_the_disk_of_the_episode_is_part_of_it(make_env: MakeEnv) -> None:
    env, other = make_env(protocol="sim100b-spawn2", image_px=32), make_env(protocol="sim100b-spawn2", image_px=32)
    env.begin(300)
    other.begin(301)
    other.restore(env.snapshot())
    assert other.disk_xy_m == env.disk_xy_m and other.metrics() == env.metrics()


def test_a_snapshot_of_another_scene_or_of_nothing_is_refused(grasp: Recorder, make_env: MakeEnv) -> None:
    with pytest.raises(ValueError, match="scene"):
        make_env(protocol="sim100b-h15").restore(grasp.taken)
    with pytest.raises(gym.error.ResetNeeded):
        make_env().snapshot()
