"""Everything of a checkpoint but its weights, read and checked against each other.

In: a directory and what the configuration says about it. Out: `Parts`, from which the network is loaded, or the first
broken promise. All of this takes two seconds or so, also for a release of 20 GB, so a mistake costs no loading.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vla_rl.errors import ConfigError
from vla_rl.policy.adapter import Adapter
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.hf_adapter import HfAdapter
from vla_rl.policy.hf_network import load_hf_network
from vla_rl.policy.metadata import Metadata, read_metadata
from vla_rl.policy.molmo2_adapter import Molmo2Adapter
from vla_rl.policy.refusals import CodecMismatch, VocabularyLayout
from vla_rl.policy.released import Opened, check_network, load_network, read_tokenizer
from vla_rl.policy.sources import Sources, find_codec, read_codec, read_config, read_framed_tables, stats_file
from vla_rl.policy.tables import Tables
from vla_rl.policy.tokenizer import TokenIds
from vla_rl.policy.weightfiles import FLOATS

DTYPES = {str(t).removeprefix("torch."): t for t in FLOATS.values()}


def check_format(dtype: str | None, *, where: str) -> None:
    """Refuse a name that is no number format; None names none.

    Raises:
        ConfigError: listing those that there are.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"no number format {dtype!r}", where=where, remedy=f"one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class Parts:
    """A checked checkpoint.

    Attributes:
        directory: where it is.
        opened: configuration and weight headers of a Molmo2-layout checkpoint, None for another model.
        stats_file: name of the file with the tables.
        codec_directory: where the action codec was read from.
    """

    directory: Path
    metadata: Metadata
    opened: Opened | None
    tokenizer: Any
    stats_file: str
    tables: Tables
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
    tables = read_framed_tables(directory, sources, metadata, raw)
    codec_directory = find_codec(directory, sources)
    codec = read_codec(codec_directory, tables)
    parts = Parts(directory, metadata, opened, tokenizer, stats_file(raw), tables, codec, codec_directory)
    check_block(parts)
    return parts


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
