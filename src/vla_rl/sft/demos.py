"""Record the scripted expert in parallel: spawn seeds in, a directory of demonstration shards out.

One spawned process per worker, each with its own GL context; the parent only hands out shards and counts. Kept are the
episodes that pass the strict success test, and of those the recorded ticks at which the expert was demonstrating (a
deliberate miss is executed but not stored: only the recovery is worth imitating). Each seed decides for itself whether
it is noisy and whether it misses, so the same recipe gives the same shards whatever the number of workers.
Rows on disk are described in `shards`; making training tensors from them is `dataset`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import traceback
from collections import Counter, deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl import errors
from vla_rl.config.build import build
from vla_rl.errors import RolloutError, UsageError, VlaRlError
from vla_rl.rollout.events import OnEvent
from vla_rl.seeds import check_use
from vla_rl.sft.events import ShardRecorded
from vla_rl.sft.shards import DemoRecipe, DemoRows, make_recipe, shard_paths, write_json, write_recipe, write_shard

SUMMARY_FILE = "summary.json"
SHARD_ATTEMPTS = 3
# Disturbance of noisy episodes: range of the noise on the executed targets, and spread of the start pose.
NOISE_DEG, START_JITTER_DEG = (0.5, 2.0), 3.0


@dataclass(frozen=True)
class DemoSummary:
    """Counts over the finished shards.

    Attributes:
        attempts, kept: episodes tried and episodes that passed the strict test.
        rows: stored rows.
        failures: reason -> count.
        noisy, missed: (attempts, kept) of the noisy and of the deliberately missing episodes.
        shards_done, shards_total: progress; `complete` when equal.
        scene_hash: digest of physics and pictures.
        wall_s: wall time of this call.
    """

    attempts: int
    kept: int
    rows: int
    failures: dict[str, int]
    noisy: tuple[int, int]
    missed: tuple[int, int]
    shards_done: int
    shards_total: int
    scene_hash: str
    wall_s: float

    @property
    def complete(self) -> bool:
        return self.shards_done == self.shards_total


def record_demos(
    *,
    out_dir: Path,
    env_spec: dict[str, Any],
    seeds: tuple[int, ...],
    workers: int,
    shard_seeds: int,
    record_every: int,
    noise_share: float,
    miss_share: float,
    on_event: OnEvent,
    max_wall_s: float | None,
) -> DemoSummary:
    """Record every shard that `out_dir` does not hold yet.

    Args:
        out_dir: a new directory, or one that a stopped recording of the same recipe left.
        env_spec: environment node (`_target_` and its keys), built in each worker.
        seeds: spawn seeds to attempt, of a band open to demonstrations.
        workers: recording processes.
        shard_seeds: seeds per shard.
        record_every: ticks between recorded rows; the phase is random per episode.
        noise_share, miss_share: shares of noisy episodes and of episodes with a deliberate miss, in [0, 1].
        on_event: gets a `ShardRecorded` after each shard.
        max_wall_s: no further shard is started after this many seconds; running ones are finished.

    Raises:
        ConfigError: seeds of a band that is not open to demonstrations.
        UsageError: `out_dir` holds something else.
        MachineError: a worker cannot render.
        RolloutError: a shard's worker died repeatedly.
    """
    started = time.monotonic()
    check_use(seeds, "demos", where="demos.seeds")
    _check_shares(workers, shard_seeds, record_every, noise_share, miss_share)
    recipe = make_recipe(
        env=env_spec, seeds=seeds, shard_seeds=shard_seeds, record_every=record_every, noise_share=noise_share,
        miss_share=miss_share, scene_hash=build(env_spec, where="sim").scene_hash,
    )  # fmt: skip
    write_recipe(out_dir, recipe)
    pending = [i for i in range(len(recipe.shards())) if not shard_paths(out_dir, i)[2].exists()]
    deadline = started + max_wall_s if max_wall_s is not None else None
    _record_shards(out_dir, recipe, deque(pending), workers=workers, deadline=deadline, on_event=on_event)
    summary = summarise(out_dir, recipe, wall_s=time.monotonic() - started)
    write_json(out_dir / SUMMARY_FILE, {**asdict(summary), "complete": summary.complete})
    return summary


def summarise(directory: Path, recipe: DemoRecipe, *, wall_s: float) -> DemoSummary:
    """Counts over the shards that are complete."""
    total = len(recipe.shards())
    outcomes = [json.loads(path.read_text()) for i in range(total) if (path := shard_paths(directory, i)[2]).exists()]
    attempts = [attempt for outcome in outcomes for attempt in outcome["attempts"]]

    def count(flag: str) -> tuple[int, int]:
        flagged = [a for a in attempts if a[flag]]
        return len(flagged), sum(a["kept"] for a in flagged)

    return DemoSummary(
        attempts=len(attempts),
        kept=sum(a["kept"] for a in attempts),
        rows=sum(outcome["rows"] for outcome in outcomes),
        failures=dict(sorted(Counter(a["failure"] for a in attempts if not a["kept"]).items())),
        noisy=count("noisy"),
        missed=count("missed"),
        shards_done=len(outcomes),
        shards_total=total,
        scene_hash=recipe.scene_hash,
        wall_s=wall_s,
    )


def _check_shares(workers: int, shard_seeds: int, record_every: int, noise_share: float, miss_share: float) -> None:
    for name, value in (("workers", workers), ("shard_seeds", shard_seeds), ("record_every", record_every)):
        if value < 1:
            raise UsageError(f"{value} is not a positive number", where=f"demos.{name}")
    for name, value in (("noise_share", noise_share), ("miss_share", miss_share)):
        if not 0 <= value <= 1:
            raise UsageError(f"{value} is not a share between 0 and 1", where=f"demos.{name}")


# ------------------------------------------------------------------------------------------------- parent: hand out
def _record_shards(
    out_dir: Path, recipe: DemoRecipe, pending: deque[int], *, workers: int, deadline: float | None, on_event: OnEvent
) -> None:
    tries: Counter[int] = Counter()
    crew: dict[Connection, tuple[Any, int]] = {}

    def assign(connection: Connection, process: Any) -> None:
        if pending and (deadline is None or time.monotonic() < deadline):
            crew[connection] = (process, pending.popleft())
            with suppress(OSError):  # a worker that has died meanwhile is noticed by the next `wait`
                connection.send(crew[connection][1])
        else:
            with suppress(OSError):
                connection.send(None)
            connection.close()
            process.join()

    try:
        for _ in range(min(workers, len(pending))):
            assign(*_hire(out_dir, recipe))
        while crew:
            for connection in wait(list(crew)):
                assert isinstance(connection, Connection)
                process, index = crew.pop(connection)
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
    finally:
        for process, _ in crew.values():
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
    outcome = json.loads(shard_paths(out_dir, index)[2].read_text())
    total = len(recipe.shards())
    done = sum(shard_paths(out_dir, i)[2].exists() for i in range(total))
    kept = sum(attempt["kept"] for attempt in outcome["attempts"])
    return ShardRecorded(index, done, total, len(outcome["attempts"]), kept, outcome["rows"])


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
        raise getattr(errors, kind)(parts[0], where=parts[1], remedy=parts[2])
    raise RolloutError(
        f"recording shard {index} failed:\n{trace}",
        remedy="the finished shards are kept; repeat the command after a fix",
    )


# ----------------------------------------------------------------------------------------------------- child: record
def _worker(connection: Connection, out_dir: str, recipe: DemoRecipe) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        expert = None
        while (index := connection.recv()) is not None:
            if expert is None:
                from vla_rl.sim.expert import ScriptedExpert

                expert = ScriptedExpert(build(recipe.env, where="sim"))
            rows, attempts = record_shard(expert, recipe, recipe.shards()[index])
            write_shard(Path(out_dir), index, rows, attempts)
            connection.send(None)
    except (EOFError, KeyboardInterrupt):  # the parent is gone or stops everything
        return
    except VlaRlError as error:
        connection.send((type(error).__name__, (error.what, error.where, error.remedy), ""))
    except Exception:  # a crash is reported with its traceback, then ends this process
        connection.send((None, (), traceback.format_exc()))


def record_shard(expert: Any, recipe: DemoRecipe, seeds: tuple[int, ...]) -> tuple[DemoRows, list[dict[str, Any]]]:
    """Run the expert on each seed; rows of the kept episodes and the outcome of every attempt."""
    from vla_rl.sim.expert import DemoNoise

    noise = DemoNoise(
        noisy_share=recipe.noise_share,
        noise_deg=NOISE_DEG,
        start_jitter_deg=START_JITTER_DEG,
        miss_share=recipe.miss_share,
    )
    kept: list[DemoRows] = []
    attempts: list[dict[str, Any]] = []
    for seed in seeds:
        episode = expert.run(seed, noise=noise, record_every=recipe.record_every, render=True)
        if episode.ok:
            kept.append(episode_rows(episode, seed, chunk_ticks=recipe.chunk_ticks))
        attempts.append(
            {
                "seed": seed,
                "noisy": episode.noisy,
                "missed": episode.missed,
                "kept": episode.ok,
                "failure": episode.fail,
                "ticks": len(episode.targets_deg),
                "rows": len(kept[-1]) if episode.ok else 0,
            }
        )
    return join_rows(kept, recipe), attempts


def episode_rows(episode: Any, seed: int, *, chunk_ticks: int) -> DemoRows:
    """Recorded ticks of one episode with the chunk of joint targets that follows each of them.

    A chunk that reaches past the end repeats the last target: the expert stays where it ended.
    """
    recorded = [seen for seen in episode.observations if episode.trainable_T[seen.tick]]
    tick = np.array([seen.tick for seen in recorded], dtype=np.int32)
    padded = np.concatenate([episode.targets_deg, np.repeat(episode.targets_deg[-1:], chunk_ticks, axis=0)])
    return DemoRows(
        frames=np.stack([seen.frames for seen in recorded]),
        state_deg=np.stack([seen.state_deg for seen in recorded]),
        targets_deg=padded[tick[:, None] + np.arange(chunk_ticks)].astype(np.float32),
        seed=np.full(len(recorded), seed, dtype=np.int64),
        tick=tick,
    )


def join_rows(parts: list[DemoRows], recipe: DemoRecipe) -> DemoRows:
    """Rows one after the other; the right empty arrays when nothing was kept."""
    if not parts:
        px = int(recipe.env["image_px"])
        frames, state, targets = (
            np.zeros((0, 2, px, px, 3), np.uint8),
            np.zeros((0, 6)),
            np.zeros((0, recipe.chunk_ticks, 6), np.float32),
        )
        return DemoRows(frames, state, targets, np.zeros(0, np.int64), np.zeros(0, np.int32))
    names = ("frames", "state_deg", "targets_deg", "seed", "tick")
    return DemoRows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
