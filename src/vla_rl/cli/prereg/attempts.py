"""One attempt of a registered run: the ledger's line before, the trainer, the ledger's lines after.

In: a folder whose gates are open, and what is asked for. Out: a finished, stopped or failed run, on record with its
cost, what stopped it, and the digests of its files; and the checkpoint of a rung that another one starts from.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vla_rl.cli.distributed import processes
from vla_rl.cli.options import Options
from vla_rl.config.keys import check_values
from vla_rl.config.reader import ConfigReader
from vla_rl.errors import EXIT_OK, OutOfMemory, StoppedRun, VlaRlError
from vla_rl.prereg import freezing, watch
from vla_rl.prereg.budget import account
from vla_rl.prereg.document import Registration
from vla_rl.prereg.folder import Folder, Loaded, outputs_of, root_of
from vla_rl.prereg.launchgates import Request, published_name, refusals
from vla_rl.prereg.pins import Place, file_hashes
from vla_rl.prereg.process import Process
from vla_rl.prereg.registered import config_of
from vla_rl.prereg.runfiles import arrived, digests
from vla_rl.prereg.state import Attempt, allowed
from vla_rl.report.progress import ProgressView


def run_attempt(folder: Folder, request: Request, options: Options, view: ProgressView) -> int:
    """Run it; returns 0, or raises what ended it."""
    from vla_rl.cli.prereg.launching import refused

    _publish_start(folder, request, view)
    with folder.ledger.locked():  # the gates once more, now that nobody else can write
        loaded = folder.load()
        if found := refusals(folder, loaded, request, Place.here()):
            raise refused(folder.id, request, found)
        number, run = _next(folder, loaded, request)
        reader = _reader(folder, loaded, request, run)
        gpus = processes() * runs_on_gpu(reader.tree["run"]["device"])
        folder.write("launched", _launched(folder, request, number, run, gpus), effective=loaded.effective)
    started = time.monotonic()
    how, code, why, watched = "failed", 1, "a crash", None
    try:
        from vla_rl.cli.train import train

        watched = _watch(folder, loaded, request, run, reader, gpus)
        outcome, _ = train(reader, options, view, _registered(loaded, request, number))
        how, code, why = ("finished" if outcome.finished else "paused"), EXIT_OK, outcome.reason
        return EXIT_OK
    except KeyboardInterrupt:
        how, code, why = "interrupted", 130, "Ctrl-C"
        raise
    except StoppedRun as error:
        how, code, why = "stopped", error.exit_code, error.what
        raise
    except OutOfMemory as error:
        how, code, why = "out of memory", error.exit_code, error.what
        raise
    except VlaRlError as error:
        how, code, why = "failed", error.exit_code, error.what
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise
    finally:
        wall_h = (time.monotonic() - started) / 3600
        _end(folder, number, run, how=how, code=code, why=why, wall_h=wall_h, gpus=gpus)
        if watched is not None:
            watch.close(watched, exit_code=code, how=f"{how}: {why}", where=watched_in(folder))
        if how == "finished":
            _publish(folder, request, run, view)


def watched_in(folder: Folder) -> Path:
    """The list of runs that are under way, see `watch`."""
    return root_of(folder) / watch.WATCH


def _watch(folder: Folder, loaded: Loaded, request: Request, run: Path, reader: ConfigReader, gpus: int) -> watch.Entry:
    """Put the run on the list, with its limits: whoever looks sees how near they are."""
    limits, wanted = reader.tree["budget"], loaded.registration.watch
    gates = watch.WatchGates(
        gpu_h_max=limits["gpu_h"] if gpus else None, wall_h_max=limits["wall_h"], vram_max_gib=wanted.vram_max_gib,
        probe=wanted.probe, stale_s=wanted.stale_s,
    )  # fmt: skip
    return watch.open(
        run, gates=gates, cadence_s=wanted.cadence_s, gpus=gpus, registration=folder.id,
        rung=request.rung, arm=request.arm, where=watched_in(folder),
    )  # fmt: skip


def bury(folder: Folder) -> None:
    """Record the end of attempts whose process is gone; the caller holds the lock. They cost until the newest file that
    they left. Machines share names, so one of another boot that left nothing here is not this machine's to bury: `lost`
    says what it cost."""
    if not folder.frozen:
        return
    loaded = folder.load()
    for attempt in loaded.state.running:
        run = root_of(folder) / attempt.data["run"]
        namesake = attempt.data["process"]["boot"] != Process.own().boot and not run.exists()
        if not attempt.alive and not namesake:
            wall_h, last = _last_sign(attempt, run)
            why = f"its process is gone; last sign of life {last}"
            record_end(folder, loaded, attempt, how="killed", why=why, wall_h=wall_h)


def record_end(folder: Folder, loaded: Loaded, attempt: Attempt, *, how: str, why: str, wall_h: float) -> None:
    """Record the end of an attempt that could not do it itself, and take it off the list of runs; the caller holds the
    lock."""
    run = root_of(folder) / attempt.data["run"]
    _end_locked(
        folder, loaded, attempt.number, run, how=how, code=None, why=why, wall_h=wall_h,
        gpus=attempt.data.get("gpus", int(attempt.data["on_gpu"])),
    )  # fmt: skip
    if listed := watch.find(run, watched_in(folder)):
        watch.close(listed, exit_code=None, how=f"{how}: {why}", where=watched_in(folder))


def _last_sign(attempt: Attempt, run: Path) -> tuple[float, str]:
    """Hours until the last heartbeat or the newest file that the attempt left, and when that was."""
    launched = datetime.fromisoformat(attempt.utc)
    signs = [datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in run.rglob("*") if path.is_file()]
    with suppress(OSError, ValueError, KeyError):
        signs.append(datetime.fromisoformat(json.loads((run / "heartbeat.json").read_bytes())["utc"]))
    last = max([launched, *signs])
    return (last - launched).total_seconds() / 3600, last.isoformat(timespec="seconds")


def _next(folder: Folder, loaded: Loaded, request: Request) -> tuple[int, Path]:
    """Number and run directory of the attempt; a resumed one works where the last one stopped."""
    number = len(loaded.state.attempts) + 1
    if request.resume:
        run = root_of(folder) / loaded.state.of(request.rung, request.arm)[-1].data["run"]
        if (run / "config.yaml").exists():
            return number, run
    name = f"{request.rung}-{request.arm}" + ("-exploratory" if request.exploratory else "")
    return number, outputs_of(folder) / name / f"attempt_{number:02d}"


def _reader(folder: Folder, loaded: Loaded, request: Request, run: Path) -> ConfigReader:
    """The configuration that the trainer gets: the registered one, where it runs, and what the pool has left."""
    registration = loaded.registration
    resumed = request.resume and (run / "config.yaml").exists()
    tree = config_of(registration, request.rung, request.arm)
    rung = registration.rung(request.rung)
    if rung.starts_from != "base":
        published = loaded.state.published[published_name(rung.starts_from, request.arm)]
        tree = freezing.effective_config(tree, {"policy.checkpoint": str(root_of(folder) / published["directory"])})
    tree = freezing.effective_config(tree, request.set)
    place = {"name": folder.id, "dir": str(run), "resume": str(run) if resumed else None}
    tree["run"] = {**tree["run"], **place}
    tree["budget"] = {**tree["budget"], **_limits(loaded, tree["budget"], run, folder)}
    check_values("config", tree)
    return ConfigReader(tree, tuple(f"{key}={value}" for key, value in request.set.items()))


def _limits(loaded: Loaded, budget: Mapping[str, Any], run: Path, folder: Folder) -> dict[str, float]:
    """The run's own limits: never more than the pool has left, and what this run has used before counts on top,
    because the run counts all of its launches."""
    pool = account(loaded.registration, loaded.state)
    ended = [a for a in loaded.state.attempts if a.end and not a.elsewhere]
    earlier = [a.end or {} for a in ended if root_of(folder) / a.data["run"] == run]
    limits = {}
    for unit, left in pool.left.items():
        limit = max(0.0, left + sum(end.get(unit) or 0.0 for end in earlier))
        limits[unit] = limit if budget[unit] is None else min(limit, budget[unit])
    return limits


def _launched(folder: Folder, request: Request, number: int, run: Path, gpus: int) -> dict[str, Any]:
    return {
        "attempt": number,
        "rung": request.rung,
        "arm": request.arm,
        "run": run.relative_to(root_of(folder)).as_posix(),
        "resume": request.resume,
        "exploratory": request.exploratory,
        "set": dict(request.set),
        "process": Process.own().body(),
        "on_gpu": gpus > 0,
        "gpus": gpus,
    }


def _registered(loaded: Loaded, request: Request, number: int) -> dict[str, Any]:
    """What the run's manifest says of the registration."""
    registration = loaded.registration
    return {
        "id": registration.id,
        "digest": loaded.effective.digest,
        "config_digest": loaded.effective.config_digest,
        "amendments": len(loaded.effective.amendments),
        "rung": request.rung,
        "arm": request.arm,
        "attempt": number,
        "exploratory": request.exploratory,
        "ledger": {"line": len(loaded.entries), "hash": loaded.entries[-1].hash},
        "sealed": any(m.kind == "evaluation" and m.played_by == "run" for m in registration.measurements),
    }


def runs_on_gpu(device: str) -> bool:
    """Whether hours are GPU-hours: asked of the system, so that it is known before anything is loaded."""
    return device == "cuda" or (device == "auto" and Path("/dev/nvidia0").exists())


def _end(folder: Folder, number: int, run: Path, **ended: Any) -> None:
    with folder.ledger.locked():
        _end_locked(folder, folder.load(), number, run, **ended)


def _end_locked(
    folder: Folder, loaded: Loaded, number: int, run: Path, *, how: str, code: int | None, why: str, wall_h: float,
    gpus: int,
) -> None:  # fmt: skip
    attempt = loaded.state.attempts[number - 1]
    wires = _fired(run)
    event = "budget" if wires and all(wire.startswith("budget.") for wire in wires) else "tripwire"
    if how == "stopped" and not attempt.exploratory and allowed(loaded.state.name, event):  # a complete one stays so
        folder.write(event, {"attempt": number, "wires": wires, "why": why}, effective=loaded.effective)
    data = {
        "attempt": number, "how": how, "exit_code": code, "why": why, "wall_h": round(wall_h, 6),
        "gpu_h": round(gpus * wall_h, 6), "files": digests(run), **arrived(run),
    }  # fmt: skip
    folder.write("attempt_ended", data, effective=loaded.effective)


def _fired(run: Path) -> list[str]:
    """Which armed wires ended the run; empty if a gate did."""
    try:
        beat = json.loads((run / "heartbeat.json").read_bytes())
    except (OSError, ValueError):
        return []
    return [wire["wire"] for wire in beat.get("tripwires", []) if wire["mode"] == "armed"]


def _publish_start(folder: Folder, request: Request, view: ProgressView) -> None:
    """The checkpoint that a rung starts from, if the run that made it was killed before it was published."""
    loaded = folder.load()
    start = loaded.registration.rung(request.rung).starts_from
    done = loaded.state.completed(start, request.arm)
    if done is not None and not done.elsewhere and published_name(start, request.arm) not in loaded.state.published:
        _publish(folder, replace(request, rung=start, exploratory=False), root_of(folder) / done.data["run"], view)


def _publish(folder: Folder, request: Request, run: Path, view: ProgressView) -> None:
    """Copy the checkpoint with a receipt if another rung starts from it; otherwise it stays where it is."""
    registration: Registration = folder.load().registration
    if request.exploratory or all(rung.starts_from != request.rung for rung in registration.ladder):
        return
    directory = publish(folder, request.rung, request.arm, run)
    view.say(f"the checkpoint of {published_name(request.rung, request.arm)} is published: {directory}")


def publish(folder: Folder, rung: str, arm: str, run: Path) -> Path:
    """Export the policy of a run, and record where it is and of what it is made; the new directory."""
    from vla_rl.cli.export import export_run

    name = published_name(rung, arm)
    directory = outputs_of(folder) / "published" / name / run.name
    known = {root_of(folder) / each["directory"] for each in folder.load().state.published.values()}
    if directory.exists() and directory not in known:
        shutil.rmtree(directory)  # of a process that was killed before the ledger knew; the run still has its policy
    directory.parent.mkdir(parents=True, exist_ok=True)
    receipt = export_run(run, directory)
    data = {
        "rung": name, "run": f"{rung}/{arm}", "directory": directory.relative_to(root_of(folder)).as_posix(),
        "receipt": receipt["source"], "files": file_hashes(directory),
    }  # fmt: skip
    with folder.ledger.locked():
        folder.write("published", data, effective=folder.load().effective)
    return directory
