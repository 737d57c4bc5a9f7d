"""`vla-rl prereg diff`, `status` and `verify`: everything that only looks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vla_rl import paths
from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.common import folder, parser
from vla_rl.cli.prereg.nextstep import next_step
from vla_rl.errors import EXIT_INTEGRITY, EXIT_OK, IntegrityError, UsageError
from vla_rl.prereg import delta, freezing
from vla_rl.prereg.amendments import Effective
from vla_rl.prereg.budget import account
from vla_rl.prereg.delta import Op
from vla_rl.prereg.folder import Folder, Loaded, drafts, known
from vla_rl.prereg.history import History, Problem
from vla_rl.prereg.registered import config_of, label_of
from vla_rl.prereg.state import DRAFT
from vla_rl.prereg.verifying import verify as find_problems
from vla_rl.report import prereg as tables

BROKEN = "BROKEN"  # what the list says of a registration that does not match its ledger
CHOSEN = ("run.name", "budget.gpu_h", "budget.wall_h")  # by a launch: the id, and what the pool has left


def diff(argv: Sequence[str]) -> int:
    """Print configuration deltas."""
    made = parser(
        "diff",
        "What differs, as operations on paths. One side: what its amendments changed, one by one, then all together.\n"
        "Two sides: what leads from A to B. A side is a registration (ID, or ID@2 after two amendments) or the\n"
        "directory of a run, of which the configuration is compared.",
        ("diff E001", "diff E001@0 E001@2 --md", "diff E001 E002", "diff E001 outputs/prereg/E001/main-baseline/..."),
        id=None,
    )  # fmt: skip
    made.add_argument("a", metavar="A[@k]")
    made.add_argument("b", metavar="B[@k]", nargs="?")
    made.add_argument("--md", action="store_true", help="Markdown, to be pasted")
    args = made.parse_args(list(argv))
    parts = _between(args.a, args.b) if args.b else _amendments(args.a)
    if args.json:
        print_json({"deltas": [{"title": title, "ops": [op.plain() for op in ops]} for title, ops in parts]})
    elif args.md:
        print("\n\n".join(tables.markdown(ops, title) for title, ops in parts))
    else:
        for title, ops in parts:
            tables.show(tables.operations(ops, title))
    return EXIT_OK


def _amendments(side: str) -> list[tuple[str, list[Op]]]:
    versions, upto = _versions(side)
    parts = [
        (f"{a.registration}, amendment {a.number} ({a.kind}): {a.reason}", a.operations())
        for a in versions[upto].amendments
    ]
    if len(parts) != 1:
        whole = delta.diff(versions[0].plain, versions[upto].plain)
        parts.append((f"{versions[0].registration.id}: everything since it was frozen", whole))
    return parts


def _between(a: str, b: str) -> list[tuple[str, list[Op]]]:
    run = next((side for side in (a, b) if _is_run(side)), None)
    if run is None:
        return [(f"{a} -> {b}", delta.diff(_document(a), _document(b)))]
    return [(f"{a} -> {b}, configuration", delta.diff(_config(a, run), _config(b, run)))]


def _is_run(side: str) -> bool:
    return (Path(side) / "config.yaml").is_file()


def _document(side: str) -> Any:
    versions, upto = _versions(side)
    return versions[upto].plain


def _config(side: str, run: str) -> dict[str, Any]:
    """Of a run what it was started with; of a registration what that run's rung and arm should have."""
    if _is_run(side):
        tree = yaml.safe_load((Path(side) / "config.yaml").read_text())
        return _without_place(tree, _manifest(side))
    versions, upto = _versions(side)
    registration = versions[upto].registration
    registered = _manifest(run)
    if registered.get("id") == registration.id:
        return _without_place(config_of(registration, registered["rung"], registered["arm"]), registered)
    return _without_place(registration.config, registered)


def _manifest(run: str) -> dict[str, Any]:
    try:
        launches = json.loads((Path(run) / "manifest.json").read_bytes())["launches"]
    except (OSError, ValueError, KeyError):
        return {}
    return launches[-1].get("registered") or {}


def _without_place(tree: dict[str, Any], registered: Mapping[str, Any]) -> dict[str, Any]:
    """Without what `prereg launch` chooses for a run."""
    tree = json.loads(json.dumps(tree))
    for path in (*freezing.PLACE, *(CHOSEN if registered else ())):
        section, _, key = path.partition(".")
        tree.get(section, {}).pop(key, None)
    return tree


def _versions(side: str) -> tuple[Sequence[Effective], int]:
    id, at, number = side.partition("@")
    versions = folder(id).load().versions
    if at and not (number.isdigit() and int(number) < len(versions)):
        raise UsageError(f"{id} has no amendment {number}", where=side, remedy=f"it has {len(versions) - 1}")
    return versions, int(number) if at else len(versions) - 1


def status(argv: Sequence[str]) -> int:
    """State, budget, gates, reads, next action."""
    made = parser(
        "status", "Where a registration stands, what is spent and left, and what can be done next. Without an id: all.",
        ("status", "status E001-quickstart --json"), id=None,
    )  # fmt: skip
    made.add_argument("id", metavar="ID", nargs="?")
    args = made.parse_args(list(argv))
    if args.id is None:
        place = paths.experiments_dir()
        rows = [*map(_row, known(place)), *map(_draft, drafts(place))]
        if args.json:
            print_json({"registrations": rows})
        elif rows:
            tables.show(tables.overview(rows))
        else:
            print(f"no registration in {paths.experiments_dir()}; begin with: vla-rl prereg new E001")
        return EXIT_INTEGRITY if any(row["state"] == BROKEN for row in rows) else EXIT_OK
    told = _status(folder(args.id).load())
    if args.json:
        print_json(told)
    else:
        tables.show(*tables.status(told))
    return EXIT_OK


def _row(id: str) -> dict[str, Any]:
    """A line of the list, also of a registration that does not match its ledger: the others are still told."""
    try:
        return _summary(folder(id).load())
    except IntegrityError as error:
        blank = dict.fromkeys(("title", "amendments", "attempts", "verdict"))
        return {"id": id, **blank, "state": BROKEN, "disputed": False, "next": f"vla-rl prereg verify {id}",
                "fault": f"{error.what} ({error.where})"}  # fmt: skip


def _draft(id: str) -> dict[str, Any]:
    """A line of the list, of what is not frozen yet."""
    blank = dict.fromkeys(("title", "amendments", "attempts", "verdict"))
    return {"id": id, **blank, "state": DRAFT, "disputed": False, "next": f"vla-rl prereg freeze {id}"}


def _summary(loaded: Loaded) -> dict[str, Any]:
    now = loaded.state
    return {
        "id": loaded.registration.id, "title": loaded.registration.meta.title, "state": now.name,
        "amendments": now.amendments, "attempts": len(now.attempts),
        "verdict": now.verdict["verdict"] if now.verdict else None,
        "disputed": any(erratum["disputes"] for erratum in now.errata),
        "next": next_step(loaded)[0],
    }  # fmt: skip


def _status(loaded: Loaded) -> dict[str, Any]:
    now, registration = loaded.state, loaded.registration
    pool = account(registration, now)
    action, why = next_step(loaded)
    attempts = [
        {
            "attempt": a.number, "rung": a.rung, "arm": label_of(registration, a.arm), "run": a.place,
            "exploratory": a.exploratory, "set": a.data.get("set", {}), "elsewhere": a.elsewhere is not None,
            "how": a.end["how"] if a.end else "running" if a.alive else "gone (its process ended without a word)",
            "why": a.end["why"] if a.end else None,
            "wall_h": a.end["wall_h"] if a.end else None, "gpu_h": a.end["gpu_h"] if a.end else None, "hours": a.hours,
        }
        for a in now.attempts
    ]  # fmt: skip
    reads = [
        {
            "read": r.id, "role": r.role, "exploratory": r.id in loaded.effective.exploratory,
            "outcome": now.reads[r.id]["outcome"] if r.id in now.reads else None, "never_pool": r.never_pool,
        }
        for r in registration.reads
    ]  # fmt: skip
    gates = [
        {
            "gate": g.id, "before": g.before, "decision": now.gates[g.id]["decision"] if g.id in now.gates else None,
            "outcome": now.gates[g.id]["outcome"] if g.id in now.gates else None,
            "overridden": g.id in now.once_overridden,
        }
        for g in registration.gates
    ]  # fmt: skip
    budget = {
        "limit": dict(pool.limit), "spent": dict(pool.spent), "reserved": dict(pool.reserved), "left": pool.left,
        "another_launch": {rung.id: pool.shortfall(rung.id) or "affordable" for rung in registration.ladder},
    }  # fmt: skip
    return {
        **_summary(loaded), "digest": loaded.effective.digest, "config_digest": loaded.effective.config_digest,
        "head": {"line": len(loaded.entries), "hash": loaded.entries[-1].hash},
        "hypothesis": registration.claim.hypothesis, "budget": budget, "attempts": attempts, "reads": reads,
        "gates": gates, "rungs": dict(now.rungs),
        "allowances": {a.id: {"used": loaded.effective.used(a.id), "of": a.times} for a in registration.allowances},
        "deferred": {d.id: registration.constants.get(d.id) for d in registration.deferred},
        "objections": {str(n): dict(data) for n, data in now.objections.items()},
        "next": action, "because": why,
    }  # fmt: skip


def verify(argv: Sequence[str]) -> int:
    """Derive everything again."""
    made = parser(
        "verify",
        "Derive digests, chain, state, git history, evidence, reads, gates and verdict again, and name the file and\n"
        "field of everything that does not match (exit code 5).",
        ("verify --all", "verify E001-quickstart", "verify E001 --head 14:3f0c..."),
        id=None,
    )
    made.add_argument("ids", metavar="ID", nargs="*")
    made.add_argument("--all", action="store_true", help="every registration")
    made.add_argument("--head", metavar="LINE:HASH", help="a ledger line that was noted elsewhere")
    args = made.parse_args(list(argv))
    if bool(args.ids) == args.all or (args.head and len(args.ids) != 1):
        raise UsageError(
            "name registrations, or give --all", where="command line", remedy="--head goes with one of them"
        )
    head = _head(args.head) if args.head else None
    history = History.of(paths.experiments_dir()) if paths.experiments_dir().is_dir() else None
    committed = history.registered() if history else set()
    ids = sorted({*known(paths.experiments_dir()), *committed}) if args.all else args.ids
    found = {}
    for id in ids:
        target = folder(id)
        if not target.frozen and id not in committed:
            target.load()  # says that there is none
        found[id] = find_problems(target, history)
        if head:
            found[id] += _check_head(target, *head)
    bad = {id: problems for id, problems in found.items() if problems}
    if args.json:
        print_json({id: [vars(problem) for problem in problems] for id, problems in found.items()})
    else:
        for id, problems in found.items():
            print(f"{id}: {'ok' if not problems else f'{len(problems)} problems'}")
            for problem in problems:
                print(f"  {problem.what}\n    where:  {problem.where}\n    remedy: {problem.remedy}", file=sys.stderr)
    return EXIT_INTEGRITY if bad else EXIT_OK


def _head(text: str) -> tuple[int, str]:
    """Number and hash of a line."""
    number, _, wanted = text.partition(":")
    if not number.isdecimal() or not wanted:
        raise UsageError(f"{text!r} is no head", where="--head", remedy="vla-rl prereg status ID --json has it: head")
    return int(number), wanted


def _check_head(target: Folder, at: int, wanted: str) -> list[Problem]:
    lines = target.ledger.stored().split(b"\n")
    if 0 < at <= len(lines) and f'"hash":"{wanted}'.encode() in lines[at - 1]:
        return []
    return [Problem(f"{target.ledger.path}, line {at}", "it is not the line that was noted")]
