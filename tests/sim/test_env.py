"""The environment: determinism, one clock, episode ends, shared scene."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from vla_rl.errors import ConfigError
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.gl import mujoco

ROOT = Path(__file__).resolve().parents[2]
MakeEnv = Callable[..., BoatToDisk]


def wave(env: BoatToDisk, chunk: int) -> np.ndarray:
    """A chunk that swings the arm about home, in degrees."""
    ticks = np.arange(env.execute_ticks) + chunk * env.execute_ticks
    return np.array(env.scene.protocol.home_deg) + 8.0 * np.sin(ticks / 9.0)[:, None]


def fingerprint(env: BoatToDisk, seed: int) -> str:
    """Digest of the physics state and of every picture of a short episode."""
    observation, _ = env.reset(seed=seed)
    digest = hashlib.sha256(observation["top"].tobytes() + observation["wrist"].tobytes())
    for chunk in range(2):
        observation, *_ = env.step(wave(env, chunk))
        digest.update(env.data.qpos.tobytes() + env.data.qvel.tobytes() + observation["state"].tobytes())
        digest.update(observation["top"].tobytes() + observation["wrist"].tobytes())
    return digest.hexdigest()


def test_gymnasium_accepts_the_environment(make_env: MakeEnv) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its advice about symmetric actions does not fit joint ranges
        check_env(make_env(image_px=32), skip_render_check=False)


def test_same_seed_same_bits_and_same_pictures_in_a_new_process(make_env: MakeEnv) -> None:
    code = (
        "from tests.sim.conftest import SETTINGS; from tests.sim.test_env import BoatToDisk, fingerprint;"
        "print(fingerprint(BoatToDisk(**SETTINGS), 301))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    digests = {child.communicate(timeout=120)[0].strip() for child in children}
    env = make_env()
    fingerprint(env, 302)  # an earlier episode leaves no trace
    assert digests == {fingerprint(env, 301)}
    assert fingerprint(env, 302) not in digests


def test_environments_share_one_model_and_do_not_disturb_each_other(make_env: MakeEnv) -> None:
    alone = fingerprint(make_env(), 303)
    env, other = make_env(), make_env()
    assert env.scene is other.scene and env.data is not other.data
    env.reset(seed=303)
    other.reset(seed=304)
    for chunk in range(2):
        other.step(wave(other, chunk + 5))
        env.step(wave(env, chunk))
    qpos = env.data.qpos.copy()
    assert fingerprint(env, 303) == alone
    np.testing.assert_array_equal(qpos, env.data.qpos)


def test_a_chunk_of_thirty_ticks_takes_exactly_one_second(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=300)
    before = env.data.time
    _, reward, terminated, truncated, info = env.step(wave(env, 0))
    assert env.data.time - before == pytest.approx(1.0, abs=1e-12)
    assert (reward, terminated, truncated, info["ticks"]) == (0.0, False, False, 30)


def test_the_boat_is_where_the_spawn_says_and_the_arm_at_home(make_env: MakeEnv) -> None:
    env = make_env()
    for seed in range(300, 320):
        spawn = env.begin(seed)
        xy = env.data.qpos[env.scene.boat_qpos :][:2]
        np.testing.assert_allclose(xy, (spawn.x_m, spawn.y_m), atol=2e-4)
        np.testing.assert_allclose(env.state_deg, env.scene.protocol.home_deg, atol=0.05)
        metrics = env.metrics()
        assert metrics.reset_strikes == 0 and abs(metrics.final_z_mm) < 0.5 and metrics.final_upright > 0.9999


def test_the_arm_goes_where_it_is_told_in_degrees(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=300)
    target_deg = np.array([15.0, -80.0, 40.0, 60.0, 30.0, 40.0])
    observation, *_ = env.step(np.tile(target_deg, (30, 1)))
    np.testing.assert_allclose(observation["state"], target_deg, atol=0.5)


def test_the_episode_is_truncated_inside_a_chunk(make_env: MakeEnv) -> None:
    env = make_env(max_ticks=40)
    env.reset(seed=300)
    env.step(wave(env, 0))
    *_, terminated, truncated, info = env.step(wave(env, 1))
    assert (terminated, truncated, info["ticks"]) == (False, True, 40)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(wave(env, 2))


def put_boat(env: BoatToDisk, xyz_m: tuple[float, float, float], roll_rad: float = 0.0) -> None:
    p, half = env.scene.boat_qpos, roll_rad / 2
    env.data.qpos[p : p + 7] = [*xyz_m, np.cos(half), np.sin(half), 0.0, 0.0]
    env.data.qvel[env.scene.boat_qvel :][:6] = 0.0


def test_a_boat_set_on_the_disk_passes_both_tests(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=300)
    put_boat(env, (0.22, 0.11, 0.0125))
    hold = np.tile(env.scene.protocol.home_deg, (30, 1))
    *_, terminated, truncated, info = env.step(hold)
    metrics = env.metrics()
    assert terminated and not truncated and metrics.success and metrics.success_documented
    assert metrics.strict_tick == info["ticks"] - 1 and 15 <= info["ticks"] < 30


@pytest.mark.parametrize(("stop", "ticks"), [(True, 15), (False, 30)])
def test_a_hopeless_episode_stops_only_when_asked_to(make_env: MakeEnv, stop: bool, ticks: int) -> None:
    env = make_env(stop_hopeless=stop)
    env.reset(seed=300)
    put_boat(env, (0.24, -0.1, 0.016), roll_rad=np.pi / 2)
    *_, terminated, _, info = env.step(np.tile(env.scene.protocol.home_deg, (30, 1)))
    assert (terminated, info["ticks"]) == (stop, ticks) and env.metrics().hopeless


def test_wrong_actions_are_refused(make_env: MakeEnv) -> None:
    env = make_env()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(wave(env, 0))
    env.reset(seed=300)
    with pytest.raises(ValueError, match="finite"):
        env.step(np.full((30, 6), np.nan))
    with pytest.raises(ValueError, match="30"):
        env.step(wave(env, 0)[:29])


@pytest.mark.parametrize(
    "override",
    [
        {"terminate_on": "success"},
        {"execute_ticks": 31},
        {"execute_ticks": 0},
        {"max_ticks": 0},
        {"image_px": 0},
        {"protocol": "sim9"},
    ],
)
def test_wrong_settings_are_refused(make_env: MakeEnv, override: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        make_env(**override)


def test_both_cameras_see_the_boat(make_env: MakeEnv) -> None:
    """Hiding the boat changes pixels of the top picture for every spawn, and the boat is not drawn as one dot."""
    env = make_env()
    for seed in (300, 305, 310):
        env.begin(seed)
        seen = env.get_frame("top", 112, 112).astype(int)
        put_boat(env, (2.0, 0.0, 0.001))
        mujoco.mj_forward(env.scene.model, env.data)
        hidden = env.get_frame("top", 112, 112).astype(int)
        assert (np.abs(seen - hidden).max(axis=2) > 20).sum() > 100
