"""What `vla-rl eval` and `vla-rl probe` share: how a sealed job starts, stops at its time limit and goes on.

In: a job's `run` section. Out: the directory to work in, what its episodes are made under, or one resume line. Nothing
here tells an outcome. Left out: the finished episodes themselves (`evals.kept`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vla_rl.cli.options import print_json
from vla_rl.cli.resume import FREE_WITH_POOL
from vla_rl.cli.startup import check_unused, new_run_dir
from vla_rl.config.schema import EvalJobConfig
from vla_rl.errors import UsageError, VlaRlError
from vla_rl.evals.kept import FOLDER, count_kept
from vla_rl.report.progress import ProgressView

FREE_AT_RESUME = (*FREE_WITH_POOL, "policy.workers")  # the last is the scripted expert's


def choose_directory(command: str, job: EvalJobConfig, record: str) -> Path:
    """Where a job works: an unused directory, or that of a stopped job.

    Args:
        command: ``"eval"`` or ``"probe"``.
        job: its `run` section.
        record: name of the file that a complete job has written.

    Raises:
        UsageError: the directory is in use, or what lies in it is complete.
    """
    resume, chosen = job.resume, job.dir
    directory = Path(resume or chosen or new_run_dir(command))
    if resume is None:
        check_unused(directory)
    elif (directory / record).is_file() and not (directory / FOLDER).is_dir():
        raise UsageError(
            f"this {command} is complete", where=str(directory / record), remedy="name another run.dir to do it again"
        )
    return directory


@contextmanager
def without_leftovers(directory: Path) -> Iterator[None]:
    """If the job fails before its first episode has ended, a directory that it has made goes again."""
    there_before = directory.exists()
    try:
        yield
    except VlaRlError:
        if not there_before and not count_kept(directory):
            shutil.rmtree(directory, ignore_errors=True)
        raise


def conditions(policy: Any, scene: Mapping[str, Any]) -> dict[str, Any]:
    """What decides an episode beside the configuration: the very weights, and the scene."""
    digest = getattr(policy, "digest", None)
    return {
        "policy_digest": digest() if digest else None,
        "protocol": scene.get("protocol"),
        "scene_hash": scene.get("scene_hash"),
    }


def say_stopped(view: ProgressView, command: str, directory: Path, *, before: int, total: int, as_json: bool) -> None:
    """Tell that the time limit has passed, how to go on, and whether going on like this would lead anywhere.

    Args:
        before: finished episodes when this launch began.
        total: episodes of the whole job.
        as_json: also print one JSON object on stdout.
    """
    done, go_on = count_kept(directory), f"vla-rl {command} run.resume={directory}"
    view.say(f"stopped with {done} of {total} episodes; continue with {go_on}")
    if done == before:
        view.say("no episode ended within the limit: give it more time, or start anew with fewer slots")
    if as_json:
        print_json(
            {"directory": str(directory), "complete": False, "finished": done, "episodes": total, "resume": go_on}
        )
