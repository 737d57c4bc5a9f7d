"""The scripted expert: it succeeds, goes by the world alone, never stands still, and its demonstrations are clean."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.sim.conftest import PLAIN_LOOK
from vla_rl.sim.demonstration import NOISE_MEMORY, Disturbance, Recorder
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.expert import DemoNoise, ExpertEpisode, ScriptedExpert
from vla_rl.sim.gl import mujoco
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


def test_a_stored_chunk_leads_the_displaced_arm_back(make_env: MakeEnv) -> None:
    """Executed without noise from where noise has put the arm, the stored targets have it on them within four ticks."""
    env = make_env(terminate_on="never")
    expert, states = ScriptedExpert(env), []
    env.tick = recording_states(env, states)
    gaps_deg = []
    for seed in range(100410, 100414):
        states.clear()
        episode = expert.run(seed, noise=NOISY, record_every=1_000_000, render=False)
        other = make_env(terminate_on="never")
        for tick in range(10, 90, 10):
            restore(other, seed, states[tick])
            before_deg = np.abs(other.state_deg[:5] - episode.targets_deg[tick, :5]).max()
            for target_deg in episode.targets_deg[tick : tick + 4]:
                BoatToDisk.tick(other, target_deg)
            after_deg = np.abs(other.state_deg[:5] - episode.targets_deg[tick + 3, :5]).max()
            gaps_deg.append((before_deg, after_deg))
    before_deg, after_deg = np.array(gaps_deg).T
    assert np.median(before_deg) > 1.5
    assert np.median(after_deg) < 0.8 and np.quantile(after_deg, 0.95) < 2.0


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


# ----------------------------------------------------------------------------------- the law goes by the world alone
def recording_states(env: BoatToDisk, states: list[np.ndarray]) -> Callable[[np.ndarray], bool]:
    """`env.tick` that stores the simulator's integration state before every tick."""
    size = mujoco.mj_stateSize(env.scene.model, mujoco.mjtState.mjSTATE_INTEGRATION)

    def tick(target_deg: np.ndarray) -> bool:
        state = np.empty(size)
        mujoco.mj_getState(env.scene.model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        states.append(state)
        return BoatToDisk.tick(env, target_deg)

    return tick


def restore(env: BoatToDisk, seed: int, state: np.ndarray) -> None:
    """Put a fresh environment into a stored state."""
    env.begin(seed)
    mujoco.mj_setState(env.scene.model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    look_again(env)


def look_again(env: BoatToDisk) -> None:
    """After the state was changed by hand."""
    mujoco.mj_forward(env.scene.model, env.data)
    env._trace.append(env._sample())


def put_boat(env: BoatToDisk, x_m: float, y_m: float, z_m: float, yaw_rad: float) -> None:
    boat, half = env.scene.boat_qpos, yaw_rad / 2
    env.data.qpos[boat : boat + 7] = (x_m, y_m, z_m, np.cos(half), 0.0, 0.0, np.sin(half))
    env.data.qvel[env.scene.boat_qvel : env.scene.boat_qvel + 6] = 0.0
    look_again(env)


def go_on(env: BoatToDisk) -> ExpertEpisode:
    """A fresh expert takes over."""
    recorder = Recorder(env, Disturbance.drawn(None, 0, 1), record_every=1_000_000, render=False)
    ScriptedExpert(env).go_on(recorder)
    return recorder.episode(None)


def snapshots_gone_on(make_env: MakeEnv, seeds: range, per_seed: int) -> tuple[list[bool], np.ndarray]:
    """A fresh expert goes on from random ticks of clean episodes: successes, and the largest difference in degrees of
    the next 30 targets from those of the first one."""
    env, other = make_env(terminate_on="never"), make_env(terminate_on="never")
    expert, states, rng = ScriptedExpert(env), [], np.random.default_rng(3)
    env.tick = recording_states(env, states)
    placed, worst_deg = [], []
    for seed in seeds:
        states.clear()
        episode = clean(expert, seed)
        for tick in rng.integers(0, len(states), per_seed):
            restore(other, seed, states[tick])
            again = go_on(other)
            placed.append(other.last_sample.placed())
            theirs_deg, ours_deg = episode.targets_deg[tick : tick + 30], again.targets_deg[:30]
            length = min(len(theirs_deg), len(ours_deg))
            worst_deg.append(np.abs(theirs_deg[:length] - ours_deg[:length]).max())
    return placed, np.array(worst_deg)


def test_a_fresh_expert_goes_on_from_any_moment_as_the_first_one_did(make_env: MakeEnv) -> None:
    placed, worst_deg = snapshots_gone_on(make_env, range(300, 308), 3)
    assert all(placed)
    assert np.median(worst_deg) < 1e-6 and np.quantile(worst_deg, 0.95) < 0.1


@pytest.mark.slow
def test_a_fresh_expert_goes_on_from_200_moments(make_env: MakeEnv) -> None:
    placed, worst_deg = snapshots_gone_on(make_env, range(300, 340), 5)
    assert np.mean(placed) >= 0.95
    assert np.median(worst_deg) < 1e-6 and np.quantile(worst_deg, 0.95) < 0.1


def test_a_moment_in_the_middle_of_noise_is_no_trouble_either(make_env: MakeEnv) -> None:
    env, other = make_env(terminate_on="never"), make_env(terminate_on="never")
    expert, states = ScriptedExpert(env), []
    env.tick = recording_states(env, states)
    for seed in (100430, 100431):
        states.clear()
        expert.run(seed, noise=NOISY, record_every=1_000_000, render=False)
        for tick in (20, 45, 60, 80):
            restore(other, seed, states[tick])
            assert go_on(other).trace[-1].placed(), (seed, tick)


def test_phases_follow_each_other_as_the_world_changes(expert: ScriptedExpert) -> None:
    order = ["approach", "descend", "close", "lift", "traverse", "lower", "release", "withdraw", "home"]
    for seed in (300, 311, 342):
        assert [phase.value for phase, _ in itertools.groupby(clean(expert, seed).phases)] == order


def test_the_law_is_a_function_of_the_state(make_env: MakeEnv) -> None:
    """Asked twice, or after it was asked about another world, it says the same."""
    env = make_env(terminate_on="never")
    expert = ScriptedExpert(env)
    env.begin(303)
    for _ in range(35):
        env.tick(expert.act().target_deg)
    first = expert.act()
    put_boat(env, 0.2, 0.0, 0.0, 1.0)
    assert np.abs(expert.act().target_deg - first.target_deg).max() > 0.1
    other = make_env(terminate_on="never")
    other.begin(303)
    for _ in range(35):
        other.tick(ScriptedExpert(other).act().target_deg)
    np.testing.assert_array_equal(ScriptedExpert(other).act().target_deg, first.target_deg)


def test_a_boat_that_stands_on_the_disk_already_is_left_alone(make_env: MakeEnv) -> None:
    env = make_env(terminate_on="never")
    x_m, y_m = env.scene.protocol.disk_xy_m
    for seed, yaw_rad in ((300, 0.3), (301, 2.0)):
        env.begin(seed)
        put_boat(env, x_m + 0.01, y_m - 0.01, 0.0125, yaw_rad)
        episode = go_on(env)
        assert len(episode.targets_deg) < 20 and episode.trace[-1].placed()
        assert set(episode.phases) == {Phase.HOME}


def test_a_boat_that_is_pushed_away_is_followed(make_env: MakeEnv) -> None:
    env, rng = make_env(terminate_on="never"), np.random.default_rng(5)
    for seed, ticks in ((305, 10), (306, 25), (307, 33), (308, 38)):
        expert = ScriptedExpert(env)
        env.begin(seed)
        for _ in range(ticks):
            env.tick(expert.act().target_deg)
        assert env.last_sample.grip == 0
        velocity = env.scene.boat_qvel
        env.data.qvel[velocity : velocity + 2] = rng.uniform(-0.5, 0.5, 2)
        env.data.qvel[velocity + 5] = rng.uniform(-5.0, 5.0)
        assert go_on(env).trace[-1].placed(), seed


def test_a_boat_that_was_dropped_is_picked_up_again(make_env: MakeEnv) -> None:
    env = make_env(terminate_on="never")
    for seed in (310, 311, 312):
        expert = ScriptedExpert(env)
        env.begin(seed)
        while (action := expert.act()).phase is not Phase.TRAVERSE:
            env.tick(action.target_deg)
        for _ in range(6):
            env.tick(np.append(env.state_deg[:5], 24.0))
        assert env.last_sample.grip != 3
        episode = go_on(env)
        assert Phase.CLOSE in episode.phases and episode.trace[-1].placed(), seed


def test_any_pose_of_the_arm_will_do_to_begin_with(make_env: MakeEnv) -> None:
    env = make_env(terminate_on="never")
    poses_deg = (
        (-40.0, -60.0, 40.0, 60.0, 90.0, -10.0),  # jaws shut
        (30.0, 20.0, -10.0, 40.0, -60.0, 60.0),  # stretched out, jaws wide open
        (10.0, -80.0, 80.0, 80.0, 0.0, 0.0),  # folded
        (-25.0, -20.0, 30.0, 90.0, -110.0, 24.0),
    )
    for seed, pose_deg in zip((320, 321, 322, 323), poses_deg, strict=True):
        env.begin(seed, np.array(pose_deg))
        assert env.last_sample.grip == 0
        assert go_on(env).trace[-1].placed(), seed


def test_an_arm_that_is_pushed_away_starts_from_where_it_is(make_env: MakeEnv) -> None:
    env = make_env(terminate_on="never")
    expert, gripper = ScriptedExpert(env), env.scene.model.body("gripper").id
    env.begin(313)
    for _ in range(15):
        env.tick(expert.act().target_deg)
    env.data.xfrc_applied[gripper, 1] = 30.0
    for _ in range(12):
        env.tick(expert.act().target_deg)
        assert np.abs(np.rad2deg(env.data.ctrl[:5]) - env.state_deg[:5]).max() < 30.0
    env.data.xfrc_applied[gripper] = 0.0
    assert go_on(env).trace[-1].placed()


def test_it_says_why_it_gives_up(make_env: MakeEnv) -> None:
    expert = ScriptedExpert(make_env(terminate_on="never"))
    begin = expert.env.begin

    def beginning_with(change: Callable[[BoatToDisk], None]) -> str | None:
        def changed(seed: int, arm_deg: np.ndarray | None = None) -> None:
            begin(seed, arm_deg)
            change(expert.env)

        expert.env.begin = changed  # type: ignore[method-assign, assignment]
        episode = clean(expert, 300)
        assert not episode.ok and len(episode.targets_deg) < 60
        return episode.fail

    assert beginning_with(lambda env: put_boat(env, 0.6, 0.0, 0.0, 0.0)) == "the boat is out of reach"
    assert beginning_with(lambda env: put_boat(env, 0.3, -0.3, -0.5, 0.0)) == "the boat has left the table"

    def tip(env: BoatToDisk) -> None:
        boat = env.scene.boat_qpos
        env.data.qpos[boat + 2 : boat + 7] = (0.0145, np.sqrt(0.5), np.sqrt(0.5), 0.0, 0.0)
        for _ in range(20):
            env.tick(env.state_deg)

    assert beginning_with(tip) == "the boat has tipped over"


def test_a_miss_goes_beside_the_boat_and_is_recovered_from(expert: ScriptedExpert) -> None:
    for seed in range(100440, 100446):
        episode = expert.run(seed, noise=MISSING, record_every=5, render=False)
        first = int(np.argmax(episode.trainable_T))
        assert episode.missed and first > 20
        if episode.ok:
            assert episode.phases[first] in (Phase.RISE, Phase.APPROACH, Phase.LET_GO)


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
