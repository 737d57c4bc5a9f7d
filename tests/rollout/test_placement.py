"""Where workers are put; nothing here needs Ray, and nothing imports it without need."""

from __future__ import annotations

import subprocess
import sys

from vla_rl.rollout.placement import Node, Placer, capacity

CPU = {"CPU": 1.0}
NODES = [
    Node("a", "10.0.0.1", {"CPU": 2.0}),
    Node("b", "10.0.0.2", {"CPU": 3.0, "arm": 1.0}),
    Node("c", "10.0.0.3", {}),
]


def places(placer, count):
    return "".join(node.id if (node := placer.take()) else "-" for _ in range(count))


def test_workers_are_spread_over_nodes_or_fill_one_after_the_other_until_no_node_has_room():
    assert places(Placer(lambda: NODES, CPU, "spread"), 6) == "ababb-"
    assert places(Placer(lambda: NODES, CPU, "pack"), 6) == "aabbb-"
    assert places(Placer(lambda: NODES, {"CPU": 1.0, "arm": 0.5}, "spread"), 3) == "bb-"


def test_a_worker_that_is_gone_makes_room_and_a_node_that_has_left_has_none():
    up = NODES[:2]
    placer = Placer(lambda: up, CPU, "spread")
    assert places(placer, 5) == "ababb"
    placer.give_back(NODES[0])
    assert places(placer, 2) == "a-"
    placer.give_back(NODES[1])
    up.remove(NODES[1])
    assert places(placer, 1) == "-"
    assert places(Placer(lambda: NODES, CPU, "spread"), 1) == "a"
    placer.give_back(NODES[0], gone=True)  # the cluster still lists it
    assert places(placer, 1) == "-"
    up.append(Node("d", "10.0.0.4", {"CPU": 1.0}))
    assert places(placer, 2) == "d-"


def test_parts_of_a_cpu_add_up():
    assert capacity({"CPU": 1.0}, {"CPU": 0.1}) == 10 and capacity({"CPU": 1.0}, {"CPU": 0.3}) == 3
    assert capacity({"CPU": 8.0}, {"CPU": 1.0, "arm": 1.0}) == 0


def test_nothing_imports_ray_unless_a_pool_of_it_is_built():
    code = "import sys, vla_rl.cli.train, vla_rl.rollout.wave, vla_rl.rollout.ray_pool; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
