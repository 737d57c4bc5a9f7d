"""`vla-rl prereg amend`: the next numbered change of a registration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.common import assignments, author, folder, parser
from vla_rl.errors import EXIT_OK, ConfigError, UsageError
from vla_rl.prereg import delta, pins, yamlfile
from vla_rl.prereg.amendments import KINDS, SEEN, Amendment, Effective, extend, propose, start
from vla_rl.prereg.canonical import file_digest, same
from vla_rl.prereg.delta import Op, lookup, read_path
from vla_rl.prereg.document import plain
from vla_rl.prereg.effects import outdated
from vla_rl.prereg.folder import Folder, Loaded, not_now
from vla_rl.prereg.freezing import complete
from vla_rl.prereg.ledger import now
from vla_rl.prereg.lint import findings
from vla_rl.prereg.parts import SECTION, parts
from vla_rl.prereg.state import State, allowed
from vla_rl.report.prereg import operations, show

EXAMPLES = (
    "amend E001 --set config.optim.lr=3e-7 --reason 'the first updates ran hot' --kind scientific --data-seen training",
    "amend E001 --set reads[primary].rule.alpha=0.01 --reason ... --kind scientific --data-seen none",
    "amend E001 --repin --reason 'crash in the pool mended' --kind operational --data-seen training",
    "amend E001 --fallback gentle --reason 'the wave ran hot' --kind scientific --data-seen training",
    "amend E001 --settle base_rate --reason 'preflight is read' --kind operational --data-seen outcomes",
)


def amend(argv: Sequence[str]) -> int:
    """Write amendments/NN.yaml and record it."""
    made = parser(
        "amend",
        "Write the next numbered amendment: what changes (with what stood there before), why, and what had been seen.\n"
        "Paths are those of registration.yaml: config.optim.lr, reads[primary].rule.alpha, constants.base_rate.",
        EXAMPLES,
    )
    made.add_argument("--set", action="append", metavar="PATH=VALUE", help="change a value; repeatable")
    made.add_argument(
        "--add", action="append", metavar="PATH=VALUE", help="add a key or record, value in YAML; repeatable"
    )
    made.add_argument("--remove", action="append", metavar="PATH", help="remove a key or record; repeatable")
    made.add_argument("--repin", action="store_true", help="pin code, packages and files as they are now")
    made.add_argument("--settle", metavar="CONSTANT", help="set a deferred constant to the estimate of its read")
    made.add_argument("--fallback", metavar="ID", help="make the registered retreat")
    made.add_argument("--allowance", metavar="ID", help="make use of a registered allowance")
    made.add_argument("--reason", required=True, help="why")
    made.add_argument(
        "--kind", required=True, choices=KINDS, help="clerical: words; operational: how; scientific: what"
    )
    made.add_argument("--data-seen", required=True, choices=SEEN, help="what had been seen when this was decided")
    made.add_argument("--check", action="store_true", help="say what it would do and write nothing")
    args = made.parse_args(list(argv))
    target = folder(args.id)
    with target.ledger.locked():
        loaded = target.load()
        if not allowed(loaded.state.name, "amended"):
            raise not_now(loaded.state, "amended", args.id)
        _check_seen(loaded.state, args.data_seen)
        amendment = propose(
            loaded.effective,
            _completed(_operations(args, loaded), loaded.effective),
            author=author(), created_utc=now(), kind=args.kind, reason=args.reason, data_seen=args.data_seen,
            allowance=args.allowance, fallback=args.fallback, settles=args.settle,
        )  # fmt: skip
        after = extend(loaded.effective, amendment, "amendment")
        _check(loaded.effective, after)
        if not args.check:
            _write(target, amendment, loaded.effective, after)
    if args.json:
        print_json({"id": args.id, "written": not args.check, **plain(amendment)})
    else:
        show(operations(amendment.operations(), f"{args.id}, amendment {amendment.number} ({amendment.kind})"))
        made_so = ", ".join(amendment.effects) or "none"
        print(f"reads that are exploratory from now on: {made_so}")
        if not args.check:
            print(f"next:\n  git add {target.path} && git commit -m 'Amend {args.id}: {amendment.number}'")
    return EXIT_OK


def _check_seen(state: State, stated: str) -> None:
    """What the ledger shows was seen cannot be stated away."""
    seen = state.seen
    if SEEN.index(stated) < SEEN.index(seen):
        what = {"outcomes": "outcomes were opened", "training": "a run was launched"}[seen]
        raise UsageError(f"{what}: the ledger has it", where="--data-seen", remedy=f"--data-seen {seen}")


def _operations(args: Any, loaded: Loaded) -> list[Op]:
    before = loaded.effective
    document = before.plain
    ops: list[Op] = []
    for text, value in assignments(args.set, "--set").items():
        path = read_path(text)
        stood = lookup(document, path)
        if same(stood, value):
            raise UsageError(f"{text} is {value!r} already", where="--set", remedy="leave it away")
        ops.append(Op("set", path, stood, value))
    ops += [Op("add", read_path(text), after=value) for text, value in assignments(args.add, "--add").items()]
    ops += [Op("remove", read_path(text), before=lookup(document, read_path(text))) for text in args.remove or ()]
    if args.fallback and not ops:
        fallback = next((f for f in before.registration.fallbacks if f.id == args.fallback), None)
        for text, value in ((fallback.set if fallback else None) or {}).items():
            path = read_path(f"config.{text}")
            ops.append(Op("set", path, lookup(document, path), value))
    if args.settle:
        ops.append(_settled(args.settle, loaded))
    if args.repin:
        ops += _repinned(before, ops)
    return ops


def _completed(ops: Sequence[Op], before: Effective) -> list[Op]:
    """With everything stated that they leave away, as when it is frozen: no default may change it later."""
    after = start(delta.apply(ops, before.plain), "amendment").registration
    full = plain(complete(after, after.config))
    return [op if op.op == "remove" else replace(op, after=lookup(full, op.path)) for op in ops]


def _settled(constant: str, loaded: Loaded) -> Op:
    """The estimate of the read that the constant was deferred to."""
    deferred = {each.id: each for each in loaded.registration.deferred}
    if constant not in deferred:
        raise UsageError(
            f"the constant {constant!r} is not deferred", remedy=f"deferred: {', '.join(deferred) or 'none'}"
        )
    read = loaded.state.reads.get(deferred[constant].read)
    if read is None or read["outcome"]["estimate"] is None:
        raise UsageError(
            f"the read {deferred[constant].read} has no estimate yet",
            where=f"deferred[{constant}]",
            remedy=f"vla-rl prereg read {loaded.registration.id} {deferred[constant].read}",
        )
    path = read_path(f"constants.{constant}")
    return Op("set", path, lookup(loaded.effective.plain, path), float(read["outcome"]["estimate"]))


def _repinned(before: Effective, ops: Sequence[Op]) -> list[Op]:
    """Pins as they are now, of the configuration that the other operations lead to."""
    old, config = before.registration.pins, delta.apply(ops, before.plain)["config"]
    absent = any(map(pins.named_only, (old.checkpoint, old.codec)))  # what was never there may stay away
    taken = pins.take(config, pins.Place.here(), old.command, None, absent=absent)
    new = {**plain(taken), "command": old.command, "draft_sha256": old.draft_sha256}
    trees = ("package_tree", "conf_tree")
    if all(getattr(old.code, name) == getattr(taken.code, name) for name in trees):
        new["code"]["base_commit"] = old.code.base_commit  # where these very trees can be found
    here = read_path("pins")
    return [Op(op.op, (*here, *op.path), op.before, op.after) for op in delta.diff(dict(before.plain)["pins"], new)]


def _check(before: Effective, after: Effective) -> None:
    """An amended registration is one that could have been frozen."""
    known = findings(before.registration)
    found = [finding for finding in findings(after.registration) if finding not in known]
    if found:
        told = "\n".join(f"  - {f.where}: {f.what}\n    {f.remedy}" for f in found)
        raise ConfigError(f"{len(found)} things would be wrong with it:\n{told}", where="amendment")


def _write(target: Folder, amendment: Amendment, before: Effective, after: Effective) -> None:
    document = plain(amendment)
    data = yamlfile.dump(document).encode()
    target.write(
        "amended",
        {
            "number": amendment.number,
            "kind": amendment.kind,
            "sha256": file_digest(data),
            "sections": parts(document, SECTION),
            "primaries": after.registration.primaries(),
            "effects": amendment.effects,
            "outdated": outdated(before.registration, after.registration),
        },
        effective=after,
        files={target.amendment(amendment.number): data},
    )
