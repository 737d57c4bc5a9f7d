"""One job of a multirun: a command of this program in a process of its own, its log, and a file that tells of it.

In: a job's file. Out: the same file, brought up to date when the process starts and when it ends, however it ends.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from vla_rl.errors import UsageError
from vla_rl.files import create_atomic, write_atomic
from vla_rl.prereg.process import Process
from vla_rl.rl.rundir import is_run
from vla_rl.rollout.jsonl import dump_json

JOBS = "jobs"
PLANNED, RUNNING, ENDED, INTERRUPTED = "planned", "running", "ended", "interrupted"
HEED_S = 1.0  # a signal waits no longer
GRACE_S = (30.0, 5.0)  # for a job that is told to end, after SIGINT and after SIGTERM
# A launcher's worker processes may come with limits of their own (joblib's do); a job has those of the command.
THREADS = tuple(f"{name}_NUM_THREADS" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "VECLIB_MAXIMUM", "NUMEXPR"))


@dataclass(frozen=True)
class Job:
    """What is to be run.

    Attributes:
        name: letters, digits, ``_`` and ``-``; also the name of its files.
        start: the arguments of ``vla-rl``; with --json among them its answer is kept.
        go_on: the arguments when its run was begun before.
        run_dir: where the command works, if that is known beforehand.
        facts: what whoever plans it wants to find again in its file, e.g. ``{"overrides": [...]}``.
    """

    name: str
    start: tuple[str, ...]
    go_on: tuple[str, ...] = ()
    run_dir: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, directory: Path) -> None:
        """Write its file.

        Raises:
            UsageError: it exists, or the name cannot be that of a file.
        """
        if not re.fullmatch(r"[\w-]+", self.name):
            raise UsageError(f"{self.name!r} cannot be the name of a job", remedy="use letters, digits, _ and -")
        unset = dict.fromkeys(("process", "started_utc", "ended_utc", "seconds", "exit_code", "summary"))
        body = {**asdict(self), "more": [], "state": PLANNED, "attempts": 0, **unset}
        if not create_atomic(job_file(directory, self.name), dump_json(body, indent=1).encode()):
            raise UsageError(
                "there is a job of this name already", where=str(job_file(directory, self.name)),
                remedy="name another directory",
            )  # fmt: skip


def job_file(directory: Path, name: str) -> Path:
    return directory / JOBS / f"{name}.json"


def log_file(directory: Path, name: str) -> Path:
    return directory / JOBS / f"{name}.log"


def read_job(directory: Path, name: str) -> dict[str, Any]:
    """What its file says: the attributes of `Job`, and

    - `more`: arguments of this attempt, see `replan`;
    - `state`: ``planned``, ``running``, ``ended`` or ``interrupted``; `attempts`: how often it was started;
    - `process`: the last one, see `Process`; `started_utc`, `ended_utc`, `seconds`: of the last attempt;
    - `exit_code`: of an ended one; negative: the signal that ended it;
    - `summary`: what it printed on stdout, if that is one JSON object.
    """
    return json.loads(job_file(directory, name).read_bytes())


def replan(directory: Path, name: str, more: Sequence[str]) -> None:
    """Make a job ready for another attempt, with further arguments that hold for this one."""
    _write(directory, read_job(directory, name), state=PLANNED, more=list(more))


def is_busy(record: Mapping[str, Any]) -> bool:
    """Whether the process of a job still runs, on this machine."""
    return record["process"] is not None and bool(Process.of_body(record["process"]).alive())


def run_one(directory: Path, name: str, threads: Mapping[str, str]) -> None:
    """Run a job to its end; its exit code is in its file and nowhere else.

    Args:
        threads: the thread limits of the environment that the multirun was started in.

    Raises:
        KeyboardInterrupt: and anything else that comes while waiting; the job has been ended.
    """
    record = read_job(directory, name)
    begun = record["attempts"] and record["run_dir"] and is_run(Path(record["run_dir"]))
    command = [*_python(), *(record["go_on"] if begun and record["go_on"] else record["start"]), *record["more"]]
    environment = {k: v for k, v in os.environ.items() if k not in THREADS} | {**threads, "PYTHONUNBUFFERED": "1"}
    clock, process = time.monotonic(), None
    record |= {"attempts": record["attempts"] + 1, "started_utc": _now(), "exit_code": None, "summary": None}
    with open(log_file(directory, name), "ab") as log, tempfile.TemporaryFile() as answer:
        try:
            # A session of its own: what interrupts the terminal reaches the multirun, and that ends its jobs.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=answer, stderr=log, env=environment, start_new_session=True
            )
            started = Process.of(process.pid)
            _write(directory, record, state=RUNNING, process=started.body() if started else None)
            code = _wait(process)
        except BaseException:
            if process is not None:
                _end(process)
            _write(directory, record, state=INTERRUPTED, ended_utc=_now(), seconds=time.monotonic() - clock)
            raise
        summary = _answer(answer)
    spent = {"ended_utc": _now(), "seconds": time.monotonic() - clock}
    _write(directory, record, state=ENDED, exit_code=code, summary=summary, **spent)


def end_leftover(directory: Path, name: str) -> None:
    """End a job whose multirun is over: one whose launcher's process went away without doing so."""
    record = read_job(directory, name)
    if record["state"] != RUNNING:
        return
    if is_busy(record):
        patience = time.monotonic() + sum(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(record["process"]["pid"], signal.SIGINT)
            while is_busy(record) and time.monotonic() < patience:
                time.sleep(0.1)
            os.killpg(record["process"]["pid"], signal.SIGKILL)
    record = read_job(directory, name)  # its launcher may have written meanwhile
    spent_s = (datetime.now(UTC) - datetime.fromisoformat(record["started_utc"])).total_seconds()
    _write(directory, record, state=INTERRUPTED, ended_utc=_now(), seconds=spent_s)


def log_tail(directory: Path, name: str, lines: int) -> str:
    """The end of what a job said."""
    try:
        text = log_file(directory, name).read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(line.rstrip() for line in text.splitlines()[-lines:])


def _python() -> list[str]:
    """This program, with the working directory on its path only if it is on ours."""
    here = bool({"", os.getcwd()} & set(sys.path))
    return [sys.executable, *([] if here else ["-P"]), "-m", "vla_rl.cli.main"]


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a job. A signal that comes just before a wait without a limit is heeded only after it."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(HEED_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a job and all that it has started; a second interrupt does not wait."""
    try:
        for number, patience_s in zip((signal.SIGINT, signal.SIGTERM), GRACE_S, strict=True):
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
                return
    except ProcessLookupError:
        return
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answer(answer: IO[bytes]) -> dict[str, Any] | None:
    answer.seek(0)
    try:
        value = json.loads(answer.read())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _write(directory: Path, record: dict[str, Any], **changes: Any) -> None:
    record |= changes
    write_atomic(job_file(directory, record["name"]), dump_json(record, indent=1).encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
