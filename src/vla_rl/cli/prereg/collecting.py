"""How a measurement becomes evidence: out of a run's files, by an evaluation that is played now, or handed in.

In: a measurement and an arm. Out: `Evidence` with its source, and what it cost. The files of a run must be those that
its attempt recorded when it ended, an evaluated policy the one that was recorded, and base and trained policy of one
scene: a comparison of two policies in two worlds is none.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_rl.cli.evalofrun import evaluation_tree
from vla_rl.cli.options import Options
from vla_rl.cli.prereg.attempts import publish, runs_on_gpu
from vla_rl.cli.prereg.handing import HandedIn, check_what_it_is_of, take
from vla_rl.config.compose import compose
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import PolicyConfig
from vla_rl.errors import IntegrityError, LaunchRefused, UsageError
from vla_rl.prereg.document import Registration
from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.folder import Folder, Loaded, outputs_of, root_of
from vla_rl.prereg.launchgates import published_name
from vla_rl.prereg.pins import Place, differences
from vla_rl.prereg.registered import arms_of, config_of, evidence_arm
from vla_rl.prereg.runfiles import copied
from vla_rl.prereg.sections import Arm, Measurement
from vla_rl.prereg.state import HALTED, Attempt
from vla_rl.report.progress import ProgressView
from vla_rl.seeds import parse_seeds

LEFT_OUT = {"phase", "step", "draw", "advantage", "replan_advantages", "wall_s", "predict_s", "predict_latency_s"}


@dataclass(frozen=True)
class Collected:
    """Evidence, the hours that it took to come by it, and whether somebody handed it in."""

    evidence: Evidence
    wall_h: float = 0.0
    gpu_h: float = 0.0
    handed_in: bool = False


def made_elsewhere(loaded: Loaded, measurement: Measurement, arm: Arm) -> Attempt | None:
    """The attempt of other software that a measurement is of: of that nothing is here, so its numbers are handed in."""
    if measurement.kind == "evaluation" and measurement.policy == "base" and measurement.played_by == "read":
        return None
    attempts = loaded.state.of(measurement.rung or "", arm.id)
    return attempts[-1] if attempts and attempts[-1].elsewhere else None


def is_handed_in(loaded: Loaded, measurement: Measurement, arm: Arm) -> bool:
    """Whether the evidence comes out of a file that somebody hands in."""
    return measurement.kind == "recorded" or made_elsewhere(loaded, measurement, arm) is not None


def collect(
    folder: Folder, loaded: Loaded, measurement: Measurement, arm: Arm, view: ProgressView, given: HandedIn, *,
    alone: bool,
) -> Collected:  # fmt: skip
    """The evidence of one measurement and arm.

    Args:
        given: what was handed in.
        alone: nothing else has to be handed in.

    Raises:
        LaunchRefused: the run has not ended, or a file must be handed in.
        IntegrityError: a file, checkpoint or scene is not the one on record.
    """
    if is_handed_in(loaded, measurement, arm):
        attempt = made_elsewhere(loaded, measurement, arm) if measurement.kind != "recorded" else None
        _check_trained(measurement, attempt)
        only_arm = len(arms_of(loaded.registration, measurement)) == 1
        evidence = take(given, measurement, arm, attempt, alone=alone, only_arm=only_arm)
        check_what_it_is_of(evidence, measurement, loaded.registration.claim)
        return Collected(_upto(evidence, measurement), given.wall_h, given.gpu_h, handed_in=True)
    if measurement.kind == "evaluation" and measurement.policy == "base" and measurement.played_by == "read":
        return _play(folder, loaded, measurement, arm, view, None)
    attempt = _finished(folder, loaded, measurement, arm)
    if measurement.kind == "series":
        return Collected(_series(folder, measurement, arm, attempt))
    if measurement.played_by == "run":
        return Collected(_from_run(folder, loaded.registration, measurement, arm, attempt))
    return _play(folder, loaded, measurement, arm, view, attempt)


def _check_trained(measurement: Measurement, attempt: Attempt | None) -> None:
    """A trained policy is what a run has left that came to its end, whoever made it."""
    if attempt is None or attempt.finished or measurement.kind != "evaluation" or measurement.policy != "trained":
        return
    how = (attempt.end or {})["how"]
    raise LaunchRefused(
        f"{measurement.id} is of a trained policy, and attempt {attempt.number} has not come to its end ({how})",
        where=f"measurements[{measurement.id}]",
        remedy="what such an attempt has left is told by series and recorded measurements",
    )


def _finished(folder: Folder, loaded: Loaded, measurement: Measurement, arm: Arm) -> Attempt:
    rung = measurement.rung or ""
    attempt = loaded.state.completed(rung, arm.id)
    if attempt is None:
        launch = f"vla-rl prereg launch {folder.id} --rung {rung} --arm '{arm.label or arm.id}'"
        told = "a run that stopped itself is no evidence; an amendment may lead on to another"
        raise LaunchRefused(
            f"{measurement.id} is sealed: the run of {rung}, {arm.label or arm.id} has not come to its end",
            where=f"measurements[{measurement.id}]",
            remedy=told if loaded.state.name == HALTED else launch,
        )
    return attempt


# ---------------------------------------------------------------------------------------------------- a run's own files
def _file(folder: Folder, attempt: Attempt, name: str) -> tuple[bytes, dict[str, Any]]:
    """A file of a run as its attempt recorded it, and how it is cited."""
    path = root_of(folder) / attempt.data["run"] / name
    recorded = (attempt.end or {})["files"].get(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise IntegrityError(
            f"the file of attempt {attempt.number} cannot be read: {error.strerror}", where=str(path),
            remedy="bring the run's directory back",
        ) from None  # fmt: skip
    if hashlib.sha256(data).hexdigest() != recorded:
        raise IntegrityError(
            f"the file is not what attempt {attempt.number} left",
            where=f"{path}: attempt_ended.files.{name}",
            remedy="restore it: what was changed after the run is no evidence",
        )
    return data, {"attempt": attempt.number, "run": attempt.data["run"], "file": name, "sha256": recorded}


def _rows(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def _series(folder: Folder, measurement: Measurement, arm: Arm, attempt: Attempt) -> Evidence:
    data, source = _file(folder, attempt, "train.jsonl")
    rows = tuple({k: v for k, v in row.items() if isinstance(v, int | float | None)} for row in _rows(data))
    return _upto(Evidence(measurement.id, evidence_arm(arm), "series", source, rows=rows), measurement)


def _upto(evidence: Evidence, measurement: Measurement) -> Evidence:
    """Of a series that is registered up to a step no row beyond it."""
    if measurement.kind != "series" or measurement.step is None:
        return evidence
    return replace(evidence, rows=tuple(row for row in evidence.rows if row["step"] <= measurement.step))


def _from_run(
    folder: Folder, registration: Registration, measurement: Measurement, arm: Arm, attempt: Attempt
) -> Evidence:
    data, source = _file(folder, attempt, "episodes.jsonl")
    end = attempt.end or {}
    step = measurement.step if measurement.step is not None else end["step"]
    rows = [row for row in _rows(data) if row["phase"] == "eval" and row["step"] == step]
    wanted = parse_seeds(measurement.seeds or "")
    if sorted(row["seed"] for row in rows) != sorted(wanted):
        raise LaunchRefused(
            f"{measurement.id} is sealed: the run holds {len(rows)} of its {len(wanted)} episodes after {step} updates",
            where=f"measurements[{measurement.id}]",
        )
    launches = json.loads(_file(folder, attempt, "manifest.json")[0])["launches"]
    scene = next(launch["scene"] for launch in reversed(launches) if "scene" in launch)
    digest = end["base_digest"] if step == 0 else end["policy_digest"] if step == end["step"] else None
    return Evidence(
        measurement.id, evidence_arm(arm), "episodes", {**source, "step": step},
        policy_digest=digest, scene_hash=scene["scene_hash"], protocol=scene["protocol"], head=registration.claim.head,
        temperature=measurement.temperature, episodes=tuple(_outcomes(rows)),
    )  # fmt: skip


def _outcomes(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each episode its seed and whatever is a number, a yes or no, or a word; ascending by seed."""
    plain = (
        {k: v for k, v in row.items() if k not in LEFT_OUT and isinstance(v, int | float | str | None)} for row in rows
    )
    return sorted(plain, key=lambda row: row["seed"])


# --------------------------------------------------------------------------------------------------------- played now
def _play(
    folder: Folder, loaded: Loaded, measurement: Measurement, arm: Arm, view: ProgressView, attempt: Attempt | None
) -> Collected:
    """Evaluate the base, or the policy of a finished attempt, sealed until the last episode has ended."""
    from vla_rl.cli.evaluate import perform

    registration: Registration = loaded.registration
    name = measurement.id if evidence_arm(arm) is None else f"{measurement.id}@{arm.id}"
    config = config_of(registration, measurement.rung, arm.id)
    _check_pins(registration, config, measurement)
    checkpoint, receipt = config["policy"]["checkpoint"], None
    if attempt is not None:
        checkpoint, receipt = _exported(folder, loaded, measurement, arm, attempt)
    directory = unused(outputs_of(folder) / "evaluations", name)
    reader = evaluation_of(registration, config, measurement, checkpoint, directory)
    started = time.monotonic()
    done = perform(Options((), False, {"video": "none"}), view, reader)
    if done is None:
        raise LaunchRefused(f"the evaluation {name} was not played to its end", where=str(directory))
    record = done[1]
    hours = (time.monotonic() - started) / 3600
    _check_policy(record, attempt, loaded, receipt, name)
    summary = record["summary"]
    source = {"evaluation": directory.relative_to(root_of(folder)).as_posix(), "checkpoint": _said(folder, checkpoint)}
    source |= {"attempt": attempt.number if attempt else None, "receipt": receipt}
    evidence = Evidence(
        measurement.id, evidence_arm(arm), "episodes", source,
        policy_digest=record["policy"]["digest"], scene_hash=summary["scene_hash"], protocol=summary["protocol"],
        head=measurement.head or registration.claim.head, temperature=measurement.temperature,
        episodes=tuple(_outcomes(record["episodes"])),
    )  # fmt: skip
    return Collected(evidence, hours, hours if runs_on_gpu(config["run"]["device"]) else 0.0)


def unused(parent: Path, name: str) -> Path:
    """A directory that nobody has worked in: what lies in another one was not recorded, so it is played anew."""
    names = (name if number == 1 else f"{name}.{number}" for number in itertools.count(1))
    return next(path for each in names if not (path := parent / each).exists())


def _check_pins(registration: Registration, config: Mapping[str, Any], measurement: Measurement) -> None:
    """What is played is played by what was frozen, as a launch is."""
    if found := differences(registration.pins, config, Place.here()):
        told = "\n".join(f"  - {each.where}: {each.what}\n    {each.remedy}" for each in found)
        raise LaunchRefused(
            f"{measurement.id} cannot be played here: {len(found)} pins do not hold:\n{told}",
            where=f"measurements[{measurement.id}]",
        )


def _said(folder: Folder, checkpoint: str) -> str:
    """A checkpoint as evidence names it: no path of one machine goes into a file that is committed."""
    path = Path(checkpoint)
    root = root_of(folder)
    return path.relative_to(root).as_posix() if path.is_absolute() and path.is_relative_to(root) else checkpoint


def _exported(
    folder: Folder, loaded: Loaded, measurement: Measurement, arm: Arm, attempt: Attempt
) -> tuple[str, Mapping[str, Any]]:
    """The trained policy as a checkpoint with a receipt; exported once, when something consumes it."""
    if measurement.step is not None and measurement.step != (attempt.end or {})["step"]:
        raise UsageError(
            f"{measurement.id} asks for the policy after {measurement.step} updates, and only the last is kept",
            where=f"measurements[{measurement.id}].step",
            remedy="amend it: played_by: run, with eval.at_steps, evaluates on the way",
        )
    name = published_name(measurement.rung or "", arm.id)
    if name not in loaded.state.published:
        publish(folder, measurement.rung or "", arm.id, root_of(folder) / attempt.data["run"])
    known = folder.load().state.published[name]
    directory = root_of(folder) / known["directory"]
    if changed := copied(root_of(folder), known):
        raise IntegrityError(
            f"the checkpoint {name} is not the one that was published", where=f"{directory}: {changed}",
            remedy="put the published file back in its place",
        )  # fmt: skip
    return str(directory), known["receipt"]


def evaluation_of(
    registration: Registration, config: dict[str, Any], measurement: Measurement, checkpoint: str, directory: Path
) -> ConfigReader:
    """The configuration of `vla-rl eval`: everything that is registered, on the measurement's seeds."""
    tree = evaluation_tree(config, checkpoint, measurement.seeds, measurement.temperature, directory)
    tree["policy"]["serve_head"] = measurement.head or registration.claim.head
    if measurement.head is not None and config["policy"].get("_target_") == PolicyConfig._target_:
        tree["policy"]["allow_stale_head"] = True  # registered by name: what training did to it is the measurement
    tree["sim"]["protocol"] = measurement.protocol or config["sim"]["protocol"]
    if measurement.look is not None:
        tree["sim"]["look"] = compose("config", [f"sim/look={measurement.look}"]).tree["sim"]["look"]
    return ConfigReader(tree)


def _check_policy(
    record: Mapping[str, Any], attempt: Attempt | None, loaded: Loaded, receipt: Mapping[str, Any] | None, name: str
) -> None:
    """The policy that played is the one on record, in the scene on record. Attempts know it by its token head's
    digest."""
    digest = record["policy"].get("token_digest", record["policy"]["digest"])
    if attempt is None:
        first = loaded.registration.ladder[0].id  # later rungs may start from what the first one made
        started = [a for a in loaded.state.attempts if a.end and a.rung == first and not a.exploratory]
        bases = {(a.end or {}).get("base_digest") for a in started} - {None}
        wanted = bases.pop() if len(bases) == 1 else None
    else:
        adapted = receipt is not None and receipt.get("adapter_digest")
        wanted = None if adapted else (attempt.end or {})["policy_digest"]
    if wanted is not None and digest != wanted:
        raise IntegrityError(
            f"another policy was evaluated: digest {digest[:12]}, on record is {wanted[:12]}",
            where=f"evidence {name}: policy_digest",
            remedy="put the checkpoint of the run back in its place; its evaluation was not recorded",
        )
