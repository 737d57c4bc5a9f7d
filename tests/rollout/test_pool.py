"""The pools: same results whoever serves a slot, named culprits, bounded patience."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from toy_world import PX, spec

from vla_rl.errors import ConfigError, MachineError, RolloutError
from vla_rl.rollout.pool import ProcessPool, SerialPool

PLUGINS = ("toy_world",)


def processes(env_spec, workers=2, timeout_s=20.0, events=None):
    sink = events.append if events is not None else (lambda event: None)
    return ProcessPool(
        workers=workers, groups=2, timeout_s=timeout_s, env_spec=env_spec, plugins=PLUGINS, on_event=sink
    )


def script(pool, slots=5, chunks=4):
    """Every answer of a fixed sequence of commands, as comparable values."""
    seen = pool.reset([(slot, 100 + slot) for slot in range(slots)])
    playing = range(slots)
    for chunk in range(chunks):
        results = pool.step([(slot, np.full((30, 6), 3.0 * chunk + slot)) for slot in playing])
        playing = [result.slot for result in results if not result.done]
        seen += results
    return [
        (r.slot, r.done, r.metrics, r.lost, r.observation.frames.tobytes(), r.observation.state_deg.tobytes())
        for r in seen
    ]


def test_one_and_two_workers_and_no_worker_answer_and_describe_themselves_alike_bit_for_bit():
    with SerialPool(env_spec=spec(), plugins=PLUGINS) as serial:
        expected, told = script(serial), serial.describe()
    for workers in (1, 2):
        with processes(spec(), workers) as pool:
            assert pool.describe() == told and script(pool) == expected


def test_a_simulator_is_described_by_its_own_words_or_by_its_attributes():
    with SerialPool(env_spec=spec(max_chunks=5), plugins=PLUGINS) as pool:
        own = {"protocol": "toy", "scene_hash": "00000000", "max_replans": 5, "image_px": PX, "look": "bare"}
        assert pool.describe() == own
    with SerialPool(env_spec=spec(max_chunks=5, world="AttributeWorld"), plugins=PLUGINS) as pool:
        told = {"protocol": "toy-by-attributes", "scene_hash": None, "max_replans": 5, "image_px": None}
        assert pool.describe() == told  # 14 ticks, 3 at a time


def test_a_simulator_that_does_not_tell_how_long_an_episode_is_can_be_played_but_not_described():
    for pool in (SerialPool(env_spec=spec(world="ToyWorld"), plugins=PLUGINS), processes(spec(world="ToyWorld"), 1)):
        with pool:
            with pytest.raises(ConfigError, match="how many predicts") as caught:
                pool.describe()
            assert "max_replans" in caught.value.remedy and pool.reset([(0, 100)])[0].lost is None


def test_frames_come_in_camera_order_and_the_chunk_is_cut_to_what_the_environment_executes():
    with SerialPool(env_spec=spec(execute_ticks=2), plugins=PLUGINS) as pool:
        start = pool.reset([(0, 7)])[0].observation
        after = pool.step([(0, np.full((30, 6), 90.0))])[0].observation
    assert start.frames.max(axis=(1, 2, 3)).tolist() == [255, 200]  # top draws 255, wrist 200
    assert after.state_deg[0] == 4.0  # 2 ticks of at most 2 degrees


@pytest.mark.parametrize("fault", ["die@in_step", "raise@in_step", "black@in_step", "die@in_reset", "hang@in_reset"])
def test_a_faulty_worker_is_named_and_replaced_and_its_slots_come_back_lost(tmp_path, fault):
    events = []
    with processes(spec(fault, 101, str(tmp_path / "once")), timeout_s=3.0, events=events) as pool:
        results = pool.reset([(0, 100), (1, 101)])
        if fault.endswith("step"):
            results = pool.step([(0, np.zeros((30, 6))), (1, np.zeros((30, 6)))])
        assert results[0].lost is None and results[0].observation is not None
        assert results[1].observation is None and "worker 1" in results[1].lost
        assert [event.worker for event in events] == ["worker 1"]
        assert results[1].at_fault
        assert pool.reset([(1, 101)])[0].lost is None  # the replacement serves the same slot


def test_other_episodes_of_a_lost_worker_come_back_lost_without_costing_another_worker(tmp_path):
    events = []
    with processes(spec("die@in_reset", 103, str(tmp_path / "once")), workers=1, events=events) as pool:
        pool.reset([(0, 100), (1, 101)])
        assert pool.reset([(2, 103)])[0].lost
        results = pool.step([(0, np.zeros((30, 6))), (1, np.zeros((30, 6)))])
        assert all(r.lost and not r.at_fault for r in results) and len(events) == 1


def test_a_worker_killed_from_outside_while_idle_is_replaced():
    with processes(spec(), workers=1) as pool:
        pool.reset([(0, 100)])
        os.kill(pool.worker_pids()[0], signal.SIGKILL)
        time.sleep(0.2)
        lost = pool.step([(0, np.zeros((30, 6)))])[0]
        assert "died" in lost.lost and not lost.at_fault  # nothing was asked of it when it died
        assert pool.reset([(0, 100)])[0].lost is None


def test_a_machine_without_gl_is_one_user_error_in_the_parent_and_no_retry():
    with processes(spec("no_gl"), workers=1) as pool:
        for ask in (lambda: pool.reset([(0, 100)]), lambda: pool.reset([(0, 100)]), pool.describe):
            with pytest.raises(MachineError) as caught:
                ask()
            assert caught.value.remedy == "install one"


def test_an_environment_that_can_never_be_built_is_lost_every_time_with_its_own_error_in_the_reason():
    with processes(spec("cannot_build"), workers=1) as pool:
        for _ in range(2):
            assert "the model file is broken" in pool.reset([(0, 100)])[0].lost
        with pytest.raises(RolloutError, match="the model file is broken"):
            pool.describe()


def test_the_serial_pool_raises_at_once():
    with SerialPool(env_spec=spec("raise@in_step", 100), plugins=PLUGINS) as pool:
        pool.reset([(0, 100)])
        with pytest.raises(RuntimeError, match="exploded"):
            pool.step([(0, np.zeros((30, 6)))])
    with SerialPool(env_spec=spec("black@in_reset", 100), plugins=PLUGINS) as pool:
        with pytest.raises(RolloutError, match="garbage"):
            pool.reset([(0, 100)])


def test_senseless_pools_are_refused():
    with pytest.raises(ConfigError):
        processes(spec(), workers=0)
    with pytest.raises(ConfigError):
        processes(spec(), timeout_s=0)
    with pytest.raises(ConfigError):
        ProcessPool(workers=1, groups=0, timeout_s=1.0, env_spec=spec(), plugins=PLUGINS)


def test_a_pool_that_is_closed_while_a_worker_hangs_does_not_wait_for_the_watchdog():
    pool = processes(spec("hang@in_step", 100), workers=1, timeout_s=600.0)
    pool.reset([(0, 100)])
    with ThreadPoolExecutor(1) as thread:
        step = thread.submit(pool.step, [(0, np.zeros((30, 6)))])
        time.sleep(0.2)
        pool.close()
        assert step.result(timeout=60)[0].lost


def test_workers_have_one_thread_and_leave_when_the_pool_is_closed():
    pool = processes(spec())
    pool.reset([(0, 100), (1, 101)])
    pids = pool.worker_pids()
    for pid in pids:
        with open(f"/proc/{pid}/environ", "rb") as file:
            assert b"OMP_NUM_THREADS=1" in file.read().split(b"\0")
    pool.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_workers_leave_when_their_parent_is_killed(tmp_path):
    program = (
        "import sys, time; sys.path[:0] = sys.argv[1:]\n"
        "from toy_world import spec\n"
        "from vla_rl.rollout.pool import ProcessPool\n"
        "if __name__ == '__main__':\n"
        "    pool = ProcessPool(workers=1, groups=2, timeout_s=20.0, env_spec=spec(), plugins=('toy_world',))\n"
        "    pool.reset([(0, 100)]); print(pool.worker_pids()[0], flush=True); time.sleep(60)\n"
    )
    file = tmp_path / "parent.py"
    file.write_text(program)
    parent = subprocess.Popen([sys.executable, str(file), *sys.path], stdout=subprocess.PIPE)
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{worker}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{worker}")


def test_a_worker_never_imports_torch():
    code = "import sys, vla_rl.rollout.pool; sys.exit('torch' in sys.modules or 'mujoco' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
