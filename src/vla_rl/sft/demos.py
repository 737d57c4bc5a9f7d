"""Record demonstrations in parallel: a recipe in, a LeRobot v3.0 dataset out.

One spawned process per worker, each with its own GL context; the parent hands out shards, counts, and merges the shards
once they are all there. A recording that was stopped or killed goes on with the shards that are missing. What is
recorded is decided by `recipe` and `sources`, how it lies on disk by `shards` and `merge`; training tensors are
`dataset`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from vla_rl import errors
from vla_rl.errors import RolloutError, UsageError, VlaRlError
from vla_rl.files import write_atomic
from vla_rl.rl.rundir import CONFIG
from vla_rl.rollout.events import OnEvent
from vla_rl.rollout.jsonl import dump_json
from vla_rl.sft import lerobot
from vla_rl.sft.events import EpisodesMerged, ShardRecorded
from vla_rl.sft.merge import OWN_META, clear_staging, is_merged, merge
from vla_rl.sft.recipe import RECIPE_FILE, DemoRecipe, check_same, write_recipe
from vla_rl.sft.recording import RecordedEpisode
from vla_rl.sft.shards import STAGING, read_outcome, shard_paths, write_shard

SUMMARY_FILE = "summary.json"
SHARD_ATTEMPTS = 3
SILENT_S = 180.0  # an episode; a recorder that takes longer for its shard hangs and is replaced


@dataclass(frozen=True)
class DemoSummary:
    """Counts over the finished shards.

    Attributes:
        attempts, kept: episodes tried, and episodes in the dataset.
        rows, taught: stored frames (one a tick), and those that may be imitated.
        failures: reason -> count, over the attempts that were no success.
        noisy, missed: (attempts, kept) of the noisy and of the deliberately missing episodes.
        shards_done, shards_total: progress; `complete` when equal.
        scene_hash: digest of physics and pictures.
        recipe_sha256: digest of the recipe, which `experience.recipe_sha256` can ask for.
        wall_s: wall time of this call.
    """

    attempts: int
    kept: int
    rows: int
    taught: int
    failures: dict[str, int]
    noisy: tuple[int, int]
    missed: tuple[int, int]
    shards_done: int
    shards_total: int
    scene_hash: str | None
    recipe_sha256: str
    wall_s: float

    @property
    def complete(self) -> bool:
        return self.shards_done == self.shards_total


def record_demos(
    *, out_dir: Path, recipe: DemoRecipe, workers: int, on_event: OnEvent, max_wall_s: float | None
) -> DemoSummary:
    """Record every shard that `out_dir` does not hold yet; once all are there, make the dataset.

    Args:
        out_dir: a new directory, or one that a stopped recording of the same recipe left.
        recipe: what to record.
        workers: recording processes.
        on_event: gets a `ShardRecorded` after each shard and `EpisodesMerged` while the dataset is made.
        max_wall_s: no further shard is started after this many seconds; running ones are finished.

    Raises:
        UsageError: `out_dir` holds something else, or no episode was kept.
        MachineError: a worker cannot render.
        RolloutError: a shard's worker died repeatedly.
        IntegrityError: a damaged shard or stored rollout.
    """
    started = time.monotonic()
    if is_merged(out_dir):
        stored = json.loads((out_dir / OWN_META).read_text())
        check_same(stored, recipe, where=out_dir / OWN_META)
        clear_staging(out_dir)
        return _write_summary(out_dir, _summary(stored["counts"], recipe, wall_s=time.monotonic() - started))
    _open_staging(out_dir, recipe)
    pending = [i for i in range(len(recipe.shards())) if not shard_paths(out_dir, i)[1].exists()]
    deadline = started + max_wall_s if max_wall_s is not None else None
    _record_shards(out_dir, recipe, deque(pending), workers=workers, deadline=deadline, on_event=on_event)
    counts = count(out_dir, recipe)
    summary = _summary(counts, recipe, wall_s=0.0)
    if summary.complete:
        if not summary.kept:
            raise UsageError(
                f"none of {summary.attempts} episodes was kept: {summary.failures}",
                where=str(out_dir),
                remedy="record other seeds or rollouts into a new directory",
            )
        merge(out_dir, recipe, counts, on_episode=lambda done: on_event(EpisodesMerged(done, summary.kept)))
    return _write_summary(out_dir, _summary(counts, recipe, wall_s=time.monotonic() - started))


def count(directory: Path, recipe: DemoRecipe) -> dict[str, Any]:
    """Counts over the shards that are complete, JSON-able; they depend on those shards alone."""
    found = [read_outcome(directory, i) for i in range(len(recipe.shards()))]
    outcomes = [outcome for outcome in found if outcome is not None]
    attempts = [attempt for outcome in outcomes for attempt in outcome["attempts"]]
    episodes = [episode for outcome in outcomes for episode in outcome["episodes"]]

    def flagged(flag: str) -> list[int]:
        those = [attempt for attempt in attempts if attempt[flag]]
        return [len(those), sum(attempt["kept"] for attempt in those)]

    return {
        "attempts": len(attempts),
        "kept": len(episodes),
        "rows": sum(episode["length"] for episode in episodes),
        "taught": sum(episode["taught_frames"] for episode in episodes),
        "failures": dict(sorted(Counter(a["failure"] for a in attempts if a["failure"] is not None).items())),
        "noisy": flagged("noisy"),
        "missed": flagged("missed"),
        "shards_done": len(outcomes),
    }


def _summary(counts: dict[str, Any], recipe: DemoRecipe, *, wall_s: float) -> DemoSummary:
    values: dict[str, Any] = counts | {name: tuple(counts[name]) for name in ("noisy", "missed")}
    facts: dict[str, Any] = {"scene_hash": recipe.scene["scene_hash"], "recipe_sha256": recipe.digest}
    return DemoSummary(**values, shards_total=len(recipe.shards()), **facts, wall_s=wall_s)


def _write_summary(out_dir: Path, summary: DemoSummary) -> DemoSummary:
    record = {**asdict(summary), "complete": summary.complete}
    write_atomic(out_dir / SUMMARY_FILE, (dump_json(record, indent=1) + "\n").encode())
    return summary


def _open_staging(out_dir: Path, recipe: DemoRecipe) -> None:
    """The staging directory of this recipe, new or the one to go on in.

    Raises:
        UsageError: the directory holds another recipe's demonstrations, or other files.
    """
    staging = out_dir / STAGING
    if not staging.exists() and out_dir.exists() and any(e.name != CONFIG for e in out_dir.iterdir()):
        raise UsageError(
            "the directory is not empty and holds no demonstrations", where=str(out_dir), remedy="name a new one"
        )
    staging.mkdir(parents=True, exist_ok=True)
    write_recipe(staging / RECIPE_FILE, recipe)


# ------------------------------------------------------------------------------------------------- parent: hand out
def _record_shards(
    out_dir: Path, recipe: DemoRecipe, pending: deque[int], *, workers: int, deadline: float | None, on_event: OnEvent
) -> None:
    tries: Counter[int] = Counter()
    crew: dict[Connection, tuple[Any, int, float]] = {}  # process, shard, and when it began
    limit_s = SILENT_S * recipe.shard_episodes

    def in_time() -> bool:
        return deadline is None or time.monotonic() < deadline

    def assign(connection: Connection, process: Any) -> None:
        if pending and in_time():
            crew[connection] = (process, pending.popleft(), time.monotonic())
            with suppress(OSError):  # a worker that has died meanwhile is noticed by the next `wait`
                connection.send(crew[connection][1])
        else:
            with suppress(OSError):
                connection.send(None)
            connection.close()
            process.join()

    try:
        for _ in range(min(workers, len(pending)) if in_time() else 0):
            assign(*_hire(out_dir, recipe))
        while crew:
            for connection in wait(list(crew), timeout=limit_s):
                assert isinstance(connection, Connection)
                process, index, _ = crew.pop(connection)
                if _finished(connection, index):
                    on_event(_recorded(out_dir, recipe, index))
                    assign(connection, process)
                    continue
                # The process died (out of memory, a driver crash): its shard goes to a fresh one.
                process.join()
                tries[index] += 1
                if tries[index] >= SHARD_ATTEMPTS:
                    what = f"shard {index} killed its recorder {tries[index]} times (exit code {process.exitcode})"
                    remedy = (
                        "look for memory pressure or GL driver errors; finished shards are kept, repeat the command"
                    )
                    raise RolloutError(what, where=str(out_dir), remedy=remedy)
                pending.appendleft(index)
                assign(*_hire(out_dir, recipe))
            for process, _, began_s in crew.values():
                if time.monotonic() - began_s > limit_s:
                    process.kill()  # hangs; the next `wait` finds it dead
    finally:
        for process, _, _ in crew.values():
            process.terminate()
            process.join()


def _hire(out_dir: Path, recipe: DemoRecipe) -> tuple[Connection, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_worker, args=(theirs, str(out_dir), recipe), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _recorded(out_dir: Path, recipe: DemoRecipe, index: int) -> ShardRecorded:
    outcome = read_outcome(out_dir, index)
    assert outcome is not None
    total = len(recipe.shards())
    done = sum(shard_paths(out_dir, i)[1].exists() for i in range(total))
    rows = sum(episode["length"] for episode in outcome["episodes"])
    return ShardRecorded(index, done, total, len(outcome["attempts"]), len(outcome["episodes"]), rows)


def _finished(connection: Connection, index: int) -> bool:
    """Whether the worker reported its shard; False when it died. Its errors are raised here."""
    try:
        failure = connection.recv()
    except (EOFError, ConnectionError):
        return False
    if failure is None:
        return True
    kind, parts, trace = failure
    if kind is not None:
        known = getattr(errors, kind, VlaRlError)  # a plug-in may have errors of its own
        raise known(parts[0], where=parts[1], remedy=parts[2])
    raise RolloutError(
        f"recording shard {index} failed:\n{trace}",
        remedy="the finished shards are kept; repeat the command after a fix",
    )


# ----------------------------------------------------------------------------------------------------- child: record
def _worker(connection: Connection, out_dir: str, recipe: DemoRecipe) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        source, schema = None, lerobot.data_schema(lerobot.features(recipe.scene["image_px"]))
        while (index := connection.recv()) is not None:
            if source is None:
                from vla_rl.sft.sources import open_source

                source = open_source(recipe)
            episodes = _episodes(source, recipe.shards()[index])
            write_shard(Path(out_dir), index, episodes, schema, success_only=recipe.success_only)
            connection.send(None)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):  # the parent is gone or stops everything
        return
    except VlaRlError as error:
        connection.send((type(error).__name__, (error.what, error.where, error.remedy), ""))
    except Exception:  # a crash is reported with its traceback, then ends this process
        connection.send((None, (), traceback.format_exc()))


def _episodes(source: Any, jobs: Sequence[Any]) -> Iterator[RecordedEpisode]:
    """One episode a job, for as long as there is a parent to record for.

    Raises:
        EOFError: the parent is gone; a recording that goes on meanwhile must not meet a second writer.
    """
    parent = multiprocessing.parent_process()
    for job in jobs:
        if parent is not None and not parent.is_alive():
            raise EOFError
        yield source.record(job)
