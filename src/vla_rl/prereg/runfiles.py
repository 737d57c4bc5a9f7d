"""The files that a run leaves: their digests, how far it came, and whether they are still what they were.

In: a run's directory, and what the ledger has of it. Out: facts. A run that has ended is not worked on by anybody until
the ledger says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILES = ("config.yaml", "train.jsonl", "episodes.jsonl", "eval.jsonl", "manifest.json")


def digests(run: Path) -> dict[str, str]:
    """SHA-256 of the files that evidence is taken from, by name."""
    return {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in FILES if (run / name).is_file()}


def arrived(run: Path) -> dict[str, Any]:
    """How far it came and with which weights: of the newest checkpoint, as it says of itself."""
    found = sorted(path for path in (run / "checkpoints").glob("step_*") if (path / "state.json").is_file())
    if not found:
        return {"step": 0, "policy_digest": None, "base_digest": None}
    state = json.loads((found[-1] / "state.json").read_bytes())["body"]["state"]
    return {
        "step": int(found[-1].name.removeprefix("step_")), "policy_digest": state["policy_digest"],
        "base_digest": state["base_digest"],
    }  # fmt: skip


def changed(run: Path, end: Mapping[str, Any]) -> list[str]:
    """What differs from what an attempt left, by name; `end` is the data of its `attempt_ended`."""
    now = digests(run)
    files = sorted(name for name in {*now, *end["files"]} if now.get(name) != end["files"].get(name))
    weights = {key: end[key] for key in ("step", "policy_digest", "base_digest")}
    return files + ([] if arrived(run) == weights else ["checkpoints"])


def copied(root: Path, published: Mapping[str, Any]) -> str | None:
    """Which file of a published checkpoint is not what was published, by name; None if all are.

    Args:
        root: what recorded paths are relative to.
        published: data of its event.
    """
    directory = root / published["directory"]
    for name, recorded in published["files"].items():
        try:
            with open(directory / name, "rb") as file:
                now = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return name
        if now != recorded:
            return name
    more = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return next((name for name in more if name not in published["files"]), None)
