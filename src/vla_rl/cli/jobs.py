"""Runs jobs through Hydra's multirun, one process a job: the engine of `vla-rl train -m`.

In: commands of this program. Out: `<directory>/jobs/<name>.json`, what became of each, and `<name>.log`, what it said.
A job that fails does not stop the others; whoever is interrupted ends its jobs first. Hydra and its launchers
(in turn, joblib, submitit) decide when and where a job runs; they see its name only. Left out: what the commands do,
and what is shown of them (`on_change` is told).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from hydra import compose as hydra_compose
from hydra import initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from omegaconf import MISSING
from omegaconf.errors import OmegaConfBaseException

from vla_rl.cli.onejob import JOBS, THREADS, Job, end_leftover, read_job, run_one
from vla_rl.errors import UsageError, VlaRlError

NODE = "vla_rl_job"
POLL_S = 0.3


@dataclass
class JobNode:
    """What Hydra composes for a job: enough to find it again, in whatever process and on whatever machine."""

    directory: str = MISSING
    job: str = MISSING
    threads: dict[str, str] = field(default_factory=dict)


def check_launcher(launcher: Sequence[str]) -> None:
    """Refuse a launcher, or an option of one, that Hydra does not know, before anything is made.

    Raises:
        UsageError: saying what to install, or what is wrong with it.
    """
    with _own_hydra(), initialize(config_path=None, version_base="1.3"):
        try:
            hydra_compose(NODE, [*launcher, "directory='.'", "job='x'"], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            text = " ".join(f"{error} {error.__cause__ or ''}".split())
            missing = "Could not find 'hydra/launcher/" in text
            raise UsageError(
                "this launcher is not installed" if missing else f"the launcher cannot be set up: {text}",
                where=" ".join(launcher),
                remedy="pip install 'vla-rl[sweep]' brings joblib and submitit_local; without hydra/launcher jobs "
                "run one after the other" if missing else "see the launcher's own options in Hydra's documentation",
            ) from None  # fmt: skip


def plan_jobs(directory: Path, jobs: Sequence[Job]) -> None:
    """Write down what is to be run.

    Raises:
        UsageError: one of them is planned already.
    """
    (directory / JOBS).mkdir(exist_ok=True)
    for job in jobs:
        job.plan(directory)


def run_jobs(
    directory: Path, names: Sequence[str], launcher: Sequence[str], on_change: Callable[[Mapping[str, Any]], None]
) -> None:
    """Run planned jobs, all that there are, and come back when each has ended.

    Args:
        directory: of the multirun.
        names: of the jobs; there may be none.
        launcher: overrides of Hydra's launcher; none: one job after the other.
        on_change: told of each job that has started or ended, with what its file says, from a thread of its own.

    Raises:
        KeyboardInterrupt: interrupted, or told to end (SIGTERM, SIGHUP); the jobs under way have been ended.
        VlaRlError: Hydra or its launcher failed.
    """
    if not names:
        return
    check_launcher(launcher)
    with _ending_by_signal(), _watching(directory, names, on_change):
        try:
            _multirun(directory, names, launcher)
        finally:
            for name in names:
                end_leftover(directory, name)


def job_task(node: Any) -> None:
    """What Hydra calls for a job, in whichever process its launcher likes."""
    run_one(Path(node.directory), node.job, dict(node.threads))


def _multirun(directory: Path, names: Sequence[str], launcher: Sequence[str]) -> None:
    # None of Hydra's own records and logs: `.hydra` is no record, and its handlers would replace those of a host.
    arguments = [
        f"directory={_quoted(str(directory.resolve()))}", f"job={','.join(map(_quoted, names))}",
        *(f"+threads.{name}={_quoted(os.environ[name])}" for name in THREADS if name in os.environ),
        "hydra.sweep.dir=${directory}", f"hydra.sweep.subdir={JOBS}", "hydra.output_subdir=null",
        "hydra.job.chdir=false", "hydra/job_logging=none", "hydra/hydra_logging=none", *launcher,
    ]  # fmt: skip
    argv, sys.argv = sys.argv, ["vla-rl", "--multirun", *arguments]
    try:
        with _own_hydra():
            hydra.main(config_path=None, config_name=NODE, version_base="1.3")(job_task)()
    except SystemExit as error:
        raise VlaRlError(
            "Hydra or its launcher failed; what it says is above",
            where=" ".join(launcher) or "hydra",
            remedy=f"jobs that have ended are kept in {directory}",
        ) from error
    finally:
        sys.argv = argv


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Hydra's global state for us alone; a host's comes back afterwards."""
    saved = Singleton.get_state()
    try:
        GlobalHydra.instance().clear()
        ConfigStore.instance().store(name=NODE, node=JobNode)
        yield
    finally:
        Singleton.set_state(saved)


@contextmanager
def _ending_by_signal() -> Iterator[None]:
    """Whatever tells the command to end interrupts it, so that it ends its jobs; jobs are not in its process group."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _watching(directory: Path, names: Sequence[str], on_change: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    """Tell of changes in the jobs' files, which is all that every launcher has in common."""
    told = {name: _mark(read_job(directory, name)) for name in names}
    done = threading.Event()

    def look() -> None:
        for name in names:
            record = read_job(directory, name)
            if (mark := _mark(record)) != told[name]:
                told[name] = mark
                on_change(record)

    def watch() -> None:
        while not done.wait(POLL_S):
            look()

    thread = threading.Thread(target=watch, name="jobs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        look()


def _mark(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["state"], record["attempts"]


def _quoted(text: str) -> str:
    """A string that Hydra's grammar takes as it is."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
