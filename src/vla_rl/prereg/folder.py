"""The folder of a registration: its files, read and checked together, and the one way to add to it.

In: `experiments/<ID>/`. Out: the effective registration, the ledger's entries and the state they fold to. Whatever is
written goes through `Folder.write`: new files are created exclusively, and the ledger records the digest of every one.
Nothing that was written is ever changed. Left out: what to write (`freeze`, `launching`, ...).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_rl.errors import ConfigError, IntegrityError, UsageError
from vla_rl.files import create_atomic
from vla_rl.prereg import anchor, events, state, yamlfile
from vla_rl.prereg.amendments import Effective, extend, read_amendment, start
from vla_rl.prereg.canonical import file_digest
from vla_rl.prereg.document import DRAFT_FILE, REGISTRATION, Registration
from vla_rl.prereg.git import Git
from vla_rl.prereg.ledger import LEDGER, Entry, Ledger
from vla_rl.prereg.parts import SECTION, changed
from vla_rl.prereg.state import State

AMENDMENTS, EVIDENCE = "amendments", "evidence"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Loaded:
    """A registration as it stands.

    Attributes:
        versions: as it was frozen, and after each amendment.
        entries: of the ledger.
        state: what they fold to.
    """

    versions: tuple[Effective, ...]
    entries: tuple[Entry, ...]
    state: State

    @property
    def effective(self) -> Effective:
        """With all amendments."""
        return self.versions[-1]

    @property
    def registration(self) -> Registration:
        return self.effective.registration


class Folder:
    """`experiments/<ID>/`.

    Args:
        experiments: the directory of all registrations.
        id: of this one.

    Raises:
        UsageError: a name that is no id.
    """

    def __init__(self, experiments: Path, id: str) -> None:
        if not _ID.fullmatch(id):
            raise UsageError(
                f"{id!r} is no id", where="ID", remedy="letters, digits, - and _, at most 64, e.g. E001-quickstart"
            )
        self.id, self.path = id, experiments / id
        self.ledger = Ledger(self.path)

    @property
    def registration(self) -> Path:
        return self.path / REGISTRATION

    @property
    def frozen(self) -> bool:
        """Whether anything was frozen here, also if the file has gone since."""
        return self.registration.exists() or self.ledger.path.exists()

    def git(self) -> Git | None:
        return Git.around(self.path)

    def amendment(self, number: int) -> Path:
        return self.path / AMENDMENTS / f"{number:02d}.yaml"

    def evidence(self, name: str) -> Path:
        return self.path / EVIDENCE / f"{name}.json"

    def load(self) -> Loaded:
        """Read everything and hold it against the ledger.

        Raises:
            UsageError: nothing is frozen here.
            IntegrityError: a file is not what the ledger says; names file and field.
        """
        if not self.frozen:
            raise UsageError(
                f"there is no registration {self.id}",
                where=str(self.registration),
                remedy=f"vla-rl prereg freeze {self.id} experiment=..."
                if self.path.is_dir()
                else f"vla-rl prereg new {self.id}; known: {', '.join(known(self.path.parent)) or 'none'}",
            )
        anchor.check(self.id, self.ledger.path, self.ledger.stored(), anchor.remembered(self.git(), self.id))
        return self.load_as_written()

    def load_as_written(self) -> Loaded:
        """As `load`, but for the second memory of the ledger in git."""
        if self.path.is_symlink():
            raise IntegrityError("the folder is a link", where=str(self.path), remedy="put the folder itself there")
        entries = tuple(self.ledger.read())
        if not entries or entries[0].event != "registered":
            raise IntegrityError(
                "the ledger does not begin with the registration",
                where=f"{self.ledger.path}, line 1: event",
                remedy="restore it from git",
            )
        events.check_all(entries, str(self.ledger.path))
        now = state.fold(entries, str(self.ledger.path))
        versions = self._versions(entries)
        self._check_digests(entries, versions)
        return Loaded(tuple(versions), entries, now)

    def _versions(self, entries: Sequence[Entry]) -> list[Effective]:
        versions = [self._start(entries[0])]
        for entry in (entry for entry in entries if entry.event == "amended"):
            path = self.amendment(entry.data["number"])
            value = self._checked(path, entry.data)
            try:
                versions.append(extend(versions[-1], read_amendment(value, str(path)), str(path)))
            except (ConfigError, UsageError) as error:
                raise IntegrityError(error.what, where=error.where or str(path), remedy="restore it from git") from None
        return versions

    def _check_digests(self, entries: Sequence[Entry], versions: Sequence[Effective]) -> None:
        current, at = versions[0], 0
        for entry in entries:
            if entry.event == "amended":
                at += 1
                current = versions[at]
            if (entry.registration, entry.config) != (current.digest, current.config_digest):
                raise IntegrityError(
                    f"line {entry.seq + 1} was written under another registration",
                    where=f"{self.ledger.path}, line {entry.seq + 1}: registration, config",
                    remedy="restore the files from git",
                )

    def _start(self, entry: Entry) -> Effective:
        value = self._checked(self.registration, entry.data)
        try:
            effective = start(value, str(self.registration))
        except ConfigError as error:
            raise IntegrityError(error.what, where=error.where, remedy="restore it from git") from None
        if effective.registration.id != self.id:
            raise IntegrityError(
                f"this is the registration {effective.registration.id}",
                where=f"{self.registration}: meta.id",
                remedy=f"its folder has to be called {effective.registration.id}",
            )
        return effective

    def _checked(self, path: Path, recorded: Mapping[str, Any]) -> Any:
        """The value of a YAML file whose bytes are those that the ledger recorded."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise IntegrityError(
                f"the file cannot be read: {error.strerror}", where=str(path), remedy="restore it from git"
            ) from None
        if file_digest(data) == recorded["sha256"]:
            try:
                return yamlfile.load(data, str(path))
            except ConfigError as error:
                raise IntegrityError(error.what, where=error.where, remedy="restore it from git") from None
        raise IntegrityError(
            "the file is not what was frozen",
            where=f"{path}: {_changed(data, recorded['sections'], str(path))}",
            remedy=f"git checkout -- {path.name} restores it; a change is an amendment: vla-rl prereg amend {self.id}",
        )

    # ------------------------------------------------------------------------------------------------------- writing
    def write(
        self,
        event: str,
        data: Mapping[str, Any],
        *,
        effective: Effective,
        files: Mapping[Path, bytes] | None = None,
    ) -> Entry:
        """Create files and add the entry that records them; the caller holds `ledger.locked()`.

        Args:
            effective: the registration that is in force once the entry is written.
            files: new files of this folder.

        Raises:
            UsageError: the event may not follow, or a file is on record already.
        """
        entries = self.ledger.read()
        before = state.fold(entries, str(self.ledger.path))
        if not state.allowed(before.name, event):
            raise not_now(before, event, self.id)
        events.check(event, data, str(self.ledger.path))
        recorded = {entry.data.get("sha256") for entry in entries}
        for path, content in (files or {}).items():
            if path.is_file() and file_digest(path.read_bytes()) not in recorded:
                path.unlink()  # of a command that was killed before the ledger knew of it
            create(path, content)
        entry = self.ledger.append(event, data, registration=effective.digest, config=effective.config_digest)
        anchor.record(self.git(), self.id, self.ledger.path.read_bytes(), entry)
        return entry


def root_of(folder: Folder) -> Path:
    """What run directories on record are relative to: where `experiments/` lies."""
    return folder.path.parent.parent


def outputs_of(folder: Folder) -> Path:
    """Where its runs, evaluations and exported policies are."""
    return root_of(folder) / "outputs" / "prereg" / folder.id


def not_now(now: State, event: str, id: str) -> UsageError:
    """The error of an action that the state does not allow."""
    done = f"{state.EVENTS[event]}: that cannot be while {id} is {now.name}"
    return UsageError(done, where=f"state {now.name}", remedy=f"vla-rl prereg status {id} says what can be done now")


def known(experiments: Path) -> list[str]:
    """Ids of all frozen registrations, also of those whose file has gone since."""
    return sorted({path.parent.name for name in (REGISTRATION, LEDGER) for path in experiments.glob(f"*/{name}")})


def drafts(experiments: Path) -> list[str]:
    """Ids of what is written down and not frozen."""
    return sorted({path.parent.name for path in experiments.glob(f"*/{DRAFT_FILE}")} - {*known(experiments)})


def create(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet, whole or not at all.

    Raises:
        UsageError: it exists with other content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_bytes() == content:
        return  # of an import that was killed on its way
    if not create_atomic(path, content):
        raise UsageError("the file exists, and what was written once stays", where=str(path))


def _changed(data: bytes, recorded: Mapping[str, str], where: str) -> str:
    """Which parts of a document differ from what was recorded, in words."""
    try:
        differing = changed(yamlfile.load(data, where), recorded, SECTION)
    except Exception as error:
        return getattr(error, "where", None) or "it is no YAML any more"
    return ", ".join(differing) or "a comment or blanks; no value differs"
