"""`vla-rl train -m`: every combination of the values given is a training run of its own, in a process of its own.

In: an override line with several values for some keys. Out: a directory with a run a job, and one table of all of them
on the terminal, as CSV, Markdown and JSON. Every job's configuration is composed before the first one starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vla_rl.cli import onejob
from vla_rl.cli.jobs import check_launcher
from vla_rl.cli.manyjobs import job_row, read_record, run_and_report, to_do, write_record
from vla_rl.cli.onejob import Job, read_job
from vla_rl.cli.options import parse, print_json
from vla_rl.cli.resume import FREE_OF_TRAINING
from vla_rl.cli.startup import new_run_dir
from vla_rl.cli.train import PLACE, check_settings
from vla_rl.config.compose import compose
from vla_rl.config.grid import Grid, expand
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import GeometryConfig, MonitorConfig, RunConfig
from vla_rl.errors import ConfigError, UsageError
from vla_rl.report.progress import ProgressView
from vla_rl.rl.plan import Geometry
from vla_rl.seeds import parse_seeds

EXAMPLES = (
    "vla-rl train -m experiment=quickstart optim.lr=3e-6,1e-5 loss.kl_beta=0,1",
    "vla-rl train -m experiment=quickstart run.seed='range(0,4)' hydra/launcher=joblib hydra.launcher.n_jobs=2",
    "vla-rl train -m run.resume=outputs/multirun/quickstart/20261130T101500Z-1a2b",
)


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
