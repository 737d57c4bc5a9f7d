"""`vla-rl train -m`: every combination of the values given is a training run of its own, in a process of its own.

In: an override line with several values for some keys. Out: a directory with a run a job, and one table of all of them
on the terminal, as CSV, Markdown and JSON. Every job's configuration is composed before the first one starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vla_rl.cli import onejob
from vla_rl.cli.jobs import check_launcher, plan_jobs, run_jobs
from vla_rl.cli.main import EXIT_INTERRUPTED
from vla_rl.cli.onejob import Job, log_file, log_tail, read_job
from vla_rl.cli.options import parse, print_json
from vla_rl.cli.resume import FREE_OF_TRAINING
from vla_rl.cli.startup import claim_directory, new_run_dir
from vla_rl.cli.train import PLACE, check_settings
from vla_rl.config.compose import compose
from vla_rl.config.grid import Grid, expand
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import GeometryConfig, MonitorConfig, RunConfig
from vla_rl.errors import EXIT_CRASH, EXIT_OK, EXIT_STOPPED, ConfigError, UsageError, VlaRlError
from vla_rl.report import sweep
from vla_rl.report.progress import ProgressView
from vla_rl.report.training import closing
from vla_rl.rl.plan import Geometry
from vla_rl.rl.rundir import MANIFEST, is_run
from vla_rl.rollout.files import dump_json, write_atomic
from vla_rl.seeds import parse_seeds

EXAMPLES = (
    "vla-rl train -m experiment=quickstart optim.lr=3e-6,1e-5 loss.kl_beta=0,1",
    "vla-rl train -m experiment=quickstart run.seed='range(0,4)' hydra/launcher=joblib hydra.launcher.n_jobs=2",
    "vla-rl train -m run.resume=outputs/multirun/quickstart/20261130T101500Z-1a2b",
)
RECORD = "sweep.json"
TAIL_LINES = 12


def run(argv: Sequence[str]) -> int:
    """Run all jobs, or those not done yet; 0: all went well, 3: some stopped themselves, 1: some failed."""
    options = parse(
        "train",
        argv,
        "With -m: a training run for every combination of values, each in a process of its own.",
        EXAMPLES,
    )
    keys = {key: text for key, _, text in (override.partition("=") for override in options.overrides)}
    with ProgressView() as view:
        if keys.get("run.resume", "null") != "null":
            directory, names = _resume(keys, options.overrides)
        else:
            directory, names = _plan(options.overrides)
        view.say(f"{len(names)} jobs to run in {directory}")
        record = run_and_report(directory, names, view)
        if options.json:
            print_json(record)
    return record["exit_code"]


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
    try:
        with open(directory / RECORD, "x") as file:
            file.write(dump_json(body, indent=1))
    except FileExistsError:
        raise UsageError("another process has just started here", where=str(directory), remedy="start again") from None
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


def _plan(overrides: Sequence[str]) -> tuple[Path, list[str]]:
    """Check every job, then make the directory."""
    grid = expand(overrides, unswept=("run.dir", "run.resume", "run.name"))
    check_launcher(grid.launcher)
    readers = [_composed(number, job, grid) for number, job in enumerate(grid.jobs)]
    directory = Path(readers[0].value("run.dir") or new_run_dir(f"multirun/{readers[0].value('run.name')}"))
    digits = max(2, len(str(len(readers) - 1)))
    each = enumerate(zip(readers, grid.values, strict=True))
    jobs = [_job(directory, f"{number:0{digits}}", reader, values) for number, (reader, values) in each]
    write_record(
        directory, jobs, swept=grid.swept, launcher=grid.launcher, title="Training runs, held-out before and after",
        go_on=f"vla-rl train -m run.resume={directory}",
    )  # fmt: skip
    return directory, [job.name for job in jobs]


def _job(directory: Path, name: str, reader: ConfigReader, values: Mapping[str, str]) -> Job:
    run_dir = (directory / f"{directory.name}-{name}").resolve()  # trackers call a run by its directory's own name
    overrides = [override for override in reader.overrides if override.partition("=")[0] not in PLACE]
    digest = reader.digest(*PLACE, *FREE_OF_TRAINING)
    return Job(
        name,
        start=("train", "--json", *overrides, _quoted("run.dir", run_dir)),
        go_on=("train", "--json", f"run.resume={run_dir}"),
        run_dir=str(run_dir),
        facts={"overrides": overrides, "values": dict(values), "config_digest": digest},
    )


def _quoted(key: str, path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{text}'"


def _composed(number: int, job: Sequence[str], grid: Grid) -> ConfigReader:
    """A job's configuration, with what can be refused before anything is loaded."""
    try:
        reader = compose("config", job)
        held_out = reader.section("eval", MonitorConfig)
        geometry = Geometry.of(reader.section("geometry", GeometryConfig))
        check_settings(reader.section("run", RunConfig), geometry, held_out, parse_seeds(held_out.seeds))
    except UsageError as error:
        values = " ".join(f"{key}={text}" for key, text in grid.values[number].items())
        where = f"{error.where or 'its configuration'}, job {number}" + (f" ({values})" if values else "")
        raise ConfigError(error.what, where=where, remedy=error.remedy) from error
    return reader


def _resume(keys: Mapping[str, str], overrides: Sequence[str]) -> tuple[Path, list[str]]:
    """The jobs of a directory that are not done, made ready for another attempt."""
    refused = [key for key in keys if key not in ("run.resume", *FREE_OF_TRAINING)]
    if refused:
        raise UsageError(
            f"jobs go on with their own configurations; {refused[0]} would change them",
            where="command line",
            remedy=f"beside run.resume only {', '.join(FREE_OF_TRAINING)} may be given",
        )
    directory = Path(keys["run.resume"])
    record = read_record(directory)
    rows = [job_row(directory, name, record["swept"]) for name in record["jobs"]]
    budget = any(key.startswith("budget.") for key in keys)
    names = [row["job"] for row in rows if to_do(row, stopped_too=budget)]
    for name in names:
        if onejob.is_busy(read_job(directory, name)):
            raise UsageError("a job is being worked on", where=f"job {name} in {directory}", remedy="wait for it")
    for name in names:
        onejob.replan(directory, name, [text for text in overrides if not text.startswith("run.resume=")])
    return directory, names


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
