"""`vla-rl prereg activate`, `object` and `override`: what people have to say before and while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.common import author, folder, named, parser
from vla_rl.errors import EXIT_OK, LaunchRefused, UsageError
from vla_rl.prereg import state
from vla_rl.prereg.folder import Folder, Loaded, not_now
from vla_rl.prereg.history import History, uncommitted
from vla_rl.prereg.judging import BAND


def activate(argv: Sequence[str]) -> int:
    """Tick items off, and activate if nothing is left."""
    made = parser(
        "activate",
        "Tick off items of the checklist with their evidence, and activate once all are done and the time for\n"
        "objections is over. Exit code 4 while something is missing.",
        (
            "activate E001-quickstart",
            "activate E002 --done receipt='exported/base, sha256 1f...' --done plan=plan.json",
        ),
    )
    made.add_argument("--done", action="append", metavar="ITEM=EVIDENCE", help="an item and what shows it; repeatable")
    args = made.parse_args(list(argv))
    target = folder(args.id)
    done = named(args.done, "--done")
    with target.ledger.locked():
        loaded = target.load()
        if not state.allowed(loaded.state.name, "activated"):
            raise not_now(loaded.state, "activated", args.id)
        items = {item.id: item for item in loaded.registration.activation.checklist}
        for name, evidence in done.items():
            if name not in items:
                raise UsageError(
                    f"there is no item {name!r}",
                    where="--done",
                    remedy=f"the checklist has: {', '.join(items) or 'nothing'}",
                )
            target.write("checked", {"item": name, "evidence": evidence, "by": author()}, effective=loaded.effective)
        loaded = target.load()
        missing = standing_against(target, loaded, datetime.now(UTC))
        if not missing:
            target.write("activated", {"by": author()}, effective=loaded.effective)
    if missing:
        raise LaunchRefused(
            f"{args.id} is not active yet:\n" + "\n".join(f"  - {each}" for each in missing),
            where="activation",
            remedy="it is recorded what is done so far",
        )
    if args.json:
        print_json({"id": args.id, "state": state.ACTIVE})
    else:
        print(f"{args.id} is active\n  vla-rl prereg launch {args.id}")
    return EXIT_OK


def standing_against(target: Folder, loaded: Loaded, at: datetime) -> list[str]:
    """What is missing for activation, in words."""
    activation, now = loaded.registration.activation, loaded.state
    missing = [f"{item.id}: {item.text}" for item in activation.checklist if item.id not in now.checked]
    opens = datetime.fromisoformat(now.since) + timedelta(hours=activation.objection_h)
    if at < opens:
        missing.append(f"objections are possible until {opens.isoformat(timespec='minutes')}")
    missing += [
        f"objection {n} of {data['by']} is open: {data['text']} (object {target.id} --answer {n} --text ...)"
        for n, data in now.objections.items()
    ]
    if names := uncommitted(target, History.of(target.path)):
        missing.append(f"not committed as it is: {', '.join(names)} (git add {target.path} && git commit)")
    return missing


def object(argv: Sequence[str]) -> int:
    """Record an objection or an answer to one."""
    made = parser(
        "object",
        "Record an objection, or answer one. An open objection stands against activation and never against a run that\n"
        "is active.",
        (
            "object E001 --text 'the base was chosen on these seeds' --by Ada",
            "object E001 --answer 3 --text 'moved to 10000'",
        ),
    )
    made.add_argument("--text", required=True, help="what is objected, or the answer")
    made.add_argument("--by", default=None, help="whose it is (default: the name that git knows)")
    made.add_argument("--answer", type=int, metavar="N", help="number of the objection that this answers")
    args = made.parse_args(list(argv))
    target = folder(args.id)
    with target.ledger.locked():
        loaded = target.load()
        data = {"by": args.by or author(), "text": args.text}
        if args.answer is None:
            entry = target.write("objected", data, effective=loaded.effective)
        else:
            if args.answer not in loaded.state.objections:
                open_ones = ", ".join(map(str, loaded.state.objections)) or "none"
                raise UsageError(f"no objection {args.answer} is open", where="--answer", remedy=f"open: {open_ones}")
            entry = target.write("answered", {**data, "objection": args.answer}, effective=loaded.effective)
    if args.json:
        print_json({"id": args.id, "event": entry.event, "number": entry.seq})
    else:
        print(f"objection {entry.seq} is recorded" if args.answer is None else f"objection {args.answer} is answered")
    return EXIT_OK


def override(argv: Sequence[str]) -> int:
    """Override a BAND, if that was registered."""
    made = parser(
        "override",
        "Go on in spite of a gate that says BAND, where the registration allows that. An ABORT is never overridden.",
        ("override E003 preflight --reason 'six of 100 is within the band; decided by ...'",),
    )
    made.add_argument("gate", metavar="GATE", help="its id")
    made.add_argument("--reason", required=True, help="why")
    args = made.parse_args(list(argv))
    target = folder(args.id)
    with target.ledger.locked():
        loaded = target.load()
        gates = {gate.id: gate for gate in loaded.registration.gates}
        if args.gate not in gates:
            raise UsageError(f"there is no gate {args.gate!r}", remedy=f"registered: {', '.join(gates) or 'none'}")
        judged = loaded.state.gates.get(args.gate)
        if judged is None or judged["decision"] != BAND or not gates[args.gate].override:
            why = "is not judged" if judged is None else f"says {judged['decision']}"
            why = why if judged is None or judged["decision"] != BAND else "says BAND, and no override is registered"
            raise LaunchRefused(f"the gate {args.gate} {why}", where=f"gates[{args.gate}]", remedy="only a BAND with a "
                                "registered override can be overridden")  # fmt: skip
        target.write(
            "overridden", {"gate": args.gate, "reason": args.reason, "by": author()}, effective=loaded.effective
        )
    if args.json:
        print_json({"id": args.id, "overridden": args.gate})
    else:
        print(f"the BAND of {args.gate} is overridden; it is recorded why")
    return EXIT_OK
