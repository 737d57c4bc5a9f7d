"""`vla-rl prereg new` and `freeze`: from nothing to a frozen registration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vla_rl import __version__
from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.common import author, folder, parser
from vla_rl.cli.prereg.template import draft_text
from vla_rl.config.compose import compose
from vla_rl.errors import EXIT_OK, ConfigError, UsageError
from vla_rl.prereg import anchor, freezing, yamlfile
from vla_rl.prereg.amendments import start
from vla_rl.prereg.canonical import SCHEMA, file_digest, same
from vla_rl.prereg.document import DRAFT_FILE, Draft, Registration, read_draft
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.git import Git, tree_id
from vla_rl.prereg.imports import links
from vla_rl.prereg.ledger import LEDGER, now
from vla_rl.prereg.lint import findings
from vla_rl.prereg.lint_run import Finding
from vla_rl.prereg.parts import SECTION, parts
from vla_rl.prereg.pins import Place, take
from vla_rl.prereg.sections import ComposedFrom, Meta
from vla_rl.sim.protocol import protocol_named

HEADER = (
    "# Frozen. It is changed by amendments only (vla-rl prereg amend {id}); any edit of it fails verify.\n"
    "# Words and numbers are read as JSON reads them. vla-rl prereg status {id} says where it stands.\n"
)


def new(argv: Sequence[str]) -> int:
    """Write a commented draft."""
    args = parser(
        "new", "Write a commented draft to fill in: experiments/ID/draft.yaml.", ("new E001-quickstart",)
    ).parse_args(list(argv))
    target = folder(args.id)
    draft = target.path / DRAFT_FILE
    if draft.exists() or target.frozen:
        raise UsageError("there is one already", where=str(target.path), remedy="choose another id, or edit the draft")
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.write_text(draft_text(args.id, author()))
    if args.json:
        print_json({"draft": str(draft)})
    else:
        print(f"{draft}: fill it in, then\n  vla-rl prereg freeze {args.id} experiment=quickstart")
    return EXIT_OK


def freeze(argv: Sequence[str]) -> int:
    """Compose, resolve, validate, check and write the registration."""
    made = parser(
        "freeze",
        "Compose the configuration of `vla-rl train`, put it together with experiments/ID/draft.yaml, check both and\n"
        "write experiments/ID/registration.yaml. Nothing is loaded, nothing is run.",
        ("freeze E001-quickstart experiment=quickstart", "freeze E002 experiment=learning optim.lr=1e-5 --check"),
    )
    made.add_argument("overrides", nargs="*", metavar="key=value", help="settings of vla-rl train")
    made.add_argument("--check", action="store_true", help="say what is wrong with it and write nothing")
    made.add_argument(
        "--absent", action="store_true", help="the policy is not on this machine: pin its name; amend --repin, later"
    )
    args = made.parse_intermixed_args(list(argv))
    target = folder(args.id)
    if target.frozen and target.ledger.read():
        raise UsageError(
            f"{args.id} is frozen already",
            where=str(target.registration),
            remedy=f"vla-rl prereg amend {args.id}, or another id",
        )
    if (git := target.git()) is not None and not target.ledger.read() and anchor.tip(git, args.id) is not None:
        raise UsageError(
            f"{args.id} was registered in this repository before, and its ledger is not here",
            where=anchor.ref(args.id),
            remedy=f"another id; git show {anchor.ref(args.id)}:{LEDGER} has what happened to it",
        )
    document, found = _prepare(target, args.overrides, argv, absent=args.absent)
    effective = start(document, DRAFT_FILE)
    found += findings(effective.registration)
    if found:
        raise ConfigError(
            f"{len(found)} things are wrong with it:\n" + "\n".join(_told(f) for f in found),
            where=str(target.path / DRAFT_FILE),
            remedy="correct them and freeze again; nothing was written",
        )
    if not args.check:
        _write(target, document)
    registration = effective.registration
    summary = {
        "id": args.id, "digest": effective.digest, "config_digest": effective.config_digest, "written": not args.check,
        "file": str(target.registration), "arms": [arm.id for arm in registration.arms],
        "reads": {read.id: read.role for read in registration.reads},
    }  # fmt: skip
    if args.json:
        print_json(summary)
    elif args.check:
        print(f"nothing is wrong with {args.id}")
    else:
        print(_next_steps(target, registration, effective.digest))
    return EXIT_OK


def _prepare(
    target: Folder, overrides: Sequence[str], argv: Sequence[str], *, absent: bool
) -> tuple[dict[str, Any], list[Finding]]:
    draft_path = target.path / DRAFT_FILE
    if not draft_path.exists():
        raise UsageError("there is no draft", where=str(draft_path), remedy=f"vla-rl prereg new {target.id}")
    data = draft_path.read_bytes()
    draft = read_draft(yamlfile.load(data, str(draft_path)), str(draft_path))
    reader = compose("config", overrides)
    place = Place.here()
    meta = Meta(
        schema=SCHEMA, id=target.id, title=draft.title, author=draft.author, created_utc=now(),
        tool_version=__version__, composed_from=ComposedFrom("config", list(overrides)),
    )  # fmt: skip
    pins = take(reader.tree, place, ["vla-rl", "prereg", "freeze", *argv], data, absent=absent)
    document = freezing.document(draft, reader.tree, meta, pins)
    return document, [*_look(draft, reader.tree), *_protocols(draft), *_committed(place)]


def _look(draft: Draft, tree: dict[str, Any]) -> list[Finding]:
    """The look is stated, and it is the one that is composed: no picture is left to a default."""
    stated = compose("config", [f"sim/look={draft.claim.look}"]).tree["sim"]["look"]
    if same(stated, tree["sim"]["look"]):
        return []
    changed = sorted(key for key in stated if not same(stated[key], tree["sim"]["look"].get(key)))
    what = f"the run does not render the look {draft.claim.look!r}: {', '.join(changed)} differ"
    return [Finding("claim.look", what, f"freeze with sim/look={draft.claim.look}, or state the look of the run")]


def _protocols(draft: Draft) -> list[Finding]:
    """What is to be played under another protocol than the run's can be."""
    found = []
    for measurement in draft.measurements:
        try:
            protocol_named(measurement.protocol or draft.claim.protocol)
        except ConfigError as error:
            where = f"measurements[{measurement.id}].protocol"
            found.append(Finding(where, error.what, error.remedy or "name another"))
    return found


def _committed(place: Place) -> list[Finding]:
    """Code that nobody can get back is no pin."""
    git = Git.around(place.root) if place.root else None
    if place.root is None or git is None:
        return []
    found = []
    for directory in (place.package, place.conf):
        name = directory.relative_to(place.root).as_posix()
        if git.tree(name) != tree_id(directory):
            what = f"{name} is not what is committed"
            found.append(Finding("pins.code", what, "commit it (also what git ignores there), or remove it"))
        found += [Finding("pins.code", f"{link} is a link", "put the file itself there") for link in links(directory)]
    return found


def _told(finding: Finding) -> str:
    return f"  - {finding.where}: {finding.what}\n    {finding.remedy}"


def _write(target: Folder, document: dict[str, Any]) -> None:
    data = (HEADER.format(id=target.id) + yamlfile.dump(document)).encode()
    if not same(yamlfile.load(data, "registration"), document):
        raise ConfigError("a value does not survive being written", where=str(target.registration))
    effective = start(document, str(target.registration))
    with target.ledger.locked():
        target.write(
            "registered",
            {
                "sha256": file_digest(data),
                "sections": parts(document, SECTION),
                "primaries": effective.registration.primaries(),
                "objection_h": effective.registration.activation.objection_h,
            },
            effective=effective,
            files={target.registration: data},
        )


def _next_steps(target: Folder, registration: Registration, digest: str) -> str:
    lines = [
        f"{target.id} is frozen: {target.registration}, digest {digest[:12]}",
        f"  {len(registration.reads)} reads ({', '.join(registration.primaries())} primary), "
        f"{len(registration.arms)} arms, {len(registration.ladder)} rungs",
        "next:",
        f"  git add {target.path} && git commit -m 'Freeze {target.id}'",
        f"  vla-rl prereg activate {target.id}",
        f"  vla-rl prereg launch {target.id}",
    ]
    return "\n".join(lines)
