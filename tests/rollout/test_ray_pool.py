"""The pool of Ray actors: the answers of the other pools, named culprits, bounded patience. Skips without Ray."""

from __future__ import annotations

import os
import signal
import socket

import numpy as np
import pytest
from scripted import Scripted, fingerprint
from test_pool import script
from toy_world import spec

from vla_rl.errors import ConfigError, MachineError, RolloutError
from vla_rl.rollout import ray_cluster, ray_worker
from vla_rl.rollout.events import EpisodeRestarted, PredictRound
from vla_rl.rollout.pool import SerialPool
from vla_rl.rollout.ray_cluster import join
from vla_rl.rollout.ray_pool import RayPool
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.rollout.wave import run_wave

ray = pytest.importorskip("ray", reason="the actors are Ray's; pip install 'vla-rl[ray]'")
PLUGINS = ("toy_world",)
SPECS = [EpisodeSpec(100 + i // 2, i % 2) for i in range(8)]


def pool_of(env_spec, workers=2, **given):
    settings = {"groups": 2, "timeout_s": 20.0, "address": None, "cpus": 0.5, "resources": {}, "placement": "spread"}
    return RayPool(workers=workers, env_spec=env_spec, plugins=PLUGINS, **{**settings, **given})


def play(pool, on_event=lambda event: None):
    sampler = Scripted(horizon=4, step_deg=5.0)
    return run_wave(
        sampler=sampler, pool=pool, specs=SPECS, temperature=1.0, slots=6, policy_digest="d", on_event=on_event
    )


@pytest.fixture(scope="module")
def connected():
    """One cluster on this machine for the tests that do not care whose it is."""
    leave = join(ray, None, {"CPU": 2.0})
    yield
    leave()


@pytest.fixture(scope="module")
def undisturbed():
    with SerialPool(env_spec=spec(), plugins=PLUGINS) as pool:
        return fingerprint(play(pool))


def test_a_run_starts_a_cluster_of_its_own_shuts_it_down_and_keeps_its_signals():
    handler = signal.getsignal(signal.SIGTERM)
    with SerialPool(env_spec=spec(), plugins=PLUGINS) as serial:
        expected, told = script(serial), serial.describe()
    with pool_of(spec(), resources={"arm": 0.5}) as pool:
        assert pool.describe() == told and script(pool) == expected
        workers, first = pool.worker_pids(), pool.reset([(0, 100)])[0].observation
        before = first.frames.copy()
        pool.step([(0, np.full((4, 6), 90.0))])
        assert np.array_equal(first.frames, before) and first.frames.flags.owndata and first.frames.flags.writeable
        assert all(workers) and signal.getsignal(signal.SIGTERM) is handler
    assert not ray.is_initialized() and not any(os.path.exists(f"/proc/{pid}") for pid in workers)
    with pytest.raises(RolloutError, match="closed"):
        pool.reset([(0, 100)])


def test_an_actor_that_is_killed_in_the_middle_of_a_wave_changes_no_episode(connected, undisturbed):
    told, seen = [], []
    with pool_of(spec(), on_event=told.append) as pool:

        def on_event(event):
            seen.append(event)
            if isinstance(event, PredictRound) and event.rounds == 1:
                os.kill(pool.worker_pids()[1], signal.SIGKILL)

        assert fingerprint(play(pool, on_event)) == undisturbed
    assert [event.worker.partition(" on ")[0] for event in told] == ["worker 1"]
    assert "its worker process has died" in told[0].reason and "\n" not in told[0].reason
    assert any("worker 1" in event.reason for event in seen if isinstance(event, EpisodeRestarted))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hang@in_step", "gave no answer for 2 s"),
        pytest.param("raise@in_step", "the physics exploded", marks=pytest.mark.slow),
        pytest.param("black@in_step", "rendered garbage", marks=pytest.mark.slow),
    ],
)
def test_an_actor_that_hangs_or_fails_is_named_and_replaced(connected, undisturbed, tmp_path, fault, reason):
    told = []
    with pool_of(spec(fault, 101, str(tmp_path / "once")), timeout_s=2.0, on_event=told.append) as pool:
        assert fingerprint(play(pool)) == undisturbed
    assert len(told) == 1 and reason in told[0].reason


@pytest.mark.slow
def test_an_episode_that_is_lost_every_time_ends_the_wave_by_name_after_bounded_tries(connected):
    with pool_of(spec("raise@in_reset", 102)) as pool:
        with pytest.raises(
            RolloutError, match="(?s)seed000102_draw00 was lost 3 times.*the physics exploded"
        ) as caught:
            play(pool)
    assert caught.value.exit_code == 1


def test_a_node_with_other_software_is_refused_by_name(connected, monkeypatch):
    monkeypatch.setattr(ray_worker, "_PLAYS", ("python", "mujoco"))
    monkeypatch.setattr("vla_rl.rollout.ray_pool.software", lambda: {**ray_worker.software(), "mujoco": "3.0.0"})
    with pool_of(spec(), workers=1) as pool, pytest.raises(MachineError, match=r"mujoco is .*, not 3\.0\.0") as caught:
        pool.describe()
    assert "on every node" in caught.value.remedy


def test_more_workers_than_the_cluster_has_room_for_are_refused_with_what_there_is(connected):
    for wanted, there in (({"workers": 5}, "CPU"), ({"resources": {"arm": 1.0}}, "0 arm")):
        with pytest.raises(ConfigError, match=r"room for [04] of") as caught:
            pool_of(spec(), **wanted)
        assert there in caught.value.remedy
    with pytest.raises(ConfigError):
        pool_of(spec(), resources={"arm": 0.0})
    assert ray.is_initialized()  # the connection is not the pool's to end


def test_another_address_than_the_one_that_the_program_is_connected_to_is_refused(connected):
    with pytest.raises(ConfigError, match="connected to the cluster at"):
        pool_of(spec(), address="127.0.0.1:1")


@pytest.mark.parametrize("address", ["auto", "ray://head:10001", "head", "head:port"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match="is no address"):
        ray_cluster._check_reachable(address)


def test_a_port_where_no_ray_answers_is_one_error_within_bounded_time(monkeypatch):
    monkeypatch.setattr(ray_cluster, "PATIENCE_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(MachineError, match=f"at {address} cannot be joined: no Ray answers there within 3 s"):
            ray_cluster._check_reachable(address)
