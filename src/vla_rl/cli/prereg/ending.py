"""`vla-rl prereg verdict`, `close`, `withdraw`, `supersede` and `erratum`: how a registration ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.attempts import bury, record_end
from vla_rl.cli.prereg.common import author, folder, parser
from vla_rl.cli.prereg.reporting import write_report
from vla_rl.errors import EXIT_OK, LaunchRefused, UsageError
from vla_rl.prereg import state
from vla_rl.prereg.folder import Folder, not_now
from vla_rl.prereg.judging import evidence_files, verdict_record, verdict_stands
from vla_rl.prereg.outcome import Outcome
from vla_rl.prereg.process import Process
from vla_rl.prereg.state import Attempt


def verdict(argv: Sequence[str]) -> int:
    """Judge the claim and record the verdict."""
    made = parser(
        "verdict",
        "Judge the claim by its recorded reads, in a fixed order: INVALID, REFUTED, INCONCLUSIVE, SUPPORTED. Once a\n"
        "verdict is recorded it is shown again, not judged again, unless reads came in since.",
        ("verdict E001-quickstart",),
    )
    args = made.parse_args(list(argv))
    target = folder(args.id)
    with target.ledger.locked():
        bury(target)
        loaded = target.load()
        _none_running([a for a in loaded.state.running if not a.exploratory])
        record = dict(loaded.state.verdict or {})
        if not verdict_stands(loaded.effective, loaded.state):
            record = verdict_record(loaded.effective, loaded.state)
            if not state.allowed(loaded.state.name, "verdict"):
                raise not_now(loaded.state, "verdict", args.id)
            target.write("verdict", record, effective=loaded.effective)
    if args.json:
        print_json({"id": args.id, **record})
    else:
        print(record["sentence"])
        for read in loaded.registration.reads:
            if read.role in ("primary", "guardrail") and read.id in loaded.state.reads:
                print(f"  {read.role} {read.id}: {Outcome.from_record(loaded.state.reads[read.id]['outcome']).line()}")
        for reason in record["reasons"][1:]:
            print(f"  also: {reason}")
        print(f"next:\n  vla-rl prereg close {args.id} && git add {target.path} && git commit -m 'Close {args.id}'")
    return EXIT_OK


def _none_running(attempts: Sequence[Attempt]) -> None:
    for attempt in attempts:
        process = attempt.data["process"]
        raise LaunchRefused(
            "an attempt is running",
            where=f"attempt {attempt.number}, process {process['pid']} of machine {process['node']}",
            remedy="wait for it, or stop it first",
        )  # fmt: skip


def close(argv: Sequence[str]) -> int:
    """End the registration."""
    made = parser(
        "close",
        "End it: record what is banked, whatever the verdict, and what a successor inherits. A verdict comes first.",
        (
            "close E001-quickstart",
            "close E003 --banked 'parity: PASS, perfect' --inherits 'allocator setting, headroom'",
        ),
    )
    made.add_argument("--banked", action="append", default=[], metavar="TEXT", help="what holds from now on")
    made.add_argument("--inherits", action="append", default=[], metavar="TEXT", help="what a successor starts from")
    args = made.parse_args(list(argv))
    target = folder(args.id)
    with target.ledger.locked():
        bury(target)
        loaded = target.load()
        if not state.allowed(loaded.state.name, "closed"):
            raise not_now(loaded.state, "closed", args.id)
        if loaded.state.verdict is None or not verdict_stands(loaded.effective, loaded.state):
            raise LaunchRefused(
                "no verdict is on record for what was read", where="verdict", remedy=f"vla-rl prereg verdict {args.id}"
            )
        _none_running(loaded.state.running)
        evidence_files(target, loaded.entries)  # which the report needs: an end without one would be half an end
        data = {
            "verdict": loaded.state.verdict["verdict"],
            "banked": args.banked,
            "inherits": args.inherits,
            "by": author(),
        }
        target.write("closed", data, effective=loaded.effective)
        path = write_report(target)
    _ended(args, target, {"state": state.CLOSED, **data, "report": str(path)})
    return EXIT_OK


def withdraw(argv: Sequence[str]) -> int:
    """Take it back."""
    made = parser(
        "withdraw", "Take a registration back; what was recorded stays, with the reason.",
        ("withdraw E001 --reason 'the simulator was wrong'",),
    )  # fmt: skip
    made.add_argument("--reason", required=True, help="why")
    args = made.parse_args(list(argv))
    return _aside(args, "withdrawn", {"reason": args.reason})


def supersede(argv: Sequence[str]) -> int:
    """Name the registration that takes its place."""
    made = parser(
        "supersede", "Another registration takes its place.", ("supersede E001 --by E002 --reason 'another base'",)
    )
    made.add_argument("--by", required=True, metavar="ID", help="the registration that takes its place")
    made.add_argument("--reason", required=True, help="why")
    args = made.parse_args(list(argv))
    if not folder(args.by).frozen or args.by == args.id:
        raise UsageError(f"{args.by} is no other registration", where="--by", remedy="freeze it first")
    return _aside(args, "superseded", {"by": args.by, "reason": args.reason})


def erratum(argv: Sequence[str]) -> int:
    """Record that something was wrong."""
    made = parser(
        "erratum", "Record that something was found to be wrong. It changes no verdict; it may mark it as disputed.",
        ("erratum E001 --text 'the scene hash left out the table' --disputes",),
    )  # fmt: skip
    made.add_argument("--text", required=True, help="what")
    made.add_argument("--disputes", action="store_true", help="the verdict is in doubt because of it")
    args = made.parse_args(list(argv))
    return _aside(args, "erratum", {"text": args.text, "disputes": args.disputes, "by": author()})


def _aside(args: Any, event: str, data: Mapping[str, Any]) -> int:
    target = folder(args.id)
    with target.ledger.locked():
        bury(target)
        loaded = target.load()
        if not state.allowed(loaded.state.name, event):
            raise not_now(loaded.state, event, args.id)
        _none_running(loaded.state.running if event != "erratum" else ())
        target.write(event, data, effective=loaded.effective)
        after = target.load().state.name
    _ended(args, target, {"state": after, **data})
    return EXIT_OK


def _ended(args: Any, target: Folder, told: Mapping[str, Any]) -> None:
    if args.json:
        print_json({"id": args.id, **told})
    else:
        print(f"{args.id} is {told['state']}\n  git add {target.path} && git commit")


def lost(argv: Sequence[str]) -> int:
    """Record the end of an attempt that nobody can record."""
    made = parser(
        "lost",
        "An attempt whose machine is gone will never report. Record that, with the reason and the hours that it may\n"
        "have cost; --resume goes on from what there is of its run.",
        ("lost E001-quickstart 2 --hours 1.5 --reason 'the machine was taken away'",),
    )
    made.add_argument("attempt", metavar="N", type=int, help="number of the attempt")
    made.add_argument("--hours", type=float, required=True, metavar="H", help="what it has cost at most")
    made.add_argument("--reason", required=True, help="what happened")
    args = made.parse_args(list(argv))
    target = folder(args.id)
    with target.ledger.locked():
        bury(target)
        loaded = target.load()
        running = {attempt.number: attempt for attempt in loaded.state.running}
        attempt = running.get(args.attempt)
        if attempt is None or not args.hours >= 0:
            raise UsageError(
                f"attempt {args.attempt} has its end, or was never begun" if attempt is None else "hours are positive",
                remedy=f"without an end: {', '.join(map(str, running)) or 'none'}",
            )
        if Process.of_body(attempt.data["process"]).alive():
            raise LaunchRefused("its process runs on this machine", where=f"attempt {args.attempt}", remedy="stop it")
        record_end(target, loaded, attempt, how="lost", why=args.reason, wall_h=args.hours)
    _ended(args, target, {"state": loaded.state.name, "attempt": args.attempt, "how": "lost"})
    return EXIT_OK
