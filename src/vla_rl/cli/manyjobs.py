"""Many jobs and what came of them: the record that a directory of jobs has, the run of them, the table at the end.

In: jobs of whatever command trains (`vla-rl train`, or a launch of a registered arm). Out: `sweep.json`, `summary.csv`,
`summary.md`, what is told on the way, and an exit code. Left out: which jobs there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vla_rl.cli import onejob
from vla_rl.cli.jobs import plan_jobs, run_jobs
from vla_rl.cli.main import EXIT_INTERRUPTED
from vla_rl.cli.onejob import Job, log_file, log_tail, read_job
from vla_rl.cli.startup import claim_directory
from vla_rl.errors import EXIT_CRASH, EXIT_OK, EXIT_STOPPED, UsageError, VlaRlError
from vla_rl.files import create_atomic, write_atomic
from vla_rl.report import sweep
from vla_rl.report.progress import ProgressView
from vla_rl.report.training import closing
from vla_rl.rl.rundir import MANIFEST, is_run
from vla_rl.rollout.jsonl import dump_json

RECORD = "sweep.json"
TAIL_LINES = 12


def run_and_report(directory: Path, names: Sequence[str], view: ProgressView) -> dict[str, Any]:
    """Run planned jobs of a directory whose `sweep.json` is written, and sum up all that the directory holds.

    Returns:
        What `sweep.json` says then; `exit_code` is that of the command.
    """
    record, failure = read_record(directory), None
    tell = _Teller(directory, names, record["swept"], view)
    try:
        run_jobs(directory, names, record["launcher"], tell)
    except (KeyboardInterrupt, VlaRlError) as error:
        failure = error
    rows = [job_row(directory, name, record["swept"]) for name in record["jobs"]]
    code = EXIT_INTERRUPTED if isinstance(failure, KeyboardInterrupt) else exit_code(rows)
    record |= {"rows": rows, "exit_code": code}
    write_atomic(directory / RECORD, dump_json(record, indent=1).encode())
    files = sweep.write_files(directory, rows, record["swept"], record["title"])
    view.show(sweep.table(rows, record["swept"], record["title"]))
    view.say(sweep.note(rows))
    view.say(f"files:    {directory}  ({', '.join([RECORD, *files])})")
    if any(to_do(row) for row in rows):
        view.say(f"go on with: {record['go_on']}")
    if isinstance(failure, VlaRlError):
        raise failure
    return record


def write_record(
    directory: Path, jobs: Sequence[Job], *, swept: Sequence[str], launcher: Sequence[str], title: str, go_on: str
) -> None:
    """Take a directory for a multirun and plan its jobs.

    Args:
        swept: keys by which the jobs differ: a column each, filled from a job's ``values`` fact.
        title: over the table.
        go_on: the command that goes on with what was not finished.

    Raises:
        UsageError: the directory is in use.
    """
    claim_directory(directory)
    body = {
        "title": title, "swept": list(swept), "launcher": list(launcher), "jobs": [job.name for job in jobs],
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"), "go_on": go_on, "rows": None, "exit_code": None,
    }  # fmt: skip
    if not create_atomic(directory / RECORD, dump_json(body, indent=1).encode()):
        raise UsageError("another process has just started here", where=str(directory), remedy="start again")
    plan_jobs(directory, jobs)


def read_record(directory: Path) -> dict[str, Any]:
    """What `sweep.json` of a directory says.

    Raises:
        UsageError: there is none.
    """
    try:
        return json.loads((directory / RECORD).read_bytes())
    except FileNotFoundError:
        raise UsageError(
            "there is no multirun here", where=str(directory), remedy="with -m, run.resume takes a multirun's directory"
        ) from None


def job_row(directory: Path, name: str, swept: Sequence[str]) -> dict[str, Any]:
    """A line of the table, from the files of the job and of its run."""
    job = read_job(directory, name)
    place = job["run_dir"] or (job["summary"] or {}).get("run_dir")
    summary = job["summary"] or (closing(Path(place), finished=False) if place and is_run(Path(place)) else None)
    row = sweep.row(job, summary, swept, log=str(log_file(directory, name)))
    return row | {"run_dir": place, "fault": _fault(job, place)}


def exit_code(rows: Sequence[Mapping[str, Any]]) -> int:
    """0: all jobs ended well; 3: the others stopped themselves; 1: some failed, or did not run."""
    failed = [row for row in rows if row["state"] != onejob.ENDED or row["exit_code"] != EXIT_OK or row["fault"]]
    if all(row["exit_code"] == EXIT_STOPPED and not row["fault"] for row in failed):
        return EXIT_STOPPED if failed else EXIT_OK
    return EXIT_CRASH


def to_do(row: Mapping[str, Any], *, stopped_too: bool = False) -> bool:
    """Whether another launch would take a job up: not one that is finished or has stopped itself."""
    if row["state"] != onejob.ENDED or row["exit_code"] not in (EXIT_OK, EXIT_STOPPED):
        return True
    return stopped_too if row["exit_code"] == EXIT_STOPPED else row["finished"] is False


def _fault(job: Mapping[str, Any], place: str | None) -> str | None:
    """What is wrong with a run although its process may have ended well: files in conf/ were changed meanwhile."""
    planned, manifest = job["facts"].get("config_digest"), Path(place or ".") / MANIFEST
    if not planned or not place or not manifest.is_file():
        return None
    played = json.loads(manifest.read_bytes())["launches"][0].get("config_digest")
    return None if played == planned else "its configuration is not the one that was planned: conf/ has changed since"


class _Teller:
    """Says what becomes of jobs while they run."""

    def __init__(self, directory: Path, names: Sequence[str], swept: Sequence[str], view: ProgressView) -> None:
        self._directory, self._swept, self._view = directory, swept, view
        self._total, self._ended = len(names), 0

    def __call__(self, job: Mapping[str, Any]) -> None:
        row = job_row(self._directory, job["name"], self._swept)
        if job["state"] == onejob.RUNNING:
            values = " ".join(f"{key}={value}" for key, value in row["values"].items())
            self._view.say(f"job {job['name']} started: {values or 'with what was given'}")
            return
        self._ended += 1
        count = f"({self._ended} of {self._total})"
        self._view.say(f"job {job['name']} {sweep.ending(row)} after {job['seconds'] or 0:.0f} s {count}")
        if row["exit_code"] not in (EXIT_OK, None):
            log = log_file(self._directory, job["name"])
            tail = log_tail(self._directory, job["name"], TAIL_LINES)
            self._view.say(f"  the end of {log}:\n" + "\n".join(f"  | {line}" for line in tail.splitlines()))
        if self._view.console.is_terminal:
            self._view.advance("jobs", self._ended, self._total, "jobs")
