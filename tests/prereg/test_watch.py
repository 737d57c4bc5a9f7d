"""The list of runs: who is on it, who is alive, why it is empty."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vla_rl.errors import IntegrityError, UsageError
from vla_rl.prereg import health, watch
from vla_rl.prereg.process import Process
from vla_rl.prereg.watch import Probe, WatchGates

GATES = WatchGates(gpu_h_max=15.0, vram_max_gib=75.0, probe=Probe("eval.successes", 9, 4), stale_s=600.0)


def test_a_process_is_known_by_its_number_and_its_start():
    own = Process.own()
    assert own.pid == os.getpid() and own.alive() and Process.of_body(own.body()) == own
    assert dataclasses.replace(own, started=own.started - 1).alive() is False  # the number was given again
    assert dataclasses.replace(own, boot="another").alive() is False
    assert dataclasses.replace(own, node="elsewhere").alive() is None


def test_a_process_that_has_ended_is_dead_also_before_its_parent_has_noticed():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.of(child.pid)
    assert process is not None and process.alive()
    child.kill()
    for _ in range(100):
        if not process.alive():
            break
        time.sleep(0.05)
    assert process.alive() is False and child.poll() is None or child.returncode == -9
    child.wait()
    assert Process.of(child.pid) != process


def test_a_run_is_dead_though_a_process_with_its_very_command_line_lives(tmp_path):
    command = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE) as ours,
        subprocess.Popen(command, stdin=subprocess.PIPE) as alike,
    ):
        entry = watch.open(tmp_path / "run", process=Process.of(ours.pid), where=tmp_path / "watch")
        before = health.examine(entry).state
        ours.kill()
        ours.wait()
        after, texts = health.examine(entry).state, Path(f"/proc/{alike.pid}/cmdline").read_bytes()
        alike.kill()
    assert (before, after) == ("live", "dead") and b"input()" in texts


def test_an_entry_says_what_it_was_given_and_goes_with_the_run(tmp_path):
    run = tmp_path / "runs" / "one"
    where = tmp_path / "watch"
    assert watch.entries(where) == [] and watch.last(where) is None
    entry = watch.open(run, gates=GATES, cadence_s=60, registration="E001", rung="R0", arm="a1", gpus=1, where=where)
    assert watch.entries(where) == [entry] and watch.find(run, where) == entry
    assert (entry.run, entry.gates, entry.process, entry.arm) == ("one", GATES, Process.own(), "a1")
    watch.close(entry, exit_code=3, how="tripped after step 2", where=where)
    assert watch.entries(where) == [] and watch.find(run, where) is None
    last = watch.last(where)
    assert (last["run"], last["registration"], last["exit_code"], last["how"]) == (
        "one",
        "E001",
        3,
        "tripped after step 2",
    )


def test_runs_of_one_name_in_two_places_are_two_entries(tmp_path):
    first, second = (watch.open(tmp_path / place / "run", where=tmp_path / "watch") for place in "ab")
    assert watch.entries(tmp_path / "watch") == [first, second] or watch.entries(tmp_path / "watch") == [second, first]


def test_a_live_entry_is_not_taken_over_and_a_dead_one_is(tmp_path):
    where, run = tmp_path / "watch", tmp_path / "run"
    gone = dataclasses.replace(Process.own(), started=1)
    watch.open(run, process=gone, where=where)
    entry = watch.open(run, where=where)
    assert watch.entries(where) == [entry]
    with pytest.raises(UsageError, match="watched already"):
        watch.open(run, where=where)


def test_a_damaged_entry_is_named(tmp_path):
    watch.open(tmp_path / "run", where=tmp_path)
    (file,) = tmp_path.glob("run-*.json")
    body = json.loads(file.read_text())
    for text in (file.read_text()[:40], json.dumps(body | {"extra": 1}), json.dumps({"run": "x"}), "[]"):
        file.write_text(text)
        with pytest.raises(IntegrityError, match="run-"):
            watch.entries(tmp_path)
