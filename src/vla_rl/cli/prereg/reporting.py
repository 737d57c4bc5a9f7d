"""`vla-rl prereg report`: REPORT.md, its figures, and films of the same seeds before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.common import folder, parser
from vla_rl.errors import EXIT_OK, UsageError
from vla_rl.files import write_atomic
from vla_rl.prereg.canonical import file_digest
from vla_rl.prereg.document import REPORT
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.judging import evidence_files
from vla_rl.prereg.reported import last_report, report_files, report_films
from vla_rl.report.figures import draw
from vla_rl.report.progress import ProgressView
from vla_rl.report.registration import registration_report
from vla_rl.seeds import parse_seeds

if TYPE_CHECKING:
    from vla_rl.cli.prereg.filming import Film


def report(argv: Sequence[str]) -> int:
    """Write the report, with --videos after playing what it shows."""
    made = parser(
        "report",
        "Write experiments/ID/REPORT.md and the figures in experiments/ID/report/ from what is recorded; digests\n"
        "go to the ledger. With --videos, base and trained policy are played side by side on seeds that a read on\n"
        "record has evaluated both on: one GIF a seed, of at most 2 MB.",
        ("report E001-quickstart", "report E001-quickstart --videos 10000,10007 --arm seed1"),
    )
    made.add_argument("--videos", metavar="SEEDS", help="seeds to film before and after, e.g. 10000,10003-10005")
    made.add_argument("--rung", metavar="RUNG", help="whose trained policy is filmed (default: the last rung)")
    made.add_argument("--arm", metavar="ARM", help="whose trained policy is filmed: id or label (default: baseline)")
    args = made.parse_args(list(argv))
    if args.videos is None and (args.rung or args.arm):
        raise UsageError("--rung and --arm say what is filmed", where="command line", remedy="name seeds: --videos")
    target, films = folder(args.id), []
    if args.videos is not None:
        from vla_rl.cli.prereg.filming import film

        with ProgressView() as view:
            films = film(target, target.load(), parse_seeds(args.videos), args.rung, args.arm, view)
    with target.ledger.locked():
        path = write_report(target, films)
        files = sorted(report_files(target.load().entries))
    if args.json:
        print_json({"id": args.id, "report": str(path), "files": files})
    else:
        print("\n".join(map(str, (path, *(target.path / name for name in files)))))
    return EXIT_OK


def write_report(target: Folder, films: Sequence[Film] = ()) -> Path:
    """Render, record, replace; nothing is recorded if nothing has changed since. The caller holds the lock.

    Args:
        films: new ones; those on record stay, unless one of these takes their place or their file is not what it was.
    """
    loaded, path = target.load(), target.path / REPORT
    on_record = report_files(loaded.entries)
    whole = [film for film in report_films(loaded.entries) if _is(target.path / film["file"], on_record)]
    told = {film["file"]: film for film in [*whole, *(film.told for film in films)]}
    figures = draw(loaded, evidence_files(target, loaded.entries))
    text = registration_report(loaded, figures, list(told.values())).encode()
    new = {**figures.files, **{film.told["file"]: film.data for film in films}}
    digests = {name: on_record[name] for name in told if name in on_record}
    digests |= {name: file_digest(data) for name, data in new.items()}
    data = {"sha256": file_digest(text), "files": digests, "films": list(told.values())}
    if last_report(loaded.entries) != data:
        target.write("reported", data, effective=loaded.effective)
    for name, content in {REPORT: text, **new}.items():
        file = target.path / name
        file.parent.mkdir(exist_ok=True)
        if not file.is_file() or file.read_bytes() != content:
            write_atomic(file, content)
    for name in on_record.keys() - digests.keys():
        (target.path / name).unlink(missing_ok=True)
    return path


def _is(file: Path, on_record: Mapping[str, str]) -> bool:
    recorded = on_record.get(f"{file.parent.name}/{file.name}")
    return file.is_file() and file_digest(file.read_bytes()) == recorded
