"""Joint targets in degrees <-> streams of action bins: codec and action table of a checkpoint, without the network.

In: a checkpoint directory. Out: `ChunkCodec`. Nothing here imports torch, so processes that replay stored tokens stay
light.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_rl import paths
from vla_rl.errors import ConfigError
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.normalise import NormStats

CODEC_DIR = "fast_tokenizer"
_BUNDLED = "bundled:"


@dataclass(frozen=True)
class ChunkCodec:
    """The way from a chunk of joint targets to tokens and back."""

    codec: FastCodec
    stats: NormStats

    @classmethod
    def of_checkpoint(cls, checkpoint: str) -> ChunkCodec:
        """Read codec and tables of a policy directory or of ``bundled:NAME``.

        Raises:
            ConfigError: no such directory, or files that are not usable.
        """
        directory = checkpoint_dir(checkpoint)
        return cls(FastCodec.load(directory / CODEC_DIR), NormStats.load(directory))

    def encode(self, chunk_deg: np.ndarray) -> np.ndarray:
        """Bins int16 [T] of joint targets [horizon, J] in degrees."""
        return self.codec.encode(self.stats.action.normalise(chunk_deg)[None])[0]

    def decode(self, bins_T: np.ndarray) -> np.ndarray:
        """Joint targets float64 [horizon, J] in degrees of one complete stream; ConfigError if it is not complete."""
        return self.stats.action.denormalise(self.codec.decode([bins_T])[0])


def checkpoint_dir(checkpoint: str) -> Path:
    """The directory that `policy.checkpoint` names.

    Raises:
        ConfigError: there is no policy in it.
    """
    bundled = checkpoint.startswith(_BUNDLED)
    directory = paths.bundled_base(checkpoint.removeprefix(_BUNDLED)) if bundled else Path(checkpoint)
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"there is no policy checkpoint in {directory}",
            where="policy.checkpoint",
            remedy="name a directory with config.json and model.safetensors, or bundled:boat_tiny",
        )
    return directory
