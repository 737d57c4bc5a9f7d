"""Where a checkpoint is: a directory, a base that ships with the package, or a pinned snapshot of the hub.

In: what the user wrote. Out: a local directory. A hub id is only taken with the hash of a commit, because a branch or
a tag may point elsewhere tomorrow. Nothing that is downloaded is ever executed.
"""

from __future__ import annotations

import re
from pathlib import Path

from vla_rl import paths
from vla_rl.errors import ConfigError

_HUB_ID = re.compile(r"^[\w][\w.-]*/[\w][\w.-]*$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
# Pickled weights, pictures and the like stay where they are.
_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.py", "*.md", "LICENSE*")


def resolve(spec: str, revision: str | None, *, where: str, pin: str) -> Path:
    """The directory that `spec` names.

    Args:
        spec: a directory, ``bundled:NAME``, or ``owner/name`` on the hub.
        revision: commit hash; for hub ids only, and required there.
        where, pin: configuration keys of the two, for messages.

    Raises:
        ConfigError: an unknown base, a revision where there is none or none where there must be one, or a hub that
            cannot be reached.
    """
    if spec.startswith(paths.BUNDLED) or Path(spec).is_dir() or not _HUB_ID.match(spec):
        if revision is not None:
            raise ConfigError(
                f"{spec} is a directory and has no revision",
                where=f"{where}, {pin}",
                remedy="leave the revision out; it pins a hub id",
            )
        bundled = spec.startswith(paths.BUNDLED)
        return paths.bundled_base(spec.removeprefix(paths.BUNDLED)) if bundled else Path(spec)
    if revision is None or not _COMMIT.match(revision):
        raise ConfigError(
            f"{spec} is no directory here, and as a hub id it needs a commit to be pinned to, not {revision!r}",
            where=f"{where}, {pin}",
            remedy="give the 40 hex digits of a commit from the repository's history, or a directory",
        )
    return _snapshot(spec, revision, where)


def _snapshot(spec: str, revision: str, where: str) -> Path:
    """The cached snapshot of a commit if it is complete, else a download (which goes on where one was broken off)."""
    from huggingface_hub import snapshot_download

    error: Exception | None = None
    for cached in (True, False):
        try:
            return Path(snapshot_download(spec, revision=revision, allow_patterns=[*_WANTED], local_files_only=cached))
        except Exception as reason:  # the hub's client and the HTTP library below it have no common base
            error = reason
    raise ConfigError(
        f"{spec} at {revision[:12]} is not in the local cache and cannot be downloaded: {str(error).splitlines()[0]}",
        where=where,
        remedy=f"where there is a network: hf download {spec} --revision {revision} --local-dir DIR; then {where}=DIR",
    ) from error
