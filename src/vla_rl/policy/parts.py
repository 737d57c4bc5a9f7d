"""Everything of a checkpoint but its weights, read and checked against each other.

In: a directory and what the configuration says about it. Out: `Parts`, from which the network is loaded, or the first
broken promise. All of this takes two seconds or so, also for a release of 20 GB, so a mistake costs no loading.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vla_rl.policy.adapter import Adapter
from vla_rl.policy.chunks import CODEC_DIR
from vla_rl.policy.fast import FastCodec, HorizonError
from vla_rl.policy.hf_adapter import HfAdapter
from vla_rl.policy.hf_network import load_hf_network
from vla_rl.policy.hub import resolve
from vla_rl.policy.metadata import Metadata, read_metadata
from vla_rl.policy.molmo2_adapter import Molmo2Adapter
from vla_rl.policy.normalise import FILE_NAME
from vla_rl.policy.refusals import CodecMismatch, MissingCodec, VocabularyLayout
from vla_rl.policy.released import Opened, check_network, load_network, read_config, read_tokenizer
from vla_rl.policy.tables import Tables, check_joint_frame, read_tables
from vla_rl.policy.tokenizer import TokenIds
from vla_rl.policy.weightfiles import FLOATS

DTYPES = {str(t).removeprefix("torch."): t for t in FLOATS.values()}


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


@dataclass(frozen=True)
class Parts:
    """A checked checkpoint.

    Attributes:
        directory: where it is.
        opened: configuration and weight headers of a Molmo2-layout checkpoint, None for another model.
        stats_file: name of the file with the tables.
        joint_frame: the frame of its tables.
        codec_directory: where the action codec was read from.
    """

    directory: Path
    metadata: Metadata
    opened: Opened | None
    tokenizer: Any
    stats_file: str
    tables: Tables
    joint_frame: str
    codec: FastCodec
    codec_directory: Path

    @property
    def adapter(self) -> Adapter:
        return Molmo2Adapter() if self.metadata.adapter is None else HfAdapter.stored(self.metadata.adapter)

    def network(self, dtype: torch.dtype) -> Any:
        """Load the weights; see `load_network` for what is refused."""
        return load_hf_network(self.directory, dtype) if self.opened is None else load_network(self.opened, dtype)


def read_parts(directory: Path, sources: Sources) -> Parts:
    """Read and check everything but the weights.

    Raises:
        ConfigError: no checkpoint, no codec, an unknown tag.
        CheckpointRefused: a named promise is broken.
    """
    metadata, raw, tokenizer = read_metadata(directory), read_config(directory), read_tokenizer(directory)
    opened = Opened.of(directory) if metadata.adapter is None else None
    if opened:
        check_network(opened, tokenizer)
    stats_file = raw.get("norm_stats_filename", FILE_NAME)
    tables = read_tables(directory, tag=sources.norm_tag or metadata.norm_tag, file_name=stats_file)
    frame = check_joint_frame(tables.stats.state, declared_frame(sources, metadata, opened), where=stats_file)
    tables = replace(tables, stats=tables.stats.in_frame(frame))
    codec_directory = find_codec(directory, sources)
    codec = read_codec(codec_directory, tables)
    parts = Parts(directory, metadata, opened, tokenizer, stats_file, tables, frame, codec, codec_directory)
    check_block(parts)
    return parts


def declared_frame(sources: Sources, metadata: Metadata, opened: Opened | None) -> str | None:
    """The joint frame by configuration or metadata. What this package trained from scratch is in its own frame."""
    own = None if opened and opened.released else "rig"
    return sources.joint_frame or metadata.joint_frame or own


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


def check_block(parts: Parts) -> None:
    """The codec must be as wide as the network's action block, and fit the tables.

    Raises:
        CodecMismatch: it is not, or does not.
        VocabularyLayout: the token tables of another model end before the action block does.
    """
    codec, stats, where = parts.codec, parts.tables.stats, str(parts.directory)
    if (codec.horizon, codec.dim) != (stats.horizon, len(stats.action.low_deg)):
        raise CodecMismatch(
            f"the codec is for {codec.horizon} ticks of {codec.dim} joints, "
            f"the tables for {stats.horizon} of {len(stats.action.low_deg)}",
            where=where,
        )
    if parts.opened:
        width = parts.opened.raw["num_action_tokens"]
        if codec.vocabulary != width:
            raise CodecMismatch(f"the codec has {codec.vocabulary} bins, the action block {width}", where=where)
        return
    assert isinstance(parts.adapter, HfAdapter)
    end = TokenIds.of(parts.tokenizer, codec.vocabulary, parts.adapter.pictures).action_block + codec.vocabulary
    if end > parts.tokenizer.get_vocab_size():
        raise VocabularyLayout(f"the action block ends at {end}, past the vocabulary", where=where)
