"""The health of a watched run, from numbers that are written down here."""

import json
from datetime import datetime, timedelta

import pytest

from vla_rl.prereg import health, watch
from vla_rl.prereg.health import judge, last_value, whole_rows
from vla_rl.prereg.process import Process
from vla_rl.prereg.watch import Entry, Probe, WatchGates

OPENED = datetime.fromisoformat("2026-11-30T10:00:00+00:00")
BEAT = {"utc": "2026-11-30T12:00:00+00:00", "device_s": 7200.0, "phase": "train", "steps": 5}
NOW = datetime.fromisoformat("2026-11-30T12:10:00+00:00")


def entry(gpus=None, **gates):
    process = Process("node", "boot", 1, 1)
    return Entry("run", "/nowhere/run", process, OPENED.isoformat(), 1800.0, gpus, WatchGates(**gates))


def gate(given, rows=(), evaluations=(), alive=True, beat=BEAT):
    (found,) = judge(given, alive, beat, rows, evaluations, NOW).gates
    return found


def test_a_run_is_live_until_its_heart_has_not_beaten_for_too_long():
    assert judge(entry(stale_s=601), True, BEAT, [], [], NOW).state == "live"
    assert judge(entry(stale_s=599), True, BEAT, [], [], NOW).state == "stale"
    assert judge(entry(stale_s=599), False, BEAT, [], [], NOW).state == "dead"
    assert judge(entry(stale_s=601), None, BEAT, [], [], NOW).state == "live"  # on another machine
    unborn = judge(entry(stale_s=3600), True, {}, [], [], OPENED + timedelta(hours=1, seconds=1))
    assert unborn.state == "stale" and unborn.beat_age_s == 3601 and unborn.phase is None


def test_a_heartbeat_of_an_earlier_launch_does_not_make_a_new_one_stale():
    old = BEAT | {"utc": "2026-11-29T12:00:00+00:00"}
    assert judge(entry(stale_s=60), True, old, [], [], OPENED + timedelta(seconds=59)).state == "live"


def test_hours_count_on_between_heartbeats_while_the_run_lives():
    assert gate(entry(wall_h_max=2.1)).value == pytest.approx(2 + 10 / 60)
    assert gate(entry(wall_h_max=2.1)).crossed and not gate(entry(wall_h_max=2.2)).crossed
    assert gate(entry(wall_h_max=2.0), alive=False).value == 2.0
    assert not gate(entry(wall_h_max=2.0), alive=False).crossed  # reached, not beyond


def test_gpu_hours_are_known_before_the_first_step_and_never_guessed_on_another_device():
    assert gate(entry(gpus=1, gpu_h_max=2.1)).crossed
    assert gate(entry(gpus=2, gpu_h_max=9.0)).value == pytest.approx(2 * (2 + 10 / 60))
    assert gate(entry(gpus=0, gpu_h_max=0.0)).value == 0 and not gate(entry(gpus=0, gpu_h_max=0.0)).crossed
    unknown = gate(entry(gpu_h_max=1.0), [{"step": 1, "gpu_h_total": None}])
    assert unknown.value is None and not unknown.crossed and unknown.note
    rows = [{"step": 1, "gpu_h_total": 1.5}, {"step": 2, "gpu_h_total": None}]
    assert gate(entry(gpu_h_max=1.0), rows).crossed


def test_memory_is_the_largest_of_all_steps():
    rows = [{"step": 1, "vram_gib": 70.0}, {"step": 2, "vram_gib": 76.0}, {"step": 3, "vram_gib": None}]
    assert gate(entry(vram_max_gib=75.0), rows).value == 76.0 and gate(entry(vram_max_gib=75.0), rows).crossed
    assert not gate(entry(vram_max_gib=76.0), rows).crossed and gate(entry(vram_max_gib=1.0)).value is None


def test_a_probe_is_due_from_its_step_on_and_takes_the_last_value_that_is_one():
    rows = [{"step": 1, "reward_mean": 0.1}, {"step": 2, "reward_mean": None}]
    assert not gate(entry(probe=Probe("reward_mean", 0.2, 3)), rows).crossed
    assert gate(entry(probe=Probe("reward_mean", 0.2, 2)), rows).crossed
    assert not gate(entry(probe=Probe("reward_mean", 0.1, 2)), rows).crossed
    evaluations = [{"step": 0, "successes": 3}, {"step": 2, "successes": 8}]
    held_out = gate(entry(probe=Probe("eval.successes", 9, 2)), rows, evaluations)
    assert held_out.crossed and held_out.value == 8


def test_a_probe_that_has_no_value_when_it_is_due_has_crossed():
    assert gate(entry(probe=Probe("no_such_key", 0.0, 1)), [{"step": 1}]).crossed
    assert not gate(entry(probe=Probe("no_such_key", 0.0, 2)), [{"step": 1}]).crossed


def test_every_limit_is_evaluated():
    every = entry(gpu_h_max=1.0, wall_h_max=1.0, vram_max_gib=1.0, probe=Probe("x", 1.0, 1))
    told = judge(every, True, BEAT, [{"step": 1}], [], NOW)
    assert [one.gate for one in told.gates] == ["gpu_h_max", "wall_h_max", "vram_max_gib", "probe"]
    assert json.loads(json.dumps(told.body()))["crossed"] == ["wall_h_max", "probe"]


def test_files_that_grow_are_read_up_to_their_last_whole_line(tmp_path):
    file = tmp_path / "train.jsonl"
    assert whole_rows(file) == []
    file.write_bytes(b'{"step": 1}\n{"step": 2, "x": 0.5}\n{"st')
    assert [row["step"] for row in whole_rows(file)] == [1, 2]
    assert last_value(whole_rows(file), "x") == 0.5 and last_value(whole_rows(file), "y") is None


def test_a_run_is_examined_from_its_own_files(tmp_path):
    opened = watch.open(tmp_path / "run", gates=WatchGates(vram_max_gib=1.0), where=tmp_path / "watch")
    assert health.examine(opened).state == "live"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.jsonl").write_text('{"step": 3, "vram_gib": 2.0}\n')
    (tmp_path / "run" / "heartbeat.json").write_text(json.dumps(BEAT | {"utc": opened.opened_utc}))
    told = health.examine(opened)
    assert (told.step, told.steps, told.phase, [one.gate for one in told.crossed]) == (3, 5, "train", ["vram_max_gib"])
