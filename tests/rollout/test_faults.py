"""Real episodes with workers that are killed, stopped or show garbage: the episodes stay the same, bit for bit."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import numpy as np
import pytest
from flaky_world import spec
from scripted import Scripted, fingerprint

from vla_rl.rollout.events import EpisodeRestarted, PredictRound
from vla_rl.rollout.pool import ProcessPool, SerialPool
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.rollout.wave import run_wave

PLUGINS = ("flaky_world",)
SPECS = [EpisodeSpec(300 + i // 2, i % 2) for i in range(8)]


def play(pool, slots, on_event=lambda event: None):
    return run_wave(
        sampler=Scripted(), pool=pool, specs=SPECS, temperature=1.0, slots=slots, policy_digest="d", on_event=on_event
    )


@pytest.fixture(scope="module")
def undisturbed():
    with SerialPool(env_spec=spec(), plugins=PLUGINS) as pool:
        return fingerprint(play(pool, 1))


class Disturbances:
    """Sends a signal to a worker at given rounds of a wave, and keeps all events."""

    def __init__(self, pool, at):
        self.pool, self.at, self.events = pool, at, []

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, PredictRound) and event.rounds in self.at:
            number, worker = self.at[event.rounds]
            os.kill(self.pool.worker_pids()[worker], number)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@contextlib.contextmanager
def flaky_pool(workers, **fault):
    """A pool and the list of its events."""
    told = []
    arguments = {"groups": 2, "timeout_s": 5.0, "plugins": PLUGINS, "on_event": told.append}
    with ProcessPool(workers=workers, env_spec=spec(**fault), **arguments) as pool:
        yield pool, told


@pytest.mark.slow
def test_killed_stopped_and_garbage_rendering_workers_are_replaced_and_change_no_episode(undisturbed, tmp_path):
    marker = tmp_path / "once"
    marker.touch()  # no garbage at first
    with flaky_pool(2, fault="garbage", fault_seed=302, marker=str(marker)) as (pool, told):
        first = Disturbances(pool, {1: (signal.SIGKILL, 0), 2: (signal.SIGSTOP, 1)})
        assert fingerprint(play(pool, 6, first)) == undisturbed
        killed, stopped = sorted(told, key=lambda event: event.worker)
        assert (killed.worker, stopped.worker) == ("worker 0", "worker 1")
        assert "died (exit code -9)" in killed.reason and "gave no answer for 5 s" in stopped.reason
        assert len({event.episode_id for event in first.of(EpisodeRestarted)}) >= 2
        marker.unlink()
        second = Disturbances(pool, {})
        assert fingerprint(play(pool, 6, second)) == undisturbed
        assert (
            len(told) == 3 and "(replacement 1)" in told[2].worker and "camera 'top' rendered garbage" in told[2].reason
        )
        assert [e.episode_id[:10] for e in second.of(EpisodeRestarted) if e.faults] == ["seed000302"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("per_worker", [1, 3, 5])
def test_workers_and_environments_per_worker_and_a_kill_in_the_middle_change_no_episode(
    undisturbed, workers, per_worker
):
    with flaky_pool(workers) as (pool, told):
        for at in ({}, {2: (signal.SIGKILL, workers - 1)}, {2: (signal.SIGSTOP, 0)}):
            told.clear()
            assert fingerprint(play(pool, workers * per_worker, Disturbances(pool, at))) == undisturbed
            # With more slots than episodes a worker may have none left, and is not missed.
            missed = workers * per_worker > len(SPECS)
            assert len(told) <= len(at) if missed else len(told) == len(at)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["die", "stop", "raise", "garbage"])
def test_a_fault_inside_a_step_changes_no_episode(undisturbed, tmp_path, fault):
    with flaky_pool(2, fault=fault, fault_seed=301, marker=str(tmp_path / "once")) as (pool, told):
        assert fingerprint(play(pool, 6)) == undisturbed and len(told) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_signals_at_random_moments_change_no_episode(undisturbed, seed):
    rng, over = np.random.default_rng(seed), threading.Event()
    with flaky_pool(2) as (pool, _):
        pool.reset([(0, 300), (1, 301)])

        def harass():
            for _ in range(3):
                if over.wait(float(rng.uniform(0.05, 1.5))):
                    return
                os.kill(pool.worker_pids()[rng.integers(2)], signal.SIGKILL)  # a start that is stopped takes minutes

        thread = threading.Thread(target=harass)
        thread.start()
        wave = play(pool, 6)
        over.set()
        thread.join()
    assert fingerprint(wave) == undisturbed
