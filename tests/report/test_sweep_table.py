"""The table of many runs, from rows that are written down here."""

import csv
import io

from rich.console import Console

from vla_rl.report import sweep

BEFORE = {"successes": 4, "trials": 10, "success_low": 0.12, "success_high": 0.74, "reward_mean": 1.5, "lifted": 3}
AFTER = BEFORE | {"successes": 7, "success_low": 0.35, "success_high": 0.93, "reward_mean": 2.5}
READ = {
    "success": {"mean": 0.3, "low": -0.1, "high": 0.7, "pairs": 10},
    "reward_cm": {"mean": 1.0, "low": 0.25, "high": 1.75},
}
DONE = {"finished": True, "steps": [{}, {}], "before": BEFORE, "after": AFTER, "read": READ, "run_dir": "a"}


def job(name, **changes):
    body = {"name": name, "facts": {"overrides": ["run.steps=2"], "values": {"optim.lr": "1e-06", "eval.seeds": "1,2"}}}
    return body | {"state": "ended", "exit_code": 0, "seconds": 3.0} | changes


def row(job, summary=DONE, fault=None):
    made = sweep.row(job, summary, ["optim.lr", "eval.seeds"], log=f"{job['name']}.log")
    return made | {"run_dir": "a", "fault": fault}


ROWS = [
    row(job("00")),
    row(job("01", exit_code=3), {**DONE, "finished": False, "after": None, "read": None}),
    row(job("02", exit_code=-9), None),
    row(job("03", state="planned", exit_code=None, seconds=None), None),
]
SWEPT = ["optim.lr", "eval.seeds"]


def test_the_csv_has_every_number_in_a_column_of_its_own():
    done, stopped, killed, unborn = csv.DictReader(io.StringIO(sweep.as_csv(ROWS, SWEPT)))
    assert (done["job"], done["optim.lr"], done["eval.seeds"], done["steps"]) == ("00", "1e-06", "1,2", "2")
    assert (done["before_successes"], done["after_successes"], done["after_trials"]) == ("4", "7", "10")
    assert (done["change_mean"], done["change_low"], done["change_high"]) == ("0.3", "-0.1", "0.7")
    assert done["reward_change_cm_high"] == "1.75"
    assert (stopped["exit_code"], stopped["before_successes"], stopped["after_successes"]) == ("3", "4", "")
    assert (killed["exit_code"], killed["before_trials"]) == ("-9", "")
    assert (unborn["state"], unborn["exit_code"], unborn["change_mean"]) == ("planned", "", "")


def test_the_table_shows_counts_intervals_and_how_each_job_ended():
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(sweep.table(ROWS, SWEPT, "a title"))
    shown = console.export_text()
    first = next(line for line in shown.splitlines() if " 00 " in line)
    assert "4/10 -> 7/10 [35, 93] %" in first and "+30.00 points [-10.00, +70.00]" in first
    assert "+1.00 cm [+0.25, +1.75]" in first and "done" in first
    for words in ("a title", "stopped itself (3)", "killed by SIGKILL", "not run"):
        assert words in shown


def test_markdown_is_the_same_table_and_warns_of_choosing_the_best_only_where_there_is_a_choice():
    text = sweep.as_markdown([row(job("0|0")), row(job("01"))], SWEPT, "a title")
    assert text.startswith("a title\n\n| job | optim.lr | eval.seeds | steps |")
    assert "| 0\\|0 | 1e-06 | 1,2 | 2 | 4/10 -> 7/10 [35, 93] % | +30.00 points" in text
    assert "not corrected for looking at several runs" in text
    assert "not corrected" not in sweep.as_markdown(ROWS[:1], SWEPT, "a title")


def test_a_fault_shows_although_the_process_ended_well():
    assert sweep.ending(row(job("00"), fault="it played another")) == "done, but it played another"
    assert sweep.ending(row(job("00"), {**DONE, "finished": False})) == "unfinished"
