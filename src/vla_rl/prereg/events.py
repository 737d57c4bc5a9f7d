"""What each event of the ledger has to tell: the keys of its data, and their types.

In: an entry. Out: nothing, or an error that names line and field. A chain of hashes says that nobody changed a line
after it was written; this says that whoever wrote it wrote what everybody else relies on. Further keys are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vla_rl.errors import IntegrityError
from vla_rl.prereg.ledger import Entry
from vla_rl.prereg.outcome import Outcome

# A type, a tuple of types, [type of the items], {str: type of the values}, or {key: what belongs there}.
_NUMBER, _TEXT, _TEXTS, _DIGESTS = (int, float), (str, type(None)), [str], {str: str}
_JUDGED: dict[str, Any] = {"decision": str, "outcome": Outcome, "evidence": _TEXTS}
_STOP: dict[str, Any] = {"attempt": int, "wires": _TEXTS, "why": str}

DATA: dict[str, dict[str, Any]] = {
    "registered": {"sha256": str, "sections": _DIGESTS, "primaries": _TEXTS, "objection_h": _NUMBER},
    "amended": {
        "number": int, "kind": str, "sha256": str, "sections": _DIGESTS, "primaries": _TEXTS, "effects": _TEXTS,
        "outdated": _TEXTS,
    },
    "objected": {"by": str, "text": str},
    "answered": {"by": str, "text": str, "objection": int},
    "checked": {"item": str, "evidence": str, "by": str},
    "activated": {"by": str},
    "gate_passed": {"gate": str, **_JUDGED},
    "gate_refused": {"gate": _TEXT},  # of a gate, or of a launch
    "overridden": {"gate": str, "reason": str, "by": str},
    "launched": {
        "attempt": int, "rung": str, "arm": str, "run": str, "resume": bool, "exploratory": bool, "set": {str: object},
        "process": {"node": str, "boot": str, "pid": int, "started": int}, "on_gpu": bool,
    },
    "attempt_ended": {
        "attempt": int, "how": str, "why": str, "wall_h": _NUMBER, "gpu_h": _NUMBER, "files": _DIGESTS, "step": int,
        "policy_digest": _TEXT, "base_digest": _TEXT,
    },
    "attempt_recorded": {
        "attempt": int, "rung": str, "arm": str, "exploratory": bool, "how": str, "why": str, "source": str,
        "wires": _TEXTS, "wall_h": (*_NUMBER, type(None)), "gpu_h": (*_NUMBER, type(None)), "step": (int, type(None)),
    },
    "tripwire": _STOP,
    "budget": _STOP,
    "look": {
        "measurement": str, "arm": _TEXT, "evidence": str, "sha256": str, "fields": _DIGESTS, "wall_h": _NUMBER,
        "gpu_h": _NUMBER,
    },
    "read": {"read": str, "outcome": Outcome, "evidence": _TEXTS, "exploratory": bool},
    "rung": {"rung": str, "decision": str, "reads": _TEXTS},
    "published": {"rung": str, "run": str, "directory": str, "receipt": {str: object}, "files": _DIGESTS},
    "verdict": {"verdict": str, "sentence": str, "reasons": _TEXTS, "adjusted": {str: object}, "rests_on": _DIGESTS},
    "erratum": {"text": str, "disputes": bool, "by": str},
    "reported": {"sha256": str},
    "closed": {"verdict": str, "banked": _TEXTS, "inherits": _TEXTS, "by": str},
    "withdrawn": {"reason": str},
    "superseded": {"by": str, "reason": str},
}  # fmt: skip

_FILM = {"file": str, "caption": str, "seed": int, "rung": str, "arm": str}
LATER: dict[str, dict[str, Any]] = {  # what older lines lack
    "reported": {"files": _DIGESTS, "films": [_FILM]},
    "launched": {"gpus": int},
}


def check(event: str, data: Mapping[str, Any], where: str) -> None:
    """Refuse data that lacks something.

    Args:
        where: file and line, for messages.

    Raises:
        IntegrityError: naming the field.
    """
    wanted = dict(DATA.get(event, {}))
    if event == "gate_refused" and data.get("gate") is not None:
        wanted |= _JUDGED
    wanted |= {key: kind for key, kind in LATER.get(event, {}).items() if key in data}
    for path, what in _faults(data, wanted, "data"):
        raise IntegrityError(f"{event}: {what}", where=f"{where}: {path}", remedy="restore the file from git")


def check_all(entries: tuple[Entry, ...], file: str) -> None:
    """`check` of every entry of a ledger."""
    for entry in entries:
        check(entry.event, entry.data, f"{file}, line {entry.seq + 1}")


def _faults(value: Any, wanted: Any, path: str) -> Iterator[tuple[str, str]]:
    if wanted is Outcome:
        try:
            Outcome.from_record(value)
        except IntegrityError as error:
            yield f"{path}.{error.where}", error.what
    elif isinstance(wanted, dict):
        if not isinstance(value, Mapping):
            yield path, f"{value!r} is no mapping"
        elif str in wanted:
            for key, item in value.items():
                yield from _faults(item, wanted[str], f"{path}.{key}")
        else:
            for key, kind in wanted.items():
                if key not in value:
                    yield f"{path}.{key}", "it is not there"
                else:
                    yield from _faults(value[key], kind, f"{path}.{key}")
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            yield path, f"{value!r} is no list"
        else:
            for i, item in enumerate(value):
                yield from _faults(item, wanted[0], f"{path}[{i}]")
    elif wanted is not object:
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        if type(value) not in kinds:
            yield path, f"{value!r} is of another type"
