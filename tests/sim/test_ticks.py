"""The task a tick a step is the task a chunk a step, with LeRobot's names and both success tests."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import vla_rl.sim
from vla_rl.errors import ConfigError
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.expert import ScriptedExpert
from vla_rl.sim.metrics import EpisodeMetrics
from vla_rl.sim.registration import ENV_ID, TICKS_ID, make, make_ticks
from vla_rl.sim.ticks import BoatToDiskTicks

SEED = 300


def played(env: BoatToDiskTicks, targets_deg: np.ndarray, ticks: int) -> tuple[dict, list[float], list[dict]]:
    """Targets, the last one held, until the episode ends or so many ticks: last flags, rewards, infos."""
    env.reset(seed=SEED)
    rewards, infos = [], []
    for tick in range(ticks):
        _, reward, terminated, truncated, info = env.step(targets_deg[min(tick, len(targets_deg) - 1)])
        rewards.append(reward)
        infos.append(info)
        if terminated or truncated:
            break
    return {"terminated": terminated, "truncated": truncated}, rewards, infos


@pytest.fixture(scope="module")
def expert() -> tuple[np.ndarray, EpisodeMetrics]:
    """The scripted expert's targets and metrics; its episode goes on after success."""
    episode = ScriptedExpert(make(image_px=16)).run(SEED, noise=None, record_every=10_000, render=False)
    return episode.targets_deg, episode.metrics


def test_gymnasiums_checker_accepts_the_task_tick_by_tick() -> None:
    env = gymnasium.make(TICKS_ID, image_px=32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its advice about symmetric actions does not fit joint ranges
        check_env(env.unwrapped, skip_render_check=False)


@pytest.mark.parametrize("protocol", ["sim100b", "sim100-spawn2-h10"])
def test_a_seed_is_the_same_episode_in_chunks_and_in_ticks_bit_for_bit(protocol: str) -> None:
    chunked, ticked = (make_one(protocol=protocol, image_px=24) for make_one in (make, make_ticks))
    rng = np.random.default_rng(0)
    space = chunked.action_space
    seen, _ = chunked.reset(seed=SEED)
    ticked_seen, info = ticked.reset(seed=SEED)
    assert (info["seed"], info["ticks"], info["is_success"]) == (SEED, 0, False)
    for _ in range(2):
        for camera in ("top", "wrist"):
            assert np.array_equal(seen[camera], ticked_seen["pixels"][camera])
        assert np.array_equal(seen["state"].astype(np.float32), ticked_seen["agent_pos"])
        corners = rng.uniform(space.low[0], space.high[0], (2, 6))
        chunk = np.linspace(*corners, len(space.low))
        seen, *_ = chunked.step(chunk)
        for target in chunk:
            ticked_seen, _, _, _, info = ticked.step(target)
    assert ticked.metrics() == chunked.metrics() and info["ticks"] == chunked.ticks == 2 * len(space.low)
    assert ticked.describe() == chunked.describe()


def test_success_is_the_strict_test_and_is_paid_once(expert: tuple[np.ndarray, EpisodeMetrics]) -> None:
    targets, metrics = expert
    flags, rewards, infos = played(make_ticks(image_px=16), targets, len(targets))
    assert flags == {"terminated": True, "truncated": False} and metrics.strict_tick is not None
    assert len(rewards) == metrics.strict_tick + 1 and rewards == [0.0] * metrics.strict_tick + [1.0]
    assert [info["is_success"] for info in infos] == [reward == 1.0 for reward in rewards]
    first = next(tick for tick, info in enumerate(infos) if info["is_success_documented"])
    assert first == metrics.success_tick


def test_success_stays_and_is_paid_once_where_it_does_not_end_the_episode(
    expert: tuple[np.ndarray, EpisodeMetrics],
) -> None:
    targets, metrics = expert
    env = make_ticks(image_px=16, terminate_on="never", max_ticks=len(targets))
    flags, rewards, infos = played(env, targets, len(targets))
    assert flags["truncated"] and sum(rewards) == 1.0 and infos[-1]["is_success"]
    assert rewards.index(1.0) == metrics.strict_tick < len(rewards) - 1


def test_a_boat_that_is_still_held_passes_the_documented_test_alone(
    expert: tuple[np.ndarray, EpisodeMetrics],
) -> None:
    targets, metrics = expert
    assert metrics.success_tick is not None
    env = make_ticks(image_px=16, max_ticks=metrics.success_tick + 60)
    flags, rewards, infos = played(env, targets[: metrics.success_tick + 1], 900)
    assert flags == {"terminated": False, "truncated": True} and not any(rewards)
    assert (infos[-1]["is_success"], infos[-1]["is_success_documented"]) == (False, True)


def test_seeds_of_other_bands_are_refused_where_a_use_is_named() -> None:
    env = make_ticks(image_px=16, seeds_for="eval")
    with pytest.raises(ConfigError, match="seed 100003 may not be used for eval"):
        env.reset(seed=100003)
    env.reset(seed=SEED)
    make_ticks(image_px=16).reset(seed=100003)


def test_what_is_no_target_and_a_step_without_an_episode_are_refused() -> None:
    env = make_ticks(image_px=16, max_ticks=1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(6))
    env.reset(seed=SEED)
    for action in (np.zeros(5), np.zeros((30, 6)), np.full(6, np.nan)):
        with pytest.raises(ValueError, match="finite degrees"):
            env.step(action)
    assert env.step(np.zeros(6))[3]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(6))


def test_it_has_what_lerobots_evaluation_asks_an_environment_for() -> None:
    env = make_ticks(image_px=16, max_ticks=77, task="stack it", render_px=40)
    assert (env.task, env.task_description, env.get_wrapper_attr("_max_episode_steps")) == ("stack it", "stack it", 77)
    assert env.metadata["render_fps"] == 30 and isinstance(env.world, BoatToDisk)
    env.reset(seed=SEED)
    assert env.render().shape == (40, 40, 3)
    with pytest.raises(ConfigError, match="no setting 'protcol'"):
        gymnasium.make(TICKS_ID, protcol="sim100")


def test_neither_torch_nor_lerobot_nor_a_policy_is_imported_for_it() -> None:
    heavy = "('torch', 'lerobot', 'transformers', 'vla_rl.policy')"
    code = f"import sys, vla_rl.sim.ticks; print([m for m in sys.modules if m.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]" and {ENV_ID, TICKS_ID} == {vla_rl.sim.ENV_ID, vla_rl.sim.TICKS_ID}
