"""`vla-rl report`: a training run or a registration as one HTML file; also as Markdown, CSV and figures for a paper.

In: a run's directory or a registration's id. Out: files. Nothing is changed in what is reported: the report of a
registration goes to `outputs/prereg/ID/`, not among its own files. What is sealed stays sealed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl import paths
from vla_rl.cli.options import command_parser, print_json
from vla_rl.errors import EXIT_OK, ConfigError, UsageError
from vla_rl.files import write_atomic
from vla_rl.prereg.folder import Folder, drafts, known, outputs_of

if TYPE_CHECKING:
    from vla_rl.prereg.delta import Op
    from vla_rl.prereg.sealing import Seal
    from vla_rl.report.page.model import Film, Page
    from vla_rl.report.page.rundata import RunData

EXAMPLES = (
    "vla-rl report outputs/quickstart/20261130T101500Z-1a2b",
    "vla-rl report E002-weak-start -o weak-start.html",
    "vla-rl report E002-weak-start --md --csv --figures pdf,png",
    "vla-rl report outputs/quickstart/20261130T101500Z-1a2b --videos 300,301",
)
NAME = "report.html"
FORMATS = ("pdf", "png")
_PLACE = re.compile(r"outputs/prereg/([A-Za-z0-9][A-Za-z0-9_-]{0,63})/")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def run(argv: Sequence[str]) -> int:
    """Write the report; tell where it is."""
    parser = command_parser(
        "report",
        "One HTML file that needs nothing else: of a training run (its directory) or of a registration (its id).\n"
        "Outcomes that a registered read has not opened are not in it.",
        EXAMPLES,
    )
    parser.add_argument("what", metavar="RUN|ID", help="directory of a training run, or id of a registration")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE",
        help=f"default: {NAME} in the directory of the run, or in outputs/prereg/ID",
    )  # fmt: skip
    parser.add_argument("--md", action="store_true", help="also as Markdown, beside it")
    parser.add_argument(
        "--csv", action="store_true", help="also every table and every chart's numbers, in a directory beside it"
    )
    parser.add_argument(
        "--figures", metavar="FORMATS",
        help="also every chart as pdf, png or pdf,png for a paper, in a directory beside it (needs matplotlib)",
    )  # fmt: skip
    parser.add_argument(
        "--videos", metavar="SEEDS",
        help="of a run of its own: play base and trained policy on these held-out seeds, and show them side by side",
    )  # fmt: skip
    options = parser.parse_args(list(argv))
    formats = _formats(options.figures)
    page, default, sealed = _page(options.what, options.videos)
    out = options.out or default
    files = _write(page, out, md=options.md, csv=options.csv, formats=formats)
    if options.json:
        print_json({
            "report": str(out), "kind": page.kind, "sealed": sealed,
            "files": [{"path": str(path), "bytes": path.stat().st_size} for path in files],
        })  # fmt: skip
    else:
        print("\n".join(f"{path}  ({path.stat().st_size / 1000:,.0f} kB)" for path in files))
    return EXIT_OK


def _formats(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    wanted = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if odd := [part for part in wanted if part not in FORMATS]:
        raise UsageError(f"{odd[0]!r} is no format of figures", where="--figures", remedy="pdf, png or pdf,png")
    from vla_rl.report.page.paper import check_installed

    check_installed()
    return wanted


def _page(what: str, videos: str | None) -> tuple[Page, Path, list[str]]:
    """The page, where it goes by default, and what of it is sealed."""
    directory, experiments = Path(what), paths.experiments_dir()
    folder = _folder(what, experiments)
    if folder is not None and not directory.is_dir():
        return _of_registration(folder, videos)
    if not directory.is_dir():
        raise _unknown(what, experiments)
    if directory.resolve().parent == experiments.resolve() and Folder(experiments, directory.resolve().name).frozen:
        return _of_registration(Folder(experiments, directory.resolve().name), videos)
    return _of_run(directory, videos)


def _folder(what: str, experiments: Path) -> Folder | None:
    folder = Folder(experiments, what) if _ID.fullmatch(what) else None
    return folder if folder is not None and (folder.frozen or folder.path.is_dir()) else None


def _unknown(what: str, experiments: Path) -> UsageError:
    ids = ", ".join(known(experiments)) or "none"
    waiting = f"; drafts, which have nothing to report: {', '.join(found)}" if (found := drafts(experiments)) else ""
    return UsageError(
        f"there is no run and no registration {what!r}", where=f"{Path.cwd()}, {experiments}",
        remedy=f"name the directory of a training run, or one of the registrations: {ids}{waiting}",
    )  # fmt: skip


def _of_registration(folder: Folder, videos: str | None) -> tuple[Page, Path, list[str]]:
    if videos is not None:
        raise UsageError(
            "films of a registration are played by another command, which puts them on record", where="--videos",
            remedy=f"vla-rl prereg report {folder.id} --videos {videos}; then this one shows them",
        )  # fmt: skip
    from vla_rl.prereg.judging import evidence_files
    from vla_rl.prereg.registered import arms_of, evidence_arm
    from vla_rl.report.page.registration import registration_page

    loaded = folder.load()
    found = evidence_files(folder, loaded.entries)
    registration = loaded.registration
    sealed = [
        m.id
        for m in registration.measurements
        if any((m.id, evidence_arm(arm)) not in found for arm in arms_of(registration, m))
    ]
    return registration_page(loaded, found, _films_on_record(folder)), outputs_of(folder) / NAME, sealed


def _films_on_record(folder: Folder) -> list[Film]:
    """Those that the ledger knows of and that are what it knows."""
    from vla_rl.prereg.canonical import file_digest
    from vla_rl.prereg.reported import report_files, report_films
    from vla_rl.report.page.media import films

    entries = folder.load().entries
    digests = report_files(entries)
    told = [(folder.path / film["file"], str(film["caption"])) for film in report_films(entries)]
    names = [film["file"] for film in report_films(entries)]
    return films(
        (path, caption)
        for name, (path, caption) in zip(names, told, strict=True)
        if name in digests and path.is_file() and file_digest(path.read_bytes()) == digests[name]
    )


def _of_run(directory: Path, videos: str | None) -> tuple[Page, Path, list[str]]:
    from vla_rl.report.page.media import beside, films
    from vla_rl.report.page.run import run_page
    from vla_rl.report.page.rundata import read_run

    data = read_run(directory, _seal(directory))
    if videos is not None:
        from vla_rl.cli.runfilms import play

        play(data, videos)
    shown = [] if data.seal.why else films((path, _caption(path)) for path in beside(directory / "videos"))
    return (
        run_page(data, _deltas(data), shown),
        directory / NAME,
        [f"evaluation after {s} updates" for s in data.hidden],
    )


def _caption(path: Path) -> str:
    """What a film shows: told beside it, or its name."""
    note = path.with_suffix(".txt")
    return note.read_text(encoding="utf-8", errors="replace").strip() if note.is_file() else path.name


def _seal(directory: Path) -> Seal:
    from vla_rl.prereg.sealing import seal_of
    from vla_rl.report.page.rundata import config_of, launches_of, registered, section

    told = registered(launches_of(directory))
    resolved = directory.resolve()
    place = _PLACE.search(resolved.as_posix() + "/")
    if not told and place:
        told = {"id": place[1]}  # its manifest is gone: it counts as sealed
    experiments = paths.experiments_dir()
    if told and place and not (experiments / str(told.get("id"))).is_dir():
        beside = Path(resolved.as_posix().split("/outputs/prereg/")[0]) / "experiments"
        experiments = beside if beside.is_dir() else experiments
    seeds = section(config_of(directory), "eval").get("seeds")
    return seal_of(told, None if seeds is None else str(seeds), experiments)


def _deltas(data: RunData) -> Sequence[Op] | str:
    """What leads from the defaults to a run's configuration; in words why that cannot be told."""
    if not data.config:
        return "config.yaml cannot be read, so nothing is known of the configuration."
    from vla_rl.config.compose import compose
    from vla_rl.prereg.delta import diff

    try:
        tree = compose("config", [], allow_missing=True).tree
    except ConfigError as error:
        return f"The defaults of this version cannot be composed: {error.what}"
    return diff(tree, dict(data.config))


def _write(page: Page, out: Path, *, md: bool, csv: bool, formats: Sequence[str]) -> list[Path]:
    from vla_rl.report.page.render import html
    from vla_rl.report.page.text import csv_files, markdown

    if out.is_dir():
        raise UsageError("this is a directory", where=f"--out {out}", remedy=f"name a file: {out / NAME}")
    wanted = {out: html(page)}
    if md:
        wanted[out.with_suffix(".md")] = markdown(page).encode()
    if csv:
        wanted |= {out.with_name(f"{out.stem}-csv") / name: text.encode() for name, text in csv_files(page).items()}
    if formats:
        from vla_rl.report.page.paper import draw_all

        wanted |= {
            out.with_name(f"{out.stem}-figures") / n: data for n, data in draw_all(page.charts(), formats).items()
        }
    try:
        for path, data in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
    except OSError as error:
        raise UsageError(
            f"the report cannot be written: {error.strerror}", where=str(error.filename or out),
            remedy="name another place: --out FILE",
        ) from None  # fmt: skip
    return list(wanted)
