"""Where the parts of a checkpoint beside its weights come from: configuration, tables and action codec.

In: a directory and what the configuration says about it. Out: each part, read and checked by itself. Nothing here
imports torch, so processes that replay stored tokens stay light. That the parts fit the network is `parts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_rl.errors import ConfigError
from vla_rl.policy.fast import FastCodec, HorizonError
from vla_rl.policy.hub import resolve
from vla_rl.policy.metadata import Metadata
from vla_rl.policy.normalise import FILE_NAME
from vla_rl.policy.refusals import CodecMismatch, DamagedFile, MissingCodec
from vla_rl.policy.tables import Tables, check_joint_frame, read_tables

CONFIG, CODEC_DIR, TRAINING_SCENE = "config.json", "fast_tokenizer", "training_scene.json"
RELEASED = "molmoact2"  # `model_type` of a MolmoAct2 release, or the export of one, as opposed to a twin


@dataclass(frozen=True)
class Sources:
    """What the configuration says about a checkpoint's parts; None leaves it to the checkpoint.

    Attributes:
        norm_tag: which tables to use where there are several.
        fast_tokenizer, fast_revision: directory, or hub id and commit, of the action codec.
        joint_frame: ``rig`` or ``v21``, for tables that do not tell.
    """

    norm_tag: str | None = None
    fast_tokenizer: str | None = None
    fast_revision: str | None = None
    joint_frame: str | None = None

    @classmethod
    def of(cls, policy: Mapping[str, Any]) -> Sources:
        """From a `policy` node of a configuration; keys that it lacks are None."""
        return cls(*(policy.get(key) for key in ("norm_tag", "fast_tokenizer", "fast_revision", "joint_frame")))


def read_config(directory: Path) -> dict[str, Any]:
    """`config.json` of a directory.

    Raises:
        ConfigError: there is none.
        DamagedFile: it is no JSON object.
    """
    path = directory / CONFIG
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"there is no policy checkpoint in {directory}",
            where="policy.checkpoint",
            remedy=f"name a directory with {CONFIG} and safetensors weights, a hub id, or bundled:tiny_start",
        ) from error
    except ValueError as error:
        raise DamagedFile(f"{CONFIG} is no JSON: {error}", where=str(path)) from error
    if not isinstance(raw, dict):
        raise DamagedFile(f"{CONFIG} is no JSON object", where=str(path))
    return raw


def read_training_scene(directory: Path) -> dict[str, Any] | None:
    """The scene that a checkpoint was trained in; older ones, and releases, do not tell.

    Raises:
        DamagedFile: the record is no JSON object.
    """
    path = directory / TRAINING_SCENE
    if not path.is_file():
        return None
    try:
        scene = json.loads(path.read_text())
    except ValueError as error:
        raise DamagedFile(f"the training scene cannot be read: {error}", where=str(path)) from error
    if not isinstance(scene, dict):
        raise DamagedFile("the training scene is no JSON object", where=str(path))
    return scene


def stats_file(raw: Mapping[str, Any]) -> str:
    """Name of the file with the tables.

    Raises:
        DamagedFile: what `config.json` says is no name of a file in its own directory.
    """
    name = raw.get("norm_stats_filename", FILE_NAME)
    if not isinstance(name, str) or Path(name).name != name:
        raise DamagedFile(f"norm_stats_filename is {name!r}, which is no file name", where=CONFIG)
    return name


def declared_frame(sources: Sources, metadata: Metadata, raw: Mapping[str, Any]) -> str | None:
    """The joint frame by configuration or metadata. What this package trained is in its own frame."""
    released = metadata.adapter is None and raw.get("model_type") == RELEASED
    return sources.joint_frame or metadata.joint_frame or (None if released else "rig")


def read_framed_tables(directory: Path, sources: Sources, metadata: Metadata, raw: Mapping[str, Any]) -> Tables:
    """The tables of the tag in question, which know their joint frame.

    Raises:
        CheckpointRefused: no such tag, tables that cannot be used, or that fit no frame or another one.
    """
    name = stats_file(raw)
    tables = read_tables(directory, tag=sources.norm_tag or metadata.norm_tag, file_name=name)
    frame = check_joint_frame(tables.stats.state, declared_frame(sources, metadata, raw), where=name)
    return tables.in_frame(frame)


def find_codec(directory: Path, sources: Sources) -> Path:
    """The directory of a checkpoint's action codec: the one named, or its own.

    Raises:
        MissingCodec: there is none.
    """
    named = sources.fast_tokenizer
    found = (
        resolve(named, sources.fast_revision, where="policy.fast_tokenizer", pin="policy.fast_revision")
        if named
        else directory / CODEC_DIR
    )
    if not (found / "processor_config.json").is_file():
        raise MissingCodec(
            f"there is no FAST artifact in {found}",
            where="policy.fast_tokenizer",
            remedy="a release keeps it apart: policy.fast_tokenizer=DIR, or a hub id with policy.fast_revision=COMMIT",
        )
    return found


def read_codec(directory: Path, tables: Tables) -> FastCodec:
    """The codec for chunks as the tables describe them.

    Raises:
        CodecMismatch: it is for other chunks, or cannot write what chunks of this length reach.
        ConfigError: it cannot be read.
    """
    try:
        return FastCodec.load(directory, horizon=tables.stats.horizon, dim=len(tables.stats.action.low_deg))
    except HorizonError as error:
        raise CodecMismatch(error.what, where=error.where, remedy=error.remedy) from error
