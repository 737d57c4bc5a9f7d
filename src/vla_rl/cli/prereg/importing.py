"""`vla-rl prereg import`: ledger and evidence back from another machine, if they only went on from what is here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.common import folder, parser
from vla_rl.errors import EXIT_OK, IntegrityError, UsageError
from vla_rl.files import write_atomic
from vla_rl.prereg import anchor
from vla_rl.prereg.document import REPORT
from vla_rl.prereg.folder import Folder, Loaded, create
from vla_rl.prereg.judging import evidence_files
from vla_rl.prereg.ledger import parse
from vla_rl.prereg.reported import report_files


def import_(argv: Sequence[str]) -> int:
    """Take over what was added there."""
    made = parser(
        "import",
        "Bring a registration back from a clone on another machine: its ledger must begin with the one that is here,\n"
        "line by line, and its evidence must be what that ledger says. Nothing is taken over otherwise.",
        ("import E001-quickstart --from /mnt/gpu/vla_rl/experiments/E001-quickstart",),
    )
    made.add_argument("--from", dest="source", type=Path, required=True, metavar="DIR", help="the folder there")
    args = made.parse_args(list(argv))
    target, there = folder(args.id), Folder(args.source.resolve().parent, args.source.resolve().name)
    if there.id != target.id or not there.ledger.path.is_file():
        raise UsageError(f"there is no ledger of {target.id}", where=str(args.source), remedy="name its folder there")
    with target.ledger.locked():
        loaded = target.load()
        ours, theirs = target.ledger.path.read_bytes(), there.ledger.path.read_bytes()
        if not theirs.startswith(ours):
            what = "the ledger there does not begin with the one here: both have gone on by themselves"
            raise IntegrityError(
                what, where=f"{there.ledger.path} and {target.ledger.path}", remedy="keep one of the two"
            )
        entries = parse(theirs, str(there.ledger.path))
        new = entries[len(loaded.entries) :]
        known = there.load_as_written()
        evidence_files(there, entries)  # what is not as recorded is not taken over
        files = _files(there, known)
        for name, data in files.items():
            create(target.path / name, data)
        write_atomic(target.ledger.path, theirs)
        for name in (REPORT, *report_files(entries)):
            if (file := there.path / name).is_file():
                (target.path / name).parent.mkdir(exist_ok=True)
                write_atomic(target.path / name, file.read_bytes())
        after = target.load()
        for entry in new:
            upto = b"".join(line + b"\n" for line in theirs.split(b"\n")[: entry.seq + 1])
            anchor.record(target.git(), target.id, upto, entry)
        told = {"id": target.id, "events": len(new), "files": sorted(files), "state": after.state.name}
    if args.json:
        print_json(told)
    else:
        print(f"{told['events']} events and {len(files)} files are taken over; {target.id} is {told['state']}")
    return EXIT_OK


def _files(there: Folder, known: Loaded) -> dict[str, bytes]:
    """What the ledger there knows of, by name."""
    paths = [there.evidence(entry.data["evidence"]) for entry in known.entries if entry.event == "look"]
    paths += [there.amendment(amendment.number) for amendment in known.effective.amendments]
    return {path.relative_to(there.path).as_posix(): path.read_bytes() for path in paths}
