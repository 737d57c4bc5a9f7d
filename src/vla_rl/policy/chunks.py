"""Joint targets in degrees <-> streams of action bins: codec and action table of a checkpoint, without the network.

In: the `policy` node of a configuration. Out: `ChunkCodec`. Nothing here imports torch, so processes that replay stored
tokens stay light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.policy.fast import FastCodec
from vla_rl.policy.hub import resolve
from vla_rl.policy.metadata import read_metadata
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.sources import Sources, find_codec, read_codec, read_config, read_framed_tables


@dataclass(frozen=True)
class ChunkCodec:
    """The way from a chunk of joint targets to tokens and back."""

    codec: FastCodec
    stats: NormStats

    @classmethod
    def of_policy(cls, policy: Mapping[str, Any]) -> ChunkCodec:
        """Read the codec and the tables that a policy is loaded with.

        Args:
            policy: a `policy` node with `checkpoint`.

        Raises:
            ConfigError: no such checkpoint, or one without codec.
            CheckpointRefused: tables or codec that the policy could not be loaded with either.
        """
        directory = resolve(
            policy["checkpoint"], policy.get("revision"), where="policy.checkpoint", pin="policy.revision"
        )
        sources, metadata, raw = Sources.of(policy), read_metadata(directory), read_config(directory)
        tables = read_framed_tables(directory, sources, metadata, raw)
        return cls(read_codec(find_codec(directory, sources), tables), tables.stats)

    def encode(self, chunk_deg: np.ndarray) -> np.ndarray:
        """Bins int16 [T] of joint targets [horizon, J] in degrees."""
        return self.codec.encode(self.stats.action.normalise(chunk_deg)[None])[0]

    def decode(self, bins_T: np.ndarray) -> np.ndarray:
        """Joint targets float64 [horizon, J] in degrees of one complete stream; ConfigError if it is not complete."""
        return self.stats.action.denormalise(self.codec.decode([bins_T])[0])
