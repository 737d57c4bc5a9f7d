"""What a checkpoint says about itself beyond its configuration: `checkpoint.json`, in numbered versions.

In: a directory, or facts about a policy. Out: `Metadata`. Every version that was ever written stays readable: version
0 is a directory without the file (a downloaded release, a base from before there was one), and each later one has its
reader in `READERS`; version 2 added the state of the heads. A version from the future is refused, because what it adds
may change what the policy does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vla_rl.policy.heads import HEADS, Heads, HeadState
from vla_rl.policy.joint_frames import FRAMES
from vla_rl.policy.refusals import SchemaVersion

FILE_NAME = "checkpoint.json"
VERSION = 2


@dataclass(frozen=True)
class Metadata:
    """Facts that no other file of a checkpoint holds.

    Attributes:
        version: schema version of the file; 0 when there is none.
        norm_tag: the tag of `norm_stats.json` that the policy was trained on; None if the file must decide.
        joint_frame: ``rig`` or ``v21``, the frame of the tables; None if the state table must decide.
        adapter: parameters of the network's adapter (`vla_rl.policy.hf_adapter`), None for Molmo2-layout networks.
        heads: what trained each head last, and whether it is stale; a head of which nothing is known is absent.
    """

    version: int = 0
    norm_tag: str | None = None
    joint_frame: str | None = None
    adapter: dict[str, Any] | None = field(default=None)
    heads: Heads = field(default_factory=dict)


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
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
        "heads": {head: asdict(state) for head, state in sorted(metadata.heads.items())},
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


def _version_2(body: dict[str, Any]) -> Metadata:
    heads = {head: HeadState(**state) for head, state in body["heads"].items()}
    for head, state in heads.items():
        if head not in HEADS or not isinstance(state.trained_by, str | None):
            raise ValueError(f"heads.{head} is no state of a head")
        if not isinstance(state.insulated, bool) or not isinstance(state.stale, bool):
            raise TypeError(f"insulated and stale of heads.{head} are yes or no")
    return replace(_version_1(body), version=2, heads=heads)


READERS: dict[int, Callable[[dict[str, Any]], Metadata]] = {1: _version_1, 2: _version_2}
