"""The policy as the rest of the package sees it: observations in, action bins and degrees out.

In: a checkpoint directory, or a codec, tables and an architecture for fresh weights. Out: a `VlaPolicy` that holds the
network and everything around it. Sampling is in `vla_rl.policy.sampler`, likelihoods in `vla_rl.policy.logprob`.

Shapes: B rows, C cameras, J joints, T action tokens, V bins of the action block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_rl import paths
from vla_rl.errors import ConfigError
from vla_rl.policy import molmo2
from vla_rl.policy.adapter import Adapter, StepDecoder
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.grammar import Grammar
from vla_rl.policy.molmo2_adapter import Molmo2Adapter
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.prompt import Observation, state_bins
from vla_rl.policy.tokenizer import TokenIds, build_tokenizer, save_tokenizer

CODEC_DIR = "fast_tokenizer"
_BUNDLED = "bundled:"


class VlaPolicy:
    """A network with its tokenizer, codec and normalisation, for one task.

    Attributes:
        model: a network of transformers, always in evaluation mode (there is no dropout to want).
        adapter: how this family of networks is asked; Molmo2 unless another one is given.
        prompt: the task's fixed prompt as tensors; `prompt.length` tokens, ending with the fed ``<action_start>``.
        horizon, dim: ticks and joints of an action chunk.
        vocabulary: width of the action block, V.
    """

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        codec: FastCodec,
        stats: NormStats,
        task: str,
        device: str,
        adapter: Adapter | None = None,
    ) -> None:
        self.model, self.tokenizer, self.codec, self.stats, self.task = model, tokenizer, codec, stats, task
        self.adapter = adapter or Molmo2Adapter()
        self.horizon, self.dim, self.vocabulary = codec.horizon, codec.dim, codec.vocabulary
        self.grammar = Grammar(codec.lengths_V, codec.symbols)
        self.to(device)

    def to(self, device: str) -> VlaPolicy:
        """Move weights and prompt tensors; returns self."""
        self.device = device
        self.model.to(device)
        self.prompt = self.adapter.prompt(self)
        self.lengths_V = torch.from_numpy(self.codec.lengths_V).to(device)
        return self

    def frames_tensor(self, observations: Sequence[Observation]) -> Tensor:
        """uint8 [B, C, height, width, 3] on the policy's device."""
        return torch.from_numpy(np.stack([o.frames for o in observations])).to(self.device)

    def state_bins(self, state_deg: np.ndarray) -> np.ndarray:
        """int64 [..., J] prompt bins of measured joint angles in degrees."""
        return state_bins(self.stats.state.normalise(state_deg))

    def state_tensor(self, observations: Sequence[Observation]) -> Tensor:
        """Prompt bins int64 [B, J] on the policy's device."""
        return torch.from_numpy(self.state_bins(np.stack([o.state_deg for o in observations]))).to(self.device)

    def logits(self, frames: Tensor, state_bins_BJ: Tensor, bins_BT: Tensor) -> Tensor:
        """Teacher-forced logits over the action block, float32 [B, T, V], differentiable; see `Adapter.logits`."""
        return self.adapter.logits(self, frames, state_bins_BJ, bins_BT)

    def decoder(self, rows: int) -> StepDecoder:
        """A key-value cache decoder of `rows` rows for the sampler."""
        return self.adapter.decoder(self, rows)

    def prompt_batch(self, observations: Sequence[Observation]) -> dict[str, Tensor]:
        """Keyword arguments for `model(...)`, the prompts up to and with ``<action_start>``, on the policy's device."""
        return self.adapter.inputs(self, self.frames_tensor(observations), self.state_tensor(observations))

    def encode_chunk(self, chunk_deg: np.ndarray) -> np.ndarray:
        """Bins int16 [T] of joint targets [horizon, J] in degrees."""
        return self.codec.encode(self.stats.action.normalise(chunk_deg)[None])[0]

    def decode_chunk(self, bins_T: np.ndarray) -> np.ndarray:
        """Joint targets float64 [horizon, J] in degrees of one complete stream; ConfigError if it is not complete."""
        return self.stats.action.denormalise(self.codec.decode([bins_T])[0])

    def weights_digest(self) -> str:
        """SHA-256 over the names and bytes of all weights, sorted by name."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + b"\0")
            digest.update(weight.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()

    def save(self, directory: Path) -> None:
        """Write a checkpoint in the release's layout into `directory`, which is created."""
        directory.mkdir(parents=True, exist_ok=True)
        molmo2.save_model(self.model, directory)
        save_tokenizer(self.tokenizer, directory)
        self.stats.save(directory)
        self.codec.save(directory / CODEC_DIR)


def new_twin(
    *, codec: FastCodec, stats: NormStats, task: str, seed: int, architecture: molmo2.TwinArchitecture
) -> VlaPolicy:
    """A policy with fresh random weights, on the CPU, for supervised training to start from."""
    tokenizer = build_tokenizer(task, codec.vocabulary)
    ids = TokenIds.of(tokenizer, codec.vocabulary)
    config = molmo2.twin_config(architecture, tokenizer, ids, codec.vocabulary)
    model = molmo2.build_twin(config, seed=seed)
    return VlaPolicy(model=model, tokenizer=tokenizer, codec=codec, stats=stats, task=task, device="cpu")


def load_policy(*, checkpoint: str, device: str, serve_head: str, task: str) -> VlaPolicy:
    """Read a checkpoint directory.

    Args:
        checkpoint: a directory, or ``bundled:NAME`` for a base that ships with the package.
        device: a torch device, e.g. ``cpu`` or ``cuda``.
        serve_head: which head answers; only ``ar`` (action tokens).
        task: the task in words.

    Raises:
        ConfigError: another head, no such directory, or files that do not belong together.
    """
    from tokenizers import Tokenizer

    if serve_head != "ar":
        raise ConfigError(
            f"no head {serve_head!r} to serve", where="policy.serve_head", remedy="use policy.serve_head=ar"
        )
    bundled = checkpoint.startswith(_BUNDLED)
    directory = paths.bundled_base(checkpoint.removeprefix(_BUNDLED)) if bundled else Path(checkpoint)
    if not (directory / molmo2.CONFIG).is_file():
        raise ConfigError(
            f"there is no policy checkpoint in {directory}",
            where="policy.checkpoint",
            remedy="name a directory with config.json and model.safetensors, or bundled:boat_tiny",
        )
    codec, stats, model = FastCodec.load(directory / CODEC_DIR), NormStats.load(directory), molmo2.load_model(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = TokenIds.of(tokenizer, codec.vocabulary)
    named = (model.config.action_token_start_id, model.config.num_action_tokens, model.config.text_config.vocab_size)
    if named != (ids.action_block, codec.vocabulary, ids.base_size) or (codec.horizon, codec.dim) != (
        stats.horizon,
        len(stats.action.low_deg),
    ):
        raise ConfigError("network, tokenizer, codec and tables do not belong together", where=str(directory))
    return VlaPolicy(model=model, tokenizer=tokenizer, codec=codec, stats=stats, task=task, device=device)
