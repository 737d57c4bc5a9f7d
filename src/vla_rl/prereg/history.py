"""What git says against a registration: a frozen file with a second commit, a ledger that was cut, bytes that differ.

In: the folder of a registration and its checkout. Out: problems, and what is not committed yet (which only a launch
minds). Compared are bytes with blobs; the index is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vla_rl.errors import UsageError
from vla_rl.prereg import anchor
from vla_rl.prereg.document import DRAFT_FILE, REGISTRATION
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.git import Change, Git, blob_id
from vla_rl.prereg.ledger import LEDGER, differing


@dataclass(frozen=True)
class Problem:
    """Something that does not match.

    Attributes:
        where: file and field.
        what: in words.
        remedy: what to do.
    """

    where: str
    what: str
    remedy: str = "restore it from git"


@dataclass(frozen=True)
class History:
    """What git knows of one or all registrations.

    Attributes:
        top, below: the directory, and its path from the top of the checkout.
        changes: by path from the top of the checkout, newest first.
        head: blob of each file at HEAD.
        blobs: contents of every version of a ledger.
        remembered: last ledger of each registration that has a ref of its own, see `anchor`.
    """

    git: Git
    top: Path
    below: str
    changes: Mapping[str, Sequence[Change]]
    head: Mapping[str, str]
    blobs: Mapping[str, bytes]
    remembered: Mapping[str, bytes | None]

    @classmethod
    def of(cls, path: Path) -> History | None:
        """Of everything below a directory; None outside of a checkout."""
        git = Git.around(path)
        if git is None:
            return None
        below = path.resolve().relative_to(git.root.resolve()).as_posix()
        changes, head = git.history(below), git.blobs(below)
        ledgers = [change.blob for name, each in changes.items() if name.endswith(f"/{LEDGER}") for change in each]
        versions = git.contents(blob for blob in ledgers if set(blob) != {"0"})
        return cls(git, path, below, changes, head, versions, anchor.remembered(git))

    def name(self, path: Path) -> str:
        """From the top of the checkout; a link keeps its own name."""
        return (PurePosixPath(self.below) / path.relative_to(self.top).as_posix()).as_posix()

    def registered(self) -> set[str]:
        """Ids of all registrations that were ever committed below a directory of experiments."""
        names = {PurePosixPath(name).relative_to(self.below).parts for name in self.changes}
        return {parts[0] for parts in names if len(parts) == 2 and parts[1] == REGISTRATION}


def problems(folder: Folder, history: History | None) -> list[Problem]:
    """Everything that git contradicts."""
    if history is None:
        return []
    found: list[Problem] = []
    for path in _once_written(folder):
        found += _written_once(path, history)
    return found + _ledger(folder, history)


def uncommitted(folder: Folder, history: History | None) -> list[str]:
    """Frozen files that are not in the last commit as they are, by name."""
    if history is None:
        return [path.name for path in _frozen(folder)]
    return [
        str(path.relative_to(folder.path))
        for path in _frozen(folder)
        if history.head.get(history.name(path)) != blob_id(_stored(path) or b"")
    ]


def signature(folder: Folder, history: History | None) -> Problem | None:
    """Whether the commit that brought the registration carries a signature that git believes."""
    commits = history.changes.get(history.name(folder.registration), []) if history else []
    try:
        if history is not None and commits:
            history.git.run("verify-commit", commits[-1].commit)
            return None
    except UsageError:
        pass
    commit = commits[-1].commit[:12] if commits else "none"
    return Problem(
        f"{folder.registration}: anchor.signed",
        f"its commit ({commit}) has no signature that git believes",
        "git commit -S",
    )


def _frozen(folder: Folder) -> list[Path]:
    return [folder.registration, *sorted(folder.path.glob("amendments/*.yaml"))]


def _once_written(folder: Folder) -> list[Path]:
    draft = folder.path / DRAFT_FILE
    return [*_frozen(folder), *sorted(folder.path.glob("evidence/*.json")), *([draft] if draft.exists() else [])]


def _written_once(path: Path, history: History) -> list[Problem]:
    changes = history.changes.get(history.name(path), [])
    if path.name == DRAFT_FILE:  # it was worked on before it was frozen
        changes = []
    # A file that came in by a merge was added in two commits, as the same bytes.
    if len({change.blob for change in changes}) > 1 or any(change.status != "A" for change in changes):
        told = ", ".join(f"{change.status} in {change.commit[:12]}" for change in changes)
        return [Problem(str(path), f"a file that is written once has more than one commit: {told}")]
    blob, now = history.head.get(history.name(path)), _stored(path)
    if now is None:
        return [Problem(str(path), "the file is gone")]
    if blob is not None and blob != blob_id(now):
        return [Problem(str(path), "the file is not what was committed", f"git checkout -- {path.name}")]
    if blob is None and changes:
        return [Problem(str(path), "the file was committed and is not in the last commit")]
    return []


def _stored(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _ledger(folder: Folder, history: History) -> list[Problem]:
    path = folder.ledger.path
    now = _stored(path)
    if now is None:
        return [Problem(str(path), "the ledger is gone")]
    for change in history.changes.get(history.name(path), []):
        version = history.blobs.get(change.blob, b"")
        if not now.startswith(version):
            what = f"a line that was committed in {change.commit[:12]} is missing or changed"
            return [Problem(f"{path}, {differing(version, now)}", what)]
    return []
