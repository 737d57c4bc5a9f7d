"""What a checkpoint says about itself beyond its configuration: `checkpoint.json`, in numbered versions.

In: a directory, or facts about a policy. Out: `Metadata`. Every version that was ever written stays readable: version
0 is a directory without the file (a downloaded release, a base from before there was one), and each later one has its
reader in `READERS`. A version from the future is refused, because what it adds may change what the policy does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_rl.policy.joint_frames import FRAMES
from vla_rl.policy.refusals import SchemaVersion

FILE_NAME = "checkpoint.json"
VERSION = 1


@dataclass(frozen=True)
class Metadata:
    """Facts that no other file of a checkpoint holds.

    Attributes:
        version: schema version of the file; 0 when there is none.
        norm_tag: the tag of `norm_stats.json` that the policy was trained on; None if the file must decide.
        joint_frame: ``rig`` or ``v21``, the frame of the tables; None if the state table must decide.
        adapter: parameters of the network's adapter (`vla_rl.policy.hf_adapter`), None for Molmo2-layout networks.
    """

    version: int = 0
    norm_tag: str | None = None
    joint_frame: str | None = None
    adapter: dict[str, Any] | None = field(default=None)


def read_metadata(directory: Path) -> Metadata:
    """Read the metadata of any version.

    Raises:
        SchemaVersion: the file is damaged, or of a version that this package does not know.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        return Metadata()
    try:
        body = json.loads(path.read_text())
        version = body["schema_version"]
        reader = READERS.get(version)
        metadata = reader(body) if reader else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SchemaVersion(f"{FILE_NAME} cannot be read: {error!r}", where=str(path)) from error
    if metadata is None:
        raise SchemaVersion(
            f"{FILE_NAME} has schema version {version!r}, known are {', '.join(map(str, (0, *READERS)))}",
            where=str(path),
            remedy="update vla_rl",
        )
    return metadata


def write_metadata(directory: Path, metadata: Metadata) -> None:
    """Write the file in the newest version."""
    body = {
        "schema_version": VERSION,
        "norm_tag": metadata.norm_tag,
        "joint_frame": metadata.joint_frame,
        "adapter": metadata.adapter,
    }
    (directory / FILE_NAME).write_text(json.dumps(body, indent=2) + "\n")


def _version_1(body: dict[str, Any]) -> Metadata:
    tag, frame, adapter = body["norm_tag"], body["joint_frame"], body["adapter"]
    if not (adapter is None or isinstance(adapter, dict)):
        raise TypeError("adapter is no object")
    if not (tag is None or isinstance(tag, str)):
        raise TypeError("norm_tag is no text")
    if frame is not None and frame not in FRAMES:
        raise ValueError(f"joint_frame is {frame!r}, not {' or '.join(FRAMES)}")
    return Metadata(1, tag, frame, adapter)


READERS: dict[int, Callable[[dict[str, Any]], Metadata]] = {1: _version_1}
