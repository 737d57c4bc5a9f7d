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
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.grammar import REACHABLE, Grammar
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.prompt import Observation, state_bins
from vla_rl.policy.tokenizer import TokenIds, build_layout, build_tokenizer, save_tokenizer
from vla_rl.policy.trunk import PromptTensors, action_logits
from vla_rl.policy.vision import batch_pooling_index, pack_frames

CODEC_DIR = "fast_tokenizer"
_BUNDLED = "bundled:"


class VlaPolicy:
    """A Molmo2 network with its tokenizer, codec and normalisation, for one task.

    Args:
        grammar: which bins are legal, see `vla_rl.policy.grammar`.

    Attributes:
        model: transformers' `Molmo2ForConditionalGeneration`, always in evaluation mode (there is no dropout to want).
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
        grammar: str = REACHABLE,
    ) -> None:
        self.model, self.tokenizer, self.codec, self.stats, self.task = model, tokenizer, codec, stats, task
        self.horizon, self.dim, self.vocabulary = codec.horizon, codec.dim, codec.vocabulary
        self.grammar = Grammar.of(codec, grammar)
        self.to(device)

    def to(self, device: str) -> VlaPolicy:
        """Move weights and prompt tensors; returns self."""
        vision = self.model.config.vision_config
        image_px, patch_px = vision.image_size[0], vision.patch_size
        per_image = (-(-(image_px // patch_px) // 2)) ** 2
        ids = TokenIds.of(self.tokenizer, self.vocabulary)
        layout = build_layout(self.tokenizer, self.task, tokens_per_image=per_image, action_width=self.vocabulary)
        self.device = device
        self.model.to(device)
        self.prompt = PromptTensors.of(layout, ids, image_px=image_px, patch_px=patch_px, device=device)
        self.lengths_V = torch.from_numpy(self.grammar.lengths_V).to(device)
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
        """Teacher-forced logits over the action block, float32 [B, T, V], differentiable; see `trunk.action_logits`."""
        return action_logits(self.model, self.prompt, self.vocabulary, frames, state_bins_BJ, bins_BT)

    def prompt_batch(self, observations: Sequence[Observation]) -> dict[str, Tensor]:
        """Keyword arguments for `model(...)`, the prompts up to and with ``<action_start>``, on the policy's device."""
        frames, prompt = self.frames_tensor(observations), self.prompt
        ids = prompt.prompt_ids(self.state_tensor(observations))
        patches = pack_frames(frames, image_px=prompt.image_px, patch_px=prompt.patch_px)
        side = round(prompt.pooling_I4.shape[0] ** 0.5)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": prompt.block_P.long().expand(len(ids), -1),
            "pixel_values": patches,
            "image_token_pooling": batch_pooling_index(prompt.pooling_I4, *patches.shape[:2]),
            "image_grids": torch.tensor([[side, side, 0, 0]] * len(patches), device=self.device),
            "image_num_crops": torch.ones(len(patches), dtype=torch.long, device=self.device),
        }

    def encode_chunk(self, chunk_deg: np.ndarray) -> np.ndarray:
        """Bins int16 [T] of joint targets [horizon, J] in degrees."""
        return self.codec.encode(self.stats.action.normalise(chunk_deg)[None])[0]

    def decode_chunk(self, bins_T: np.ndarray) -> np.ndarray:
        """Joint targets float64 [horizon, J] in degrees of one complete stream; ConfigError if it is not complete."""
        return self.stats.action.denormalise(self.codec.decode([bins_T])[0])

    def zero_chunk(self) -> np.ndarray:
        """What the release executes for a stream that is no chunk: zeros in normalised space, which is the middle of
        every joint's range; float64 [horizon, J] in degrees."""
        return self.stats.action.denormalise(np.zeros((self.horizon, self.dim)))

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


def load_policy(*, checkpoint: str, device: str, serve_head: str, task: str, grammar: str = REACHABLE) -> VlaPolicy:
    """Read a checkpoint directory.

    Args:
        checkpoint: a directory, or ``bundled:NAME`` for a base that ships with the package.
        device: a torch device, e.g. ``cpu`` or ``cuda``.
        serve_head: which head answers; only ``ar`` (action tokens).
        task: the task in words.
        grammar: which bins are legal, ``reachable`` or ``documented`` (`vla_rl.policy.grammar`).

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
    return VlaPolicy(
        model=model, tokenizer=tokenizer, codec=codec, stats=stats, task=task, device=device, grammar=grammar
    )
