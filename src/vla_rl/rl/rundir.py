"""The run directory: created exclusively, held by one process at a time, safe to read while it grows.

In: a path, a resolved configuration (plain types) and facts for the manifest. Out: a `RunDir` with the JSONL files, the
heartbeat and the places of waves and checkpoints. Names and layout are those of the README. Left out: what rows
contain.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from vla_rl.config.differences import differences
from vla_rl.errors import ConfigError, IntegrityError, UsageError
from vla_rl.files import create_atomic, write_atomic
from vla_rl.rollout.jsonl import append_jsonl, dump_json, read_jsonl, repair_jsonl

CONFIG, MANIFEST, LOCK = "config.yaml", "manifest.json", ".lock"
TRAIN, EPISODES, EVAL, HEARTBEAT = "train.jsonl", "episodes.jsonl", "eval.jsonl", "heartbeat.json"
CHECKPOINTS = "checkpoints"
BASE_DIGEST = "base_policy.sha256"
HEARTBEAT_EVERY_S = 1.0


class RunDir:
    """An open run directory. Use `create` or `resume`; the lock is released by `close` or with the process."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock, self._beat_s = path, lock, -1e9

    @classmethod
    def create(cls, path: Path, *, config: Mapping[str, Any], manifest: Mapping[str, Any]) -> RunDir:
        """Make a new run directory with `config.yaml` and `manifest.json`.

        Raises:
            UsageError: the directory exists and is not empty, or another process took it a moment ago.
        """
        path.mkdir(parents=True, exist_ok=True)
        leftovers = (LOCK, f".{CONFIG}.")  # of a launch that was killed before it had written anything
        if any(not entry.name.startswith(leftovers) for entry in path.iterdir()):
            raise UsageError(
                "the run directory exists and is not empty",
                where=str(path),
                remedy=f"continue that run with run.resume={path}, or name another run.dir",
            )
        run = cls(path, _take(path))
        with _released_on_error(run):
            text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
            if not create_atomic(path / CONFIG, text.encode()):  # two processes may find the same empty directory
                raise UsageError(
                    "another process has just started a run here", where=str(path), remedy="name another run.dir"
                )
            write_atomic(path / MANIFEST, dump_json({"launches": [_launch(manifest)]}, indent=1).encode())
        return run

    @classmethod
    def resume(
        cls, path: Path, *, config: Mapping[str, Any], manifest: Mapping[str, Any], free: Iterable[str]
    ) -> RunDir:
        """Open a stopped run and append this launch to its manifest.

        Args:
            path: the run directory.
            config: the configuration to go on with, resolved.
            manifest: facts of this launch.
            free: dotted keys that may differ from the run's own configuration, e.g. ``run.max_wall_s``.

        Raises:
            UsageError: no run there, or it is still being worked on.
            ConfigError: a key differs; names up to five with both values.
            IntegrityError: the stored configuration was edited (`config_digest` in the manifest differs).
        """
        stored = stored_config(path)
        run = cls(path, _take(path))
        with _released_on_error(run):
            _check_unchanged(path, stored, config, frozenset(free))
            manifest_file = path / MANIFEST
            before = json.loads(manifest_file.read_bytes())["launches"] if manifest_file.exists() else []
            _check_digest(path, before, manifest)
            write_atomic(manifest_file, dump_json({"launches": [*before, _launch(manifest)]}, indent=1).encode())
        return run

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def check_base(self, policy_digest: str) -> None:
        """Record the digest of the starting policy at the first launch; compare it at every later one.

        Raises:
            IntegrityError: the base policy is not the one that the run was started from.
        """
        file = self.path / BASE_DIGEST
        if not file.exists():
            write_atomic(file, f"{policy_digest}\n".encode())
        elif (recorded := file.read_text().strip()) != policy_digest:
            raise IntegrityError(
                f"the base policy has digest {policy_digest[:12]}…, the run was started from {recorded[:12]}…",
                where=str(file),
                remedy="restore the checkpoint that policy.checkpoint named when the run started",
            )

    def record_scene(self, scene: Mapping[str, Any]) -> None:
        """Note in this launch's entry of the manifest which world the run plays in; it must be the first launch's.

        Args:
            scene: description of the simulator, JSON-able, with `protocol` and `scene_hash`.

        Raises:
            IntegrityError: the run was started in another world.
        """
        file = self.path / MANIFEST
        launches = json.loads(file.read_bytes())["launches"]
        launches[-1]["scene"] = dict(scene)
        first = next(launch["scene"] for launch in launches if "scene" in launch)
        changed = [key for key in ("protocol", "scene_hash") if first[key] != scene[key]]
        if changed:
            raise IntegrityError(
                "the simulator is not the one that the run was started with: "
                + ", ".join(f"{key} {first[key]} -> {scene[key]}" for key in changed),
                where=str(file),
                remedy="install the versions that the manifest names, or start a new run",
            )
        write_atomic(file, dump_json({"launches": launches}, indent=1).encode())

    def record_demonstrations(self, record: Mapping[str, Any]) -> None:
        """Note in this launch's entry of the manifest what the run learns from; it must be what its first launch did.

        Args:
            record: JSON-able, with `recipe_sha256`, `rows_sha256` and `files_sha256`.

        Raises:
            IntegrityError: the run was started with other demonstrations.
        """
        file, noted = self.path / MANIFEST, json.loads(dump_json(dict(record)))
        launches = json.loads(file.read_bytes())["launches"]
        launches[-1]["demonstrations"] = noted
        first = next(launch["demonstrations"] for launch in launches if "demonstrations" in launch)
        if changed := [key for key in noted if key.endswith("_sha256") and first[key] != noted[key]]:
            raise IntegrityError(
                f"the demonstrations are not those that the run was started with: {', '.join(changed)}",
                where=f"{file}: demonstrations",
                remedy="bring the directory back that the manifest tells of, or start a new run",
            )
        write_atomic(file, dump_json({"launches": launches}, indent=1).encode())

    def record_gate(self, result: Mapping[str, Any]) -> None:
        """Note in this launch's entry of the manifest what a gate measured; `gate` names it, `passed` tells."""
        launches = json.loads((self.path / MANIFEST).read_bytes())["launches"]
        launches[-1].setdefault("gates", []).append(dict(result))
        write_atomic(self.path / MANIFEST, dump_json({"launches": launches}, indent=1).encode())

    def passed_gates(self) -> list[str]:
        """Names of the gates that some launch of this run has passed."""
        launches = json.loads((self.path / MANIFEST).read_bytes())["launches"]
        return [result["gate"] for launch in launches for result in launch.get("gates", ()) if result["passed"]]

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to one of the JSONL files, fsynced."""
        append_jsonl(self.path / name, rows)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return read_jsonl(self.path / name)

    def rewind(self, step: int) -> None:
        """Drop everything recorded after the checkpoint of `step`, cut-off lines, and episodes of unfinished
        evaluations."""
        repair_jsonl(self.path / TRAIN, lambda row: row["step"] <= step)
        repair_jsonl(self.path / EVAL, lambda row: row["step"] <= step)
        evaluated = {row["step"] for row in self.rows(EVAL)}
        repair_jsonl(
            self.path / EPISODES,
            lambda row: row["step"] in evaluated if row["phase"] == "eval" else row["step"] <= step,
        )

    def heartbeat(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """Replace `heartbeat.json`, at most once a second unless forced."""
        now = time.monotonic()
        if force or now - self._beat_s >= HEARTBEAT_EVERY_S:
            self._beat_s = now
            stamp = {"utc": datetime.now(UTC).isoformat(timespec="seconds"), "pid": os.getpid()}
            write_atomic(self.path / HEARTBEAT, dump_json({**stamp, **state}).encode())

    def last_heartbeat(self) -> dict[str, Any]:
        file = self.path / HEARTBEAT
        return json.loads(file.read_bytes()) if file.exists() else {}

    def discard(self) -> None:
        """Take back a directory in which nothing has happened yet, so that the corrected command may use it."""
        for name in (CONFIG, MANIFEST, LOCK):
            (self.path / name).unlink(missing_ok=True)
        self.close()
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def is_run(path: Path) -> bool:
    """Whether a train run was started in `path`; it may not have come to its first checkpoint."""
    return (path / BASE_DIGEST).is_file() or all((path / name).is_file() for name in (CONFIG, MANIFEST))


def stored_config(path: Path) -> dict[str, Any]:
    """The resolved configuration of a run directory.

    Raises:
        UsageError: there is no run in `path`.
    """
    try:
        return yaml.safe_load((path / CONFIG).read_text())
    except FileNotFoundError:
        raise UsageError(
            "there is no run to resume here", where=str(path), remedy="run.resume takes the directory of a stopped run"
        ) from None


def recorded_base(path: Path) -> str:
    """Digest of the policy that the run in `path` was started from.

    Raises:
        IntegrityError: the run does not say.
    """
    file = path / BASE_DIGEST
    try:
        return file.read_text().strip()
    except OSError as error:
        raise IntegrityError(
            f"the run's record of the policy that it was started from cannot be read: {error.strerror}",
            where=str(file),
            remedy="restore the file from a copy of the run",
        ) from error


def _take(path: Path) -> int:
    """Lock the directory for this process; the kernel frees the lock when the process ends, however it ends."""
    handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise UsageError(
            "another process is working in this run directory", where=str(path), remedy="wait for it or stop it first"
        ) from None
    return handle


@contextmanager
def _released_on_error(run: RunDir) -> Iterator[None]:
    try:
        yield
    except BaseException:
        run.close()
        raise


def _check_unchanged(path: Path, stored: Any, config: Any, free: frozenset[str]) -> None:
    changed = {key: pair for key, pair in differences(stored, config).items() if key not in free}
    if changed:
        shown = ", ".join(f"{key}: {old!r} -> {new!r}" for key, (old, new) in list(changed.items())[:5])
        raise ConfigError(
            f"the configuration differs from the one this run was started with: {shown}",
            where=str(path / CONFIG),
            remedy="resume with the run's own configuration, or start a new run",
        )


def _check_digest(path: Path, launches: list[dict[str, Any]], manifest: Mapping[str, Any]) -> None:
    """The stored configuration is data on disk: an edit of it shows in the digest that the first launch recorded."""
    recorded, now = (entry.get("config_digest") for entry in (launches[0] if launches else {}, manifest))
    if recorded is not None and recorded != now:
        raise IntegrityError(
            "the stored configuration is not the one that the run was started with",
            where=str(path / CONFIG),
            remedy="undo the edit, or start a new run with the changed settings",
        )


def _launch(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {"utc": datetime.now(UTC).isoformat(timespec="seconds"), "pid": os.getpid(), **manifest}
