"""A second memory of the ledger: every version of it as a commit under a ref of its own.

In: a ledger that has just been written. Out: `refs/vla_rl/prereg/<ID>`, which neither the index nor a branch knows of.
A chain cannot show that its last lines are missing, and a ledger between two commits has nothing else to be held
against; the ref has. It costs a few milliseconds an event and goes to another repository with
``git push origin 'refs/vla_rl/prereg/*'``. Who deletes the ref, too, is not caught by it: that is what commits,
signatures and `verify --head` are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vla_rl.errors import IntegrityError, UsageError
from vla_rl.prereg.git import Git
from vla_rl.prereg.ledger import LEDGER, Entry, differing

_WHO = {
    "GIT_AUTHOR_NAME": "vla_rl", "GIT_AUTHOR_EMAIL": "vla_rl@localhost", "GIT_COMMITTER_NAME": "vla_rl",
    "GIT_COMMITTER_EMAIL": "vla_rl@localhost",
}  # fmt: skip


def ref(registration: str) -> str:
    return f"refs/vla_rl/prereg/{registration}"


def tip(git: Git, registration: str) -> str | None:
    """The commit that the ref names; None without one."""
    try:
        return git.text("rev-parse", "--verify", "--quiet", ref(registration))
    except UsageError:
        return None


def record(git: Git | None, registration: str, data: bytes, entry: Entry) -> None:
    """Remember this version of the ledger; nothing is done outside of a checkout."""
    if git is None:
        return
    blob = git.run("hash-object", "-w", "--stdin", data=data).decode().strip()
    tree = git.run("mktree", data=f"100644 blob {blob}\t{LEDGER}\n".encode()).decode().strip()
    parent = tip(git, registration)
    message = f"{registration} {entry.seq} {entry.event} {entry.hash}\n"
    commit = git.run(
        "commit-tree", tree, *(["-p", parent] if parent else []), data=message.encode(), env=_WHO
    ).decode().strip()  # fmt: skip
    git.run("update-ref", ref(registration), commit, *([parent] if parent else []))


def remembered(git: Git | None, registration: str = "") -> dict[str, bytes | None]:
    """The last known ledger of every registration that has a ref, or of one; None where the ref names no ledger."""
    if git is None:
        return {}
    refs = git.text("for-each-ref", "--format=%(refname)", ref(registration)).splitlines()
    specs = {name.removeprefix(ref("")): f"{name}:{LEDGER}" for name in refs}
    contents = git.contents(specs.values())
    return {registration: contents.get(spec) for registration, spec in specs.items()}


def check(registration: str, path: Path, data: bytes, known: Mapping[str, bytes | None]) -> None:
    """Refuse a ledger that does not go on from what its ref remembers.

    Args:
        known: see `remembered`.

    Raises:
        IntegrityError: lines that were written are missing or changed.
    """
    if registration not in known:
        return
    before = known[registration]
    if before is None:
        raise IntegrityError(
            "the second memory of the ledger holds none", where=f"{path}: {ref(registration)}",
            remedy=f"git reflog {ref(registration)}, or fetch it from where it was pushed to",
        )  # fmt: skip
    if not data.startswith(before):
        place = differing(before, data)
        raise IntegrityError(
            f"{before.count(b'\n')} lines were written, and one is missing or not what it was: {place}",
            where=f"{path}, {place}: {ref(registration)}",
            remedy=f"git show {ref(registration)}:{LEDGER} has them: put them back",
        )
