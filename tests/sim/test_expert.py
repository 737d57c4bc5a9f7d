"""The scripted expert: it succeeds, goes by the world alone, never stands still, and its demonstrations are clean."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.sim.conftest import PLAIN_LOOK
from vla_rl.sim.demonstration import NOISE_MEMORY
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.expert import DemoNoise, ExpertEpisode, ScriptedExpert
from vla_rl.sim.ik import ArmKinematics
from vla_rl.sim.pace import JAW_DEG_S
from vla_rl.sim.phases import Phase
from vla_rl.sim.scene import shared_scene

MIX = DemoNoise(noisy_share=0.5, noise_deg=(0.5, 2.0), start_jitter_deg=3.0, miss_share=0.35)
NOISY = DemoNoise(noisy_share=1.0, noise_deg=(0.5, 2.0), start_jitter_deg=3.0, miss_share=0.0)
MISSING = DemoNoise(noisy_share=0.0, noise_deg=(0.5, 2.0), start_jitter_deg=3.0, miss_share=1.0)
# Largest change of a target's speed from one tick to the next, in degrees per tick.
SMOOTH_DEG = 3.0
MakeEnv = Callable[..., BoatToDisk]


@pytest.fixture
def expert(make_env: MakeEnv) -> ScriptedExpert:
    return ScriptedExpert(make_env(terminate_on="never"))


def clean(expert: ScriptedExpert, seed: int) -> ExpertEpisode:
    return expert.run(seed, noise=None, record_every=5, render=False)


def test_it_places_the_boat_and_passes_both_tests(expert: ScriptedExpert) -> None:
    for seed in (300, 317, 333, 351, 399):
        episode = clean(expert, seed)
        metrics = episode.metrics
        assert episode.ok and metrics.success_documented and metrics.success_strict, (seed, episode.fail)
        assert metrics.lifted and metrics.final_cm < 1.5 and metrics.ticks < 160 and not metrics.tipped
        assert metrics.strict_tick is not None and metrics.strict_tick < 125
        assert len(episode.trace) == metrics.ticks + 1 and len(episode.phases) == metrics.ticks
        assert episode.trace[0].distance_m * 100 == pytest.approx(metrics.initial_cm)
        assert episode.trace[-1].distance_m * 100 == pytest.approx(metrics.final_cm)


@pytest.mark.slow
def test_it_succeeds_on_at_least_95_of_the_development_seeds(expert: ScriptedExpert) -> None:
    episodes = [clean(expert, seed) for seed in range(300, 400)]
    assert sum(episode.metrics.success_documented for episode in episodes) >= 95
    assert sum(episode.metrics.success_strict for episode in episodes) >= 95
    assert np.mean([len(episode.targets_deg) for episode in episodes]) < 142
    assert max(longest_pause(episode) for episode in episodes) == 0


def test_it_repeats_itself_bit_for_bit_with_and_without_noise(expert: ScriptedExpert, make_env: MakeEnv) -> None:
    other = ScriptedExpert(make_env(terminate_on="success_strict"))
    for noise in (None, MIX):
        first = expert.run(100301, noise=noise, record_every=5, render=False)
        second = other.run(100301, noise=noise, record_every=5, render=False)
        np.testing.assert_array_equal(first.targets_deg, second.targets_deg)
        np.testing.assert_array_equal(first.observations[-1].state_deg, second.observations[-1].state_deg)


def test_its_targets_replayed_in_open_loop_chunks_do_the_same(expert: ScriptedExpert, make_env: MakeEnv) -> None:
    episode = clean(expert, 302)
    env = make_env(terminate_on="success_strict")
    env.reset(seed=302)
    padded = np.concatenate([episode.targets_deg, np.repeat(episode.targets_deg[-1:], 30, axis=0)])
    for start in range(0, len(episode.targets_deg), 30):
        _, _, terminated, _, _ = env.step(padded[start : start + 30])
        if terminated:
            break
    assert env.metrics().strict_tick == episode.metrics.strict_tick
    assert env.metrics().success_tick == episode.metrics.success_tick


def longest_pause(episode: ExpertEpisode) -> int:
    """Most ticks in a row in which no target changes by 0.1 degrees."""
    moved_deg = np.abs(np.diff(episode.targets_deg, axis=0)).max(axis=1)
    return max((len(list(run)) for paused, run in itertools.groupby(moved_deg < 0.1) if paused), default=0)


def test_it_moves_in_every_tick_until_it_is_home(expert: ScriptedExpert) -> None:
    """A greedy policy stalls where its teacher waits."""
    for seed in (300, 305, 310):
        targets_deg = clean(expert, seed).targets_deg
        assert (np.abs(np.diff(targets_deg, axis=0)).max(axis=1) > 0.5).all()
        assert np.abs(targets_deg[-1] - expert.env.scene.protocol.home_deg).max() < 1.0


def test_targets_are_smooth_and_slow_enough_for_a_servo(expert: ScriptedExpert) -> None:
    for seed in (304, 324):
        targets_deg = clean(expert, seed).targets_deg
        assert np.abs(np.diff(targets_deg, axis=0)).max() <= JAW_DEG_S / 30 + 1e-9
        assert np.abs(np.diff(targets_deg, 2, axis=0)).max() <= SMOOTH_DEG


@pytest.fixture(scope="module")
def demonstrations() -> list[ExpertEpisode]:
    env = BoatToDisk(
        protocol="sim100b",
        image_px=32,
        chunk_ticks=30,
        max_ticks=900,
        terminate_on="never",
        stop_hopeless=False,
        look=PLAIN_LOOK,
    )
    expert = ScriptedExpert(env)
    return [expert.run(seed, noise=MIX, record_every=7, render=seed < 100404) for seed in range(100400, 100420)]


def test_most_disturbed_demonstrations_are_kept(demonstrations: list[ExpertEpisode]) -> None:
    assert sum(episode.ok for episode in demonstrations) >= 18
    assert {episode.noisy for episode in demonstrations} == {True, False}
    assert {episode.missed for episode in demonstrations} == {True, False}


def test_frames_come_every_seventh_trainable_tick_with_a_random_phase(demonstrations: list[ExpertEpisode]) -> None:
    phases = set()
    for episode in demonstrations:
        ticks = [frame.tick for frame in episode.observations]
        assert len(episode.trainable_T) == len(episode.targets_deg)
        assert all(episode.trainable_T[tick] for tick in ticks)
        phases |= {tick % 7 for tick in ticks}
        assert len({tick % 7 for tick in ticks}) <= 1
    assert len(phases) > 3


def test_pictures_are_stored_when_asked_for(demonstrations: list[ExpertEpisode]) -> None:
    for index, episode in enumerate(demonstrations):
        for frame in episode.observations:
            if index < 4:
                assert frame.frames is not None and frame.frames.shape == (2, 32, 32, 3)
                assert frame.frames.dtype == np.uint8
            else:
                assert frame.frames is None


def test_a_deliberate_miss_is_not_stored_but_its_recovery_is(demonstrations: list[ExpertEpisode]) -> None:
    missed = [episode for episode in demonstrations if episode.missed and episode.ok]
    assert missed
    for episode in missed:
        first = int(np.argmax(episode.trainable_T))
        assert first > 20 and episode.observations[0].tick >= first
        # It begins low, beside the boat, and every later tick is taught until the boat is placed.
        assert episode.trainable_T[first : first + 45].all()
    straight = [episode for episode in demonstrations if not episode.missed and episode.ok]
    assert all(episode.trainable_T[0] for episode in straight)


def test_noise_disturbs_what_is_executed_but_not_what_is_taught(demonstrations: list[ExpertEpisode]) -> None:
    for episode in (episode for episode in demonstrations if episode.ok):
        assert np.abs(np.diff(episode.targets_deg, axis=0)).max() <= JAW_DEG_S / 30 + 1e-9
        gap_deg = max(np.abs(f.state_deg[:5] - episode.targets_deg[f.tick, :5]).max() for f in episode.observations)
        assert not episode.noisy or gap_deg > 0.5


def test_teaching_ends_soon_after_the_boat_is_placed(demonstrations: list[ExpertEpisode]) -> None:
    for episode in demonstrations:
        if episode.ok and episode.metrics.strict_tick is not None:
            last = int(np.flatnonzero(episode.trainable_T)[-1])
            assert episode.metrics.strict_tick <= last <= episode.metrics.strict_tick + 15


def test_noise_is_as_large_as_asked_for_and_small_while_grasping(make_env: MakeEnv) -> None:
    env = make_env(terminate_on="never")
    executed: list[np.ndarray] = []
    tick = env.tick
    env.tick = lambda target_deg: (executed.append(target_deg), tick(target_deg))[1]  # type: ignore[method-assign]
    noise = DemoNoise(noisy_share=1.0, noise_deg=(1.5, 1.5), start_jitter_deg=0.0, miss_share=0.0)
    free, precise = [], []
    for seed in range(100420, 100426):
        executed.clear()
        episode = ScriptedExpert(env).run(seed, noise=noise, record_every=1_000_000, render=False)
        off_deg = np.array(executed) - episode.targets_deg
        is_free = np.array([phase in (Phase.APPROACH, Phase.HOME) for phase in episode.phases])
        free.append(off_deg[is_free])
        precise.append(off_deg[[phase is Phase.LOWER for phase in episode.phases]])
    assert np.concatenate(free).std() == pytest.approx(1.5, rel=0.25)
    assert np.concatenate(precise).std() == pytest.approx(0.6, rel=0.4)
    step = np.concatenate([rows[1:] - NOISE_MEMORY * rows[:-1] for rows in free])
    assert step.std() == pytest.approx(1.5 * np.sqrt(1 - NOISE_MEMORY**2), rel=0.3)


def test_a_miss_goes_beside_the_boat_and_is_recovered_from(expert: ScriptedExpert) -> None:
    """Jaws that shut beside the boat may happen to hold it: then it is lifted as it is."""
    begun_with = []
    for seed in range(100440, 100446):
        episode = expert.run(seed, noise=MISSING, record_every=5, render=False)
        first = int(np.argmax(episode.trainable_T))
        assert episode.missed and episode.ok and first > 20
        begun_with.append(episode.phases[first])
    assert set(begun_with) <= {Phase.RISE, Phase.APPROACH, Phase.LET_GO, Phase.LIFT}
    assert sum(phase in (Phase.RISE, Phase.APPROACH) for phase in begun_with) >= 3


def test_inverse_kinematics_reaches_the_work_area_with_the_tool_down() -> None:
    arm = ArmKinematics(shared_scene("sim100b"))
    tool = np.array([0.0, 0.0, -0.0975])
    for x_m in (0.195, 0.27):
        for y_m in (-0.005, 0.04, 0.11):
            for heading in (0.2, 0.8):
                if (x_m, y_m) == (0.27, 0.11):
                    continue  # beyond the disk: out of reach with the tool down
                goal_m = np.array([x_m, y_m, 0.03])
                pose = arm.solve(goal_m, tool, arm.guess(goal_m[:2], heading), jaw_heading_rad=heading)
                position, rotation = arm.tool(pose.joints_rad, tool)
                assert pose.error_m < 1e-3 and pose.upright > 0.99
                np.testing.assert_allclose(position, goal_m, atol=1e-3)
                assert rotation[:2, 0] @ [np.cos(heading), np.sin(heading)] > 0.99


def test_inverse_kinematics_says_how_far_off_it_is_out_of_reach() -> None:
    arm = ArmKinematics(shared_scene("sim100b"))
    goal_m = np.array([0.8, 0.0, 0.03])
    pose = arm.solve(goal_m, np.zeros(3), arm.guess(goal_m[:2], 0.0), jaw_heading_rad=None)
    position, _ = arm.tool(pose.joints_rad, np.zeros(3))
    assert pose.error_m > 0.2 and pose.error_m == pytest.approx(float(np.linalg.norm(goal_m - position)))
