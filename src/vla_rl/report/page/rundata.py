"""The files of a training run, as a report reads them: what can be read is told, what cannot is named.

In: a run's directory, and which of its held-out evaluations are sealed. Out: rows as plain dicts. A sealed outcome is
skipped while its file is read, so nothing behind this module can tell it. A file may end in half a line, because the
run may be writing it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vla_rl.errors import UsageError
from vla_rl.prereg.sealing import Seal

FILES = ("config.yaml", "manifest.json", "train.jsonl", "eval.jsonl", "episodes.jsonl", "heartbeat.json")
SLIM = ("step", "seed", "draw", "reward", "success", "advantage")  # kept of a training episode, beside terms of reward
TERM = "reward_"
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RunData:
    """What the files of a run say.

    Attributes:
        config: the resolved configuration; empty if it cannot be read.
        launches: of the manifest.
        steps: rows of `train.jsonl`.
        evaluations: rows of `eval.jsonl` that are not sealed.
        held_out: by step, the episodes of those evaluations.
        episodes: of training waves, slim.
        heartbeat: last known state.
        seal: what is sealed.
        hidden: steps of evaluations that are.
        faults: files that are missing or broken, in words.
    """

    directory: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    launches: Rows = ()
    steps: Rows = ()
    evaluations: Rows = ()
    held_out: Mapping[int, Rows] = field(default_factory=dict)
    episodes: Rows = ()
    heartbeat: Mapping[str, Any] = field(default_factory=dict)
    seal: Seal = field(default_factory=Seal)
    hidden: Sequence[int] = ()
    faults: Sequence[str] = ()

    @property
    def registered(self) -> Mapping[str, Any]:
        """What the newest launch says of its registration; empty for a run of its own."""
        return registered(self.launches)

    @property
    def planned(self) -> int | None:
        """How many steps it should make."""
        steps = section(self.config, "run").get("steps")
        return steps if type(steps) is int else None

    @property
    def done(self) -> int:
        """How many steps are on record."""
        return self.steps[-1]["step"] if self.steps else 0


def is_run(directory: Path) -> bool:
    """Whether a training run has left anything here."""
    return any((directory / name).is_file() for name in ("train.jsonl", "manifest.json")) and not _is_other(directory)


def _is_other(directory: Path) -> bool:
    return any((directory / name).is_file() for name in ("eval.json", "probe.json", "sweep.json"))


def launches_of(directory: Path) -> list[Mapping[str, Any]]:
    """Of the manifest; empty if there is none that can be read."""
    told = _json(directory / "manifest.json", [])
    found = told.get("launches") if isinstance(told, dict) else None
    return [launch for launch in found if isinstance(launch, dict)] if isinstance(found, list) else []


def registered(launches: Rows) -> Mapping[str, Any]:
    """What the newest of some launches says of its registration."""
    told = launches[-1].get("registered") if launches else None
    return told if isinstance(told, Mapping) else {}


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a configuration; empty if it has none."""
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def config_of(directory: Path) -> Mapping[str, Any]:
    """The resolved configuration; empty if it cannot be read."""
    return _yaml(directory / "config.yaml", [])


def read_run(directory: Path, seal: Seal) -> RunData:
    """Read everything that is not sealed.

    Raises:
        UsageError: no training run has left anything here.
    """
    if not is_run(directory):
        raise UsageError(
            "this is no directory of a training run", where=str(directory),
            remedy="name one that holds train.jsonl, e.g. outputs/<name>/<time>, or the id of a registration",
        )  # fmt: skip
    faults: list[str] = []
    evaluations = [row for row in _rows(directory / "eval.jsonl", faults) if type(row.get("step")) is int]
    open_rows = [row for row in evaluations if not seal.hides(row["step"])]
    held_out: dict[int, list[Mapping[str, Any]]] = {row["step"]: [] for row in open_rows}
    trained = []
    for row in _rows(directory / "episodes.jsonl", faults):
        if row.get("phase") == "eval":
            if row.get("step") in held_out:
                held_out[row["step"]].append(row)
        elif type(row.get("step")) is int:
            trained.append({key: row[key] for key in row if key in SLIM or key.startswith(TERM)})
    heartbeat = _json(directory / "heartbeat.json", faults) if (directory / "heartbeat.json").exists() else {}
    return RunData(
        directory, _yaml(directory / "config.yaml", faults), launches_of(directory),
        [row for row in _rows(directory / "train.jsonl", faults) if type(row.get("step")) is int],
        open_rows, {step: rows for step, rows in held_out.items() if rows}, trained,
        heartbeat if isinstance(heartbeat, dict) else {}, seal,
        [row["step"] for row in evaluations if seal.hides(row["step"])], list(dict.fromkeys(faults)),
    )  # fmt: skip


def _rows(path: Path, faults: list[str]) -> Iterator[Mapping[str, Any]]:
    """Rows of a JSONL file. A last line without an end is being written; any other broken one is a fault."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if isinstance(row, dict):
                    yield row
                elif line.endswith("\n"):
                    faults.append(f"{path.name}, line {number}: it cannot be read and is left out")
    except FileNotFoundError:
        faults.append(f"{path.name}: there is none (yet)")
    except OSError as error:
        faults.append(f"{path.name}: it cannot be read ({error.strerror})")


def _json(path: Path, faults: list[str]) -> Any:
    return _whole(path, faults, json.loads)


def _yaml(path: Path, faults: list[str]) -> Mapping[str, Any]:
    return told if isinstance(told := _whole(path, faults, yaml.safe_load), dict) else {}


def _whole(path: Path, faults: list[str], parse: Any) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        faults.append(f"{path.name}: there is none (yet)")
    except OSError as error:
        faults.append(f"{path.name}: it cannot be read ({error.strerror})")
    except (ValueError, yaml.YAMLError):
        faults.append(f"{path.name}: it cannot be read")
    return {}
