"""Real episodes on several Ray nodes of which some vanish, stay away and join: the episodes stay the same, bit for bit.

The nodes are raylets of this machine, and what vanishes is killed. Skips without Ray.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from flaky_world import spec
from scripted import Scripted, fingerprint

from vla_rl.errors import RolloutError
from vla_rl.rollout import ray_worker
from vla_rl.rollout.events import EpisodeRestarted, PredictRound, WorkerReplaced
from vla_rl.rollout.pool import SerialPool
from vla_rl.rollout.ray_pool import RayPool
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.rollout.wave import run_wave

ray = pytest.importorskip("ray", reason="the nodes are Ray's; pip install 'vla-rl[ray]'")
pytestmark = pytest.mark.slow
PLUGINS = ("flaky_world",)
SPECS = [EpisodeSpec(300 + i // 2, i % 2) for i in range(12)]


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


def pool_on(cluster, workers, **given):
    settings = {"groups": 2, "timeout_s": 60.0, "cpus": 1.0, "resources": {}, "placement": "spread", **given}
    return RayPool(workers=workers, address=cluster.address, env_spec=spec(), plugins=PLUGINS, **settings)


def play(pool, on_event=lambda event: None):
    return run_wave(
        sampler=Scripted(), pool=pool, specs=SPECS, temperature=1.0, slots=6, policy_digest="d", on_event=on_event
    )


def killing(pids, told, number=signal.SIGKILL):
    """An event callback that keeps events, and after the second round kills the first process and sends the others a
    signal."""

    def on_event(event):
        told.append(event)
        if isinstance(event, PredictRound) and event.rounds == 2:
            first, *others = pids()
            os.kill(first, signal.SIGKILL)
            for pid in others:
                os.kill(pid, number)

    return on_event


def processes(node, pool):
    """Of a node: its raylet and the workers there."""
    workers = [seat.worker.pid for seat in pool._seats if f"(node {node.node_id[:6]})" in seat.worker.name]
    return [node.all_processes["raylet"][0].process.pid, *workers]


@pytest.fixture(scope="module")
def undisturbed():
    with SerialPool(env_spec=spec(), plugins=PLUGINS) as pool:
        return fingerprint(play(pool))


def test_a_killed_worker_process_changes_no_episode_and_is_named(cluster, undisturbed):
    cluster.add_node(num_cpus=2)
    told = []
    with pool_on(cluster, 2, on_event=told.append) as pool:
        assert fingerprint(play(pool, killing(lambda: pool.worker_pids()[:1], told))) == undisturbed
    (replaced,) = [event for event in told if isinstance(event, WorkerReplaced)]
    assert replaced.worker.startswith("worker 0 on ") and "its worker process has died" in replaced.reason
    assert any(isinstance(event, EpisodeRestarted) for event in told)


def test_a_node_that_vanishes_changes_no_episode_and_one_that_joins_takes_its_workers(cluster, undisturbed):
    stays, goes = (cluster.add_node(num_cpus=1) for _ in range(2))
    told = []
    with pool_on(cluster, 2, on_event=told.append) as pool:
        assert fingerprint(play(pool)) == undisturbed
        vanished = processes(goes, pool)
        # The worker is stopped, not killed: a machine that vanishes says no last word.
        assert fingerprint(play(pool, killing(lambda: vanished, told, signal.SIGSTOP))) == undisturbed
        os.kill(vanished[1], signal.SIGKILL)
        (replaced,) = [event for event in told if isinstance(event, WorkerReplaced)]
        assert f"(node {goes.node_id[:6]})" in replaced.worker and "its node has died" in replaced.reason
        assert any(isinstance(event, EpisodeRestarted) for event in told)
        assert [seat.worker.placed() for seat in pool._seats].count(True) == 1  # there is room for one only
        assert fingerprint(play(pool)) == undisturbed
        joins = cluster.add_node(num_cpus=1)
        assert all(seat.worker.placed() for seat in pool._seats)
        ray.wait([seat.worker._pending for seat in pool._seats], num_returns=2, timeout=60)  # the new one stands
        assert fingerprint(play(pool)) == undisturbed
        names = [seat.worker.name for seat in pool._seats]
        assert any(f"(node {joins.node_id[:6]})" in name for name in names)
        assert any(f"(node {stays.node_id[:6]})" in name for name in names)
        assert all(seat.worker.description for seat in pool._seats)
        assert len([event for event in told if isinstance(event, WorkerReplaced)]) == 1


def test_when_no_node_is_left_the_wave_ends_by_name_after_bounded_tries(cluster, monkeypatch):
    monkeypatch.setattr(ray_worker, "PLACE_TIMEOUT_S", 3.0)
    node = cluster.add_node(num_cpus=1)
    with pool_on(cluster, 1) as pool:
        with pytest.raises(RolloutError, match="lost 3 times.*found no node with room for 1 CPU within 3 s") as caught:
            play(pool, killing(lambda: processes(node, pool), []))
    assert caught.value.exit_code == 1


def test_workers_fill_nodes_as_told_and_take_their_other_resources(cluster):
    for _ in range(2):
        cluster.add_node(num_cpus=2, resources={"arm": 2.0})
    for placement, nodes in (("pack", 1), ("spread", 2)):
        with pool_on(cluster, 2, placement=placement, resources={"arm": 1.0}) as pool:
            assert len({seat.worker.name.partition(" on ")[2] for seat in pool._seats}) == nodes
            assert pool.describe()["max_replans"]


def test_nothing_but_the_commands_own_words_is_on_stdout_when_a_worker_dies(tmp_path):
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from toy_world import spec\n"
        "from vla_rl.rollout.ray_pool import RayPool\n"
        "settings = dict(groups=1, timeout_s=20.0, address=None, cpus=1.0, resources={}, placement='pack')\n"
        "settings |= dict(env_spec=spec('die@in_reset', 100, sys.argv[1]), plugins=['toy_world'])\n"
        "with RayPool(workers=1, **settings) as p:\n"
        "    print(p.reset([(0, 100)])[0].at_fault, p.reset([(0, 100)])[0].lost)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "once"), *sys.path], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "True None\n", done.stderr
