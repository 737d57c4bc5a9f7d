"""The policy as the rest of the package sees it: observations in, action bins and degrees out.

In: a checkpoint directory, or a codec, tables and an architecture for fresh weights. Out: a `VlaPolicy` that holds the
network and everything around it. Sampling is in `vla_rl.policy.sampler`, likelihoods in `vla_rl.policy.logprob`.

Shapes: B rows, C cameras, J joints, T action tokens, V bins of the action block.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_rl.policy import molmo2
from vla_rl.policy.adapter import Adapter, StepDecoder
from vla_rl.policy.chunks import ChunkCodec
from vla_rl.policy.expert import ActionExpert
from vla_rl.policy.expert_files import check_expert, load_expert
from vla_rl.policy.export import write_layout
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.grammar import REACHABLE, Grammar
from vla_rl.policy.hashing import feed
from vla_rl.policy.heads import AR, FLOW, Heads, check_head, check_not_stale, is_stale
from vla_rl.policy.hub import resolve
from vla_rl.policy.lora import LoraSettings, acting_pairs, check_merged, plain_state
from vla_rl.policy.metadata import VERSION, Metadata, write_metadata
from vla_rl.policy.molmo2_adapter import Molmo2Adapter
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.parts import DTYPES, Parts, check_format, read_parts
from vla_rl.policy.prompt import SO101, Observation, state_bins
from vla_rl.policy.sources import CODEC_DIR, TRAINING_SCENE, Sources, read_training_scene
from vla_rl.policy.tokenizer import TokenIds, build_tokenizer, save_tokenizer


class VlaPolicy:
    """A network with its tokenizer, codec and normalisation, for one task.

    Args:
        grammar: which bins are legal, see `vla_rl.policy.grammar`.

    Attributes:
        model: a network of transformers, always in evaluation mode (there is no dropout to want).
        adapter: how this family of networks is asked; Molmo2 unless another one is given.
        origin: the checkpoint it was read from, None for a fresh one.
        wording: names of robot and control mode in the prompt.
        prompt: the task's fixed prompt as tensors; `prompt.length` tokens, ending with the fed ``<action_start>``.
        horizon, dim: ticks and joints of an action chunk.
        vocabulary: width of the action block, V.
        training_scene: `protocol`, `scene_hash` and `look` of the demonstrations it learned from; None: not known.
        allow_scene_mismatch: whether it may act in another scene.
        lora: the adapter beside its projections, see `vla_rl.policy.lora`; None: there is none.
        head: which head acts, ``ar`` (action tokens) or ``flow``.
        expert: the network of the flow head; None unless it was asked for (`vla_rl.policy.expert_files`).
        recompute: keep only the inputs of the text layers for a backward pass, and compute the rest again there.
        mixed: multiply in bfloat16 in teacher-forced passes; weights and what layers add up stay in their format.
        heads: what trained each head last, and whether it is stale (`vla_rl.policy.heads`); saved with the policy.
    """

    prompt: Any  # a `Prompt` with what its own adapter has put there
    training_scene: Mapping[str, Any] | None = None
    allow_scene_mismatch: bool = False
    lora: LoraSettings | None = None
    recompute: bool = False
    mixed: bool = False
    head: str = AR
    expert: ActionExpert | None = None
    heads: Heads = MappingProxyType({})

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
        origin: Parts | None = None,
        grammar: str = REACHABLE,
    ) -> None:
        self.model, self.tokenizer, self.codec, self.stats, self.task = model, tokenizer, codec, stats, task
        self.adapter, self.origin = adapter or Molmo2Adapter(), origin
        self.wording = origin.tables.wording if origin else SO101
        self.horizon, self.dim, self.vocabulary = codec.horizon, codec.dim, codec.vocabulary
        self.chunks = ChunkCodec(codec, stats)
        self.grammar = Grammar.of(codec, grammar)
        self.to(device)

    def to(self, device: str) -> VlaPolicy:
        """Move weights and prompt tensors; returns self."""
        self.device = device
        self.model.to(device)
        if self.expert is not None:
            self.expert.to(device)
        self.prompt = self.adapter.prompt(self)
        self.lengths_V = torch.from_numpy(self.grammar.lengths_V).to(device)
        return self

    @property
    def joint_frame(self) -> str:
        """The frame of its tables; observations and chunks are the rig's in any case."""
        return self.stats.frame

    @property
    def outputs(self) -> int:
        """How many ids the network can predict."""
        return self.model.get_output_embeddings().weight.shape[0]

    def frames_tensor(self, observations: Sequence[Observation]) -> Tensor:
        """uint8 [B, C, height, width, 3] on the policy's device."""
        return torch.from_numpy(np.stack([o.frames for o in observations])).to(self.device)

    def state_bins(self, state_deg: np.ndarray) -> np.ndarray:
        """int64 [..., J] prompt bins of measured joint angles in degrees of the rig."""
        return state_bins(self.stats.state.normalise(state_deg))

    def state_tensor(self, observations: Sequence[Observation]) -> Tensor:
        """Prompt bins int64 [B, J] on the policy's device."""
        return torch.from_numpy(self.state_bins(np.stack([o.state_deg for o in observations]))).to(self.device)

    def logits(self, frames: Tensor, state_bins_BJ: Tensor, bins_BT: Tensor) -> Tensor:
        """Teacher-forced logits over the action block, float32 [B, T, V], differentiable; see `Adapter.logits`."""
        if not self.mixed:
            return self.adapter.logits(self, frames, state_bins_BJ, bins_BT)
        # What is computed again would fill the cache of converted weights with copies of all of them.
        with torch.autocast(frames.device.type, torch.bfloat16, cache_enabled=not self.recompute):
            return self.adapter.logits(self, frames, state_bins_BJ, bins_BT)

    def decoder(self, rows: int, *, unconstrained: int | None = None) -> StepDecoder:
        """A key-value cache decoder of `rows` rows for the sampler; see `Adapter.decoder`."""
        return self.adapter.decoder(self, rows, unconstrained=unconstrained)

    def prompt_batch(self, observations: Sequence[Observation]) -> dict[str, Tensor]:
        """Keyword arguments for `model(...)`, the prompts up to and with ``<action_start>``, on the policy's device."""
        return self.adapter.inputs(self, self.frames_tensor(observations), self.state_tensor(observations))

    def encode_chunk(self, chunk_deg: np.ndarray) -> np.ndarray:
        """Bins int16 [T] of joint targets [horizon, J] in degrees of the rig."""
        return self.chunks.encode(chunk_deg)

    def decode_chunk(self, bins_T: np.ndarray) -> np.ndarray:
        """Joint targets float64 [horizon, J] in degrees of the rig of one stream; CodecError if it is not complete."""
        return self.chunks.decode(bins_T)

    def zero_chunk(self) -> np.ndarray:
        """What the release executes for a stream that is no chunk: zeros in normalised space, which is the middle of
        every joint's range; float64 [horizon, J] in degrees."""
        return self.stats.action.denormalise(np.zeros((self.horizon, self.dim)))

    def digest(self, head: str | None = None) -> str:
        """SHA-256 over what makes an action of a picture and a state: names and bytes of all weights, sorted by name,
        the adapter's pairs that act (a fresh adapter does nothing, and the policy still has the digest of its base),
        the tables that angles go through, what each bin stands for, and the prompt's words for the robot. A policy that
        acts with its flow head has another digest than with its token head: the expert and its steps count then, and
        only then.

        Args:
            head: as if it acted with this one; None for the one that it acts with.
        """
        digest = hashlib.sha256()
        acting = acting_pairs(self.model)
        tensors = [*sorted(plain_state(self.model).items()), *(named for pair in acting for named in pair.named())]
        if (head or self.head) == FLOW and self.expert is not None:
            tensors += [(f"{FLOW} {name}", weight) for name, weight in sorted(self.expert.state_dict().items())]
            digest.update(repr(self.expert.config).encode() + b"\0")
        feed(digest, ((name.encode() + b"\0", weight) for name, weight in tensors), torch.float32)
        for pair in acting:
            digest.update(repr(pair.scale).encode())
        for part in (*self.stats.facts(), *self.codec.facts(), self.wording.setup, self.wording.control_mode):
            digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode() + b"\0")
        return digest.hexdigest()

    def save(self, directory: Path) -> None:
        """Write a checkpoint into `directory`, which is created: the release's layout for a release, else a twin's.

        Raises:
            ConfigError: the policy carries an adapter.
        """
        check_merged(self, "save")
        directory.mkdir(parents=True, exist_ok=True)
        if self.origin and self.origin.opened and self.origin.opened.released:
            write_layout(self, self.origin, directory)
        else:
            self.adapter.save_network(self, directory)
            save_tokenizer(self.tokenizer, directory)
            self.stats.save(directory, self.wording)
            self.codec.save(directory / CODEC_DIR)
        write_metadata(directory, self.metadata)
        if self.training_scene is not None:
            (directory / TRAINING_SCENE).write_text(json.dumps(dict(self.training_scene), indent=2) + "\n")

    @property
    def metadata(self) -> Metadata:
        """What a checkpoint of this policy says about itself."""
        return Metadata(VERSION, self.stats.tag, self.stats.frame, self.adapter.parameters(), dict(self.heads))

    @property
    def stale(self) -> bool:
        """Whether the trunk has moved since the head that acts was trained, as far as is known."""
        return is_stale(self.heads, self.head)


def new_twin(
    *,
    codec: FastCodec,
    stats: NormStats,
    task: str,
    seed: int,
    architecture: molmo2.TwinArchitecture,
    base_size: int = 0,
    device: str = "cpu",
    grammar: str = REACHABLE,
) -> VlaPolicy:
    """A policy with fresh random float32 weights, for supervised training to start from.

    Args:
        base_size: see `build_tokenizer`.
        device: where its weights are drawn and stay.
        grammar: which bins are legal, see `vla_rl.policy.grammar`.
    """
    tokenizer = build_tokenizer(task, codec.vocabulary, base_size=base_size)
    ids = TokenIds.of(tokenizer, codec.vocabulary)
    config = molmo2.twin_config(architecture, tokenizer, ids, codec.vocabulary)
    model = molmo2.build_twin(config, seed=seed, device=device)
    return VlaPolicy(
        model=model, tokenizer=tokenizer, codec=codec, stats=stats, task=task, device=device, grammar=grammar
    )


def set_products(*, tf32: bool) -> None:
    """How a GPU multiplies float32 matrices, in all of this process: as IEEE has it, or in TF32, whose factors have 10
    bits of mantissa, on tensor cores."""
    torch.backends.cuda.matmul.allow_tf32 = tf32


def load_policy(
    *,
    checkpoint: str,
    device: str,
    serve_head: str,
    task: str,
    revision: str | None = None,
    dtype: str = "float32",
    tf32: bool = False,
    norm_tag: str | None = None,
    fast_tokenizer: str | None = None,
    fast_revision: str | None = None,
    joint_frame: str | None = None,
    grammar: str = REACHABLE,
    allow_scene_mismatch: bool = False,
    allow_stale_head: bool = False,
) -> VlaPolicy:
    """Read a checkpoint: a twin, a MolmoAct2 release, an export of either, or another model with action tokens.

    Everything that can be checked without reading weights is checked first.

    Args:
        checkpoint: a directory, ``bundled:NAME`` for a base that ships with the package, or a hub id.
        device: a torch device, e.g. ``cpu`` or ``cuda``.
        serve_head: which head acts, ``ar`` (action tokens) or ``flow`` (the action expert, which is loaded for it).
        task: the task in words.
        revision: commit that a hub id is pinned to.
        dtype: number format of the network, ``float32`` or ``bfloat16``.
        tf32: see `set_products`.
        norm_tag: which tables to use where the checkpoint has several.
        fast_tokenizer, fast_revision: directory, or hub id and commit, of the action codec; None for the checkpoint's
            own.
        joint_frame: ``rig`` or ``v21``, for a table that does not tell; a table that does may not contradict it.
        grammar: which bins are legal, ``reachable`` or ``documented`` (`vla_rl.policy.grammar`).
        allow_scene_mismatch: let it act in another scene than the one it was trained in.
        allow_stale_head: let a head act although the trunk has moved since it was trained.

    Raises:
        ConfigError: another head or a stale one, no such directory, an unknown tag, no codec, no expert for the flow
            head.
        CheckpointRefused: a named promise of the layout is broken; see `vla_rl.policy.refusals`.
    """
    check_head(serve_head)
    set_products(tf32=tf32)
    check_format(dtype, where="policy.dtype")
    sources = Sources(norm_tag, fast_tokenizer, fast_revision, joint_frame)
    parts = read_parts(resolve(checkpoint, revision, where="policy.checkpoint", pin="policy.revision"), sources)
    scene = read_training_scene(parts.directory)
    if serve_head == FLOW:
        check_expert(parts)
    check_not_stale(parts.metadata.heads, serve_head, allow=allow_stale_head, where=str(parts.directory))
    policy = VlaPolicy(
        model=parts.network(DTYPES[dtype]),
        tokenizer=parts.tokenizer,
        codec=parts.codec,
        stats=parts.tables.stats,
        task=task,
        device=device,
        adapter=parts.adapter,
        origin=parts,
        grammar=grammar,
    )
    policy.training_scene, policy.allow_scene_mismatch = scene, allow_scene_mismatch
    policy.heads = parts.metadata.heads
    if serve_head == FLOW:
        load_expert(policy)
        policy.head = FLOW
    return policy
