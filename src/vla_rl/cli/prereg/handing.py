"""Evidence that is handed in: numbers that were not played here, of a recorded measurement or of other software's run.

In: JSON files, the measurement and arm that they are wanted for. Out: `Evidence` that says where it comes from. What a
registered run of this software leaves is never handed in: it is taken from the run's own files (`collecting`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_rl.errors import ConfigError, IntegrityError, LaunchRefused, UsageError
from vla_rl.prereg.canonical import canonical
from vla_rl.prereg.evidence import IDENTITY, Evidence, parse
from vla_rl.prereg.registered import evidence_arm
from vla_rl.prereg.sections import Arm, Claim, Measurement
from vla_rl.prereg.state import Attempt

KINDS = {"episodes": "episodes", "counts": "counts", "rows": "series", "values": "numbers"}  # key of a file -> evidence
# What may be handed in for a measurement that was registered to be made by a run.
FITTING = {"evaluation": ("episodes", "counts"), "series": ("series",), "recorded": tuple(KINDS.values())}


@dataclass(frozen=True)
class HandedIn:
    """What a command was given.

    Attributes:
        files: JSON; each says of which `measurement` it is, unless only one is wanted, and of which `arm` (id or
            label; null: the baseline), where the measurement is made for several.
        wall_h, gpu_h: what it has cost to come by it.
    """

    files: tuple[Path, ...] = ()
    wall_h: float = 0.0
    gpu_h: float = 0.0


def take(
    given: HandedIn, measurement: Measurement, arm: Arm, attempt: Attempt | None, *, alone: bool, only_arm: bool
) -> Evidence:  # fmt: skip
    """The evidence of one measurement and arm out of the files.

    Args:
        attempt: of other software, that it is of; None of a recorded measurement.
        alone: nothing else is wanted, so that a file need not say what it is of.
        only_arm: the measurement is made for no other arm, so that a file need not name it.

    Raises:
        LaunchRefused: nothing was handed in for it.
        UsageError: a file that holds none, or that of something else.
    """
    path, value = _file_for(given.files, measurement, arm, alone=alone, only_arm=only_arm)
    held = [key for key in KINDS if isinstance(value, Mapping) and key in value]
    if len(held) != 1:
        raise UsageError(
            "the file holds no evidence", where=str(path), remedy=f"one of the keys {', '.join(KINDS)}, and no other"
        )
    kind = KINDS[held[0]]
    named = {"measurement": measurement.id, "arm": evidence_arm(arm), "kind": kind}
    odd = [key for key, wanted in named.items() if key != "arm" and key in value and value[key] != wanted]
    odd += [] if _is_of_arm(value, arm) else ["arm"]
    if odd:
        raise UsageError(
            f"the file says {odd[0]}: {value[odd[0]]!r}, and it is handed in as {named[odd[0]]!r}", where=str(path),
            remedy="hand it in for the measurement that it is of",
        )  # fmt: skip
    if kind not in FITTING[measurement.kind]:
        what = f"{measurement.id} is registered as {measurement.kind}, and {held[0]} are none"
        raise UsageError(what, where=str(path), remedy=f"hand in {' or '.join(FITTING[measurement.kind])}")
    blank = dict.fromkeys((*IDENTITY, "temperature"))
    try:
        found = parse({**blank, "source": {}, **value, **named}, str(path))
        canonical(found.record())  # what cannot be stored is refused before anything is
    except (IntegrityError, ConfigError) as error:
        raise UsageError(error.what, where=error.where or str(path), remedy="correct the file") from None
    except RecursionError:
        raise UsageError("it is nested too deeply", where=str(path), remedy="correct the file") from None
    if attempt is not None:
        told = {**found.source, "attempt": attempt.number, "made_elsewhere": attempt.elsewhere}
        found = replace(found, source=told)
    return found


def check_what_it_is_of(found: Evidence, measurement: Measurement, claim: Claim, where: str = "--from") -> None:
    """Refuse numbers that say of themselves that they are of another head, protocol or temperature than registered.

    Raises:
        UsageError: naming what.
    """
    wanted: dict[str, Any] = {
        "head": measurement.head or claim.head,
        "protocol": measurement.protocol or claim.protocol,
    }
    if measurement.temperature is not None:
        wanted["temperature"] = measurement.temperature
    for name, registered in wanted.items():
        said = getattr(found, name)
        if said not in (None, registered):
            raise UsageError(
                f"these numbers are of the {name} {said}, and {measurement.id} is registered for {registered}",
                where=where, remedy="a measurement of something else is another measurement: register that",
            )  # fmt: skip


def _is_of_arm(value: Mapping[str, Any], arm: Arm) -> bool:
    """Whether what a file says of its arm, if anything, is true of this one."""
    return "arm" not in value or value["arm"] in (evidence_arm(arm), arm.id, arm.label)


def _file_for(
    files: Sequence[Path], measurement: Measurement, arm: Arm, *, alone: bool, only_arm: bool
) -> tuple[Path, Any]:
    """The file of a measurement and arm: the one that says so, or the only one if it says nothing."""
    loaded = [(path, _load(path)) for path in files]
    fitting = []
    for path, value in loaded:
        said = isinstance(value, Mapping) and value.get("measurement") == measurement.id
        if said and ("arm" in value or only_arm) and _is_of_arm(value, arm):
            fitting.append((path, value))
    if len(fitting) > 1:
        told = f"{len(fitting)} files are of {measurement.id}: {' and '.join(str(path) for path, _ in fitting)}"
        raise UsageError(told, where="--from", remedy="hand in one of them: it counts once and for good")
    if fitting:
        return fitting[0]
    if alone and len(loaded) == 1:
        return loaded[0]
    beside = f'"measurement": "{measurement.id}"' + ("" if only_arm else f', "arm": "{arm.label or arm.id}"')
    raise LaunchRefused(
        f"the data of {measurement.id}{'' if only_arm else f', arm {arm.label or arm.id},'} has to be handed in",
        where=f"measurements[{measurement.id}]",
        remedy='--from FILE with its numbers: {"values": {...}}, {"counts": {...}}, {"episodes": [...]} (for paired '
        'rules, counts and shares) or {"rows": [...]}' + ("" if alone else f", and {beside} beside them"),
    )


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"the file cannot be read: {error}", where=str(path)) from None
