"""Shared frames: one piece of anonymous memory, seen by all, left behind by nobody."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from toy_world import SHAPE, paint, spec

from vla_rl.errors import MachineError
from vla_rl.rollout.pool import ProcessPool, SerialPool
from vla_rl.rollout.shared import FrameBlock


def painted_by_a_process(block, slots):
    process = multiprocessing.get_context("spawn").Process(target=paint, args=(block, slots))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_what_another_process_writes_is_seen_slot_by_slot_also_after_the_block_has_grown():
    block = FrameBlock()
    block.reserve(2, SHAPE)
    painted_by_a_process(block, [1])
    early = block.view(1, SHAPE)
    assert early.shape == SHAPE and (early == 2).all() and (block.view(0, SHAPE) == 0).all()
    block.reserve(5000, SHAPE)
    painted_by_a_process(block, [0, 4999])
    assert (block.view(0, SHAPE) == 1).all() and (block.view(1, SHAPE) == 2).all()
    assert (block.view(4999, SHAPE) == 5000 % 256).all() and (early == 2).all()
    block.close()
    block.close()


def test_too_little_memory_is_an_error_that_names_the_remedy():
    with pytest.raises(MachineError, match="frames of 1000000 slots .5722046 MiB") as caught:
        FrameBlock().reserve(10**6, (2, 1000, 1000, 3))
    assert "image_px" in caught.value.remedy


def test_results_own_their_frames():
    with ProcessPool(workers=1, groups=1, timeout_s=20.0, env_spec=spec(), plugins=("toy_world",)) as pool:
        first = pool.reset([(0, 100)])[0].observation
        before = first.frames.copy()
        after = pool.step([(0, np.full((4, 6), 90.0))])[0].observation
        assert np.array_equal(first.frames, before) and not np.array_equal(first.frames, after.frames)
        assert first.frames.flags.owndata and first.frames.flags.writeable


@pytest.mark.parametrize("world", ["ToyWorld", "AttributeWorld"])
def test_a_simulator_that_does_not_tell_its_picture_size_gives_the_same_answers(world):
    answers = []
    for pool in (
        SerialPool(env_spec=spec(world=world), plugins=("toy_world",)),
        ProcessPool(workers=1, groups=1, timeout_s=20.0, env_spec=spec(world=world), plugins=("toy_world",)),
    ):
        with pool:
            answers.append(pool.reset([(0, 100)])[0].observation.frames.tobytes())
    assert answers[0] == answers[1]


def test_a_killed_program_leaves_neither_shared_memory_nor_processes_nor_warnings(tmp_path):
    program = (
        "import os, signal, sys, time; sys.path[:0] = sys.argv[1:]\n"
        "from toy_world import spec\n"
        "from vla_rl.rollout.pool import ProcessPool\n"
        "if __name__ == '__main__':\n"
        "    pool = ProcessPool(workers=2, groups=2, timeout_s=20.0, env_spec=spec(), plugins=('toy_world',))\n"
        "    pool.reset([(0, 100), (1, 101)])\n"
        "    os.kill(pool.worker_pids()[0], signal.SIGKILL)\n"
        "    pool.reset([(0, 100)]); pool.reset([(0, 100)])\n"
        "    print(*pool.worker_pids(), flush=True); time.sleep(60)\n"
    )
    file, before = tmp_path / "parent.py", set(os.listdir("/dev/shm"))
    file.write_text(program)
    parent = subprocess.Popen(
        [sys.executable, str(file), *sys.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    parent.send_signal(signal.SIGKILL)
    _, errors = parent.communicate(timeout=30)  # the workers share its stderr: it ends when they have gone
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert errors == "" and not any(os.path.exists(f"/proc/{pid}") for pid in workers)
    assert {name for name in set(os.listdir("/dev/shm")) - before if "vla" in name or "psm" in name} == set()
