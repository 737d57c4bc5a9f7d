"""What git knows of files: who committed what when, and the bytes at every commit. Reads only.

In: a directory inside a checkout. Out: facts. git is called with explicit arguments and without taking locks. What its
index says of a file is never believed (`assume-unchanged` lies): files are compared with blobs by their bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vla_rl.errors import UsageError

_BYTECODE = re.compile(r"[^.]+\.[^.]+.*\.pyc(\.[0-9]+)?")


@dataclass(frozen=True)
class Change:
    """One commit's change of one file: its status letter (A, M, D) and the blob that it left there."""

    commit: str
    status: str
    blob: str


class Git:
    """A checkout.

    Args:
        root: its top directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def around(cls, path: Path) -> Git | None:
        """The checkout that a directory lies in, if any."""
        try:
            top = _run(path, "rev-parse", "--show-toplevel")
        except UsageError:
            return None
        return cls(Path(os.fsdecode(top).strip()))

    def run(self, *arguments: str, data: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
        """Standard output of a git command.

        Raises:
            UsageError: it fails.
        """
        return _run(self.root, *arguments, data=data, env=env)

    def text(self, *arguments: str) -> str:
        return self.run(*arguments).decode().strip()

    def head(self) -> str | None:
        """Commit of HEAD; None before the first commit."""
        try:
            return self.text("rev-parse", "--verify", "--quiet", "HEAD")
        except UsageError:
            return None

    def tree(self, path: str, commit: str = "HEAD") -> str | None:
        """Object id of a directory at a commit."""
        try:
            return self.text("rev-parse", "--verify", "--quiet", f"{commit}:{path}")
        except UsageError:
            return None

    def history(self, path: str) -> dict[str, list[Change]]:
        """For each file below `path`, the commits that changed it, newest first."""
        if self.head() is None:
            return {}
        raw = self.run(
            "log", "--format=%x00%H", "--raw", "--abbrev=40", "--no-renames", "--full-history", "-m", "-z", "--", path
        )
        changes: dict[str, list[Change]] = {}
        commit, fields = "", raw.split(b"\0")
        at = 0
        while at < len(fields):
            part = fields[at].strip(b"\n")
            if part.startswith(b":"):
                _, _, _, blob, status = part.decode().split(" ")
                name = os.fsdecode(fields[at + 1])
                known = changes.setdefault(name, [])
                if not any(change.commit == commit and change.blob == blob for change in known):
                    known.append(Change(commit, status[0], blob))
                at += 2
                continue
            if len(part) == 40:
                commit = part.decode()
            at += 1
        return changes

    def blobs(self, path: str, commit: str = "HEAD") -> dict[str, str]:
        """Blob of each file below `path` at a commit."""
        if self.head() is None:
            return {}
        found = {}
        for record in self.run("ls-tree", "-r", "-z", commit, "--", path).split(b"\0"):
            if record:
                meta, name = record.split(b"\t", 1)
                found[os.fsdecode(name)] = meta.split()[2].decode()
        return found

    def contents(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """The bytes of blobs."""
        wanted = list(dict.fromkeys(blobs))
        if not wanted:
            return {}
        answer = self.run("cat-file", "--batch", data="\n".join(wanted).encode() + b"\n")
        found, at = {}, 0
        for blob in wanted:
            end = answer.index(b"\n", at)
            header = answer[at:end].split()
            if header[1:] == [b"missing"]:
                at = end + 1
                continue
            size = int(header[2])
            found[blob] = answer[end + 1 : end + 1 + size]
            at = end + 2 + size
        return found


def blob_id(data: bytes) -> str:
    """The id that git gives to these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def tree_id(directory: Path) -> str:
    """The id that git would give to a directory as it lies on the disk, ignored and untracked files included.

    Left out: bytecode that Python writes by itself. An empty directory is none to git.
    """
    return _tree(directory)[0]


def is_bytecode(path: Path) -> bool:
    """Whether Python may have written this file by itself: in `__pycache__`, named after an interpreter, and so nothing
    that could be imported by a name of its own. (`__pycache__/x.py` and `__pycache__/x.pyc` could.)"""
    return path.parent.name == "__pycache__" and bool(_BYTECODE.fullmatch(path.name)) and not path.is_dir()


def _tree(directory: Path) -> tuple[str, bool]:
    entries: list[tuple[bytes, bytes, bytes]] = []
    with os.scandir(directory) as found:
        for entry in found:
            if is_bytecode(Path(entry.path)):
                continue
            name = os.fsencode(entry.name)
            if entry.is_symlink():
                target = os.fsencode(os.readlink(entry.path))
                entries.append((name, b"120000", bytes.fromhex(blob_id(target))))
            elif entry.is_dir():
                child, empty = _tree(Path(entry.path))
                if not empty:
                    entries.append((name + b"/", b"40000", bytes.fromhex(child)))
            else:
                mode = b"100755" if entry.stat().st_mode & 0o100 else b"100644"
                entries.append((name, mode, bytes.fromhex(blob_id(Path(entry.path).read_bytes()))))
    body = b"".join(mode + b" " + name.removesuffix(b"/") + b"\0" + sha for name, mode, sha in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest(), not entries


def _run(path: Path, *arguments: str, data: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
    # Neither refs/replace nor grafts may tell another history, and nobody's settings may change what is printed.
    settings = [f for key in ("log.follow", "log.showSignature", "color.ui") for f in ("-c", f"{key}=false")]
    command = ["git", "--no-optional-locks", "--no-replace-objects", *settings, "-C", str(path), *arguments]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}  # of a hook that called us
    clean["GIT_GRAFT_FILE"] = os.devnull
    try:
        done = subprocess.run(command, input=data, capture_output=True, check=True, env={**clean, **(env or {})})
    except FileNotFoundError:
        raise UsageError("git is not installed", remedy="install git: it is what anchors a registration") from None
    except subprocess.CalledProcessError as error:
        raise UsageError(
            f"git {arguments[0]} failed: {error.stderr.decode(errors='replace').strip()}", where=str(path)
        ) from None
    return done.stdout
