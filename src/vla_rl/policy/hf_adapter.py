"""The adapter of other image-text-to-text models of transformers that were given action tokens.

In: a `VlaPolicy` around a native model whose pictures go in as ``pixel_values`` and whose prompt has one placeholder
token a picture feature (SmolVLM, Idefics3, LLaVA; `FAMILIES`). Out: what `vla_rl.policy.adapter.Adapter` promises, made
of the model's own forward alone. `HfAdapter` is plain data: it is stored in `checkpoint.json`, so a checkpoint says how
its pictures are taken in. Models with packed patches, tiles or a position scheme of their own (Qwen2-VL) need an
adapter of their own. `vla_rl.policy.graft` makes such a policy out of a plain model.

Shapes: B rows, C cameras, P prompt tokens, T action tokens, V bins, J joints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vla_rl.errors import ConfigError
from vla_rl.policy.adapter import StepDecoder
from vla_rl.policy.cached_forward import CachedForward, action_columns, head_logits
from vla_rl.policy.hf_network import stored_hf_tensors
from vla_rl.policy.native import quiet_transformers
from vla_rl.policy.tokenizer import PictureTokens, TokenIds, build_layout
from vla_rl.policy.trunk import feedable, filled_prompts

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy


@dataclass(frozen=True)
class HfPrompt:
    """A prompt layout on the model's device; see `PromptLayout`."""

    template_P: Tensor
    state_slots_J: Tensor
    ids: TokenIds

    @property
    def length(self) -> int:
        """Prompt tokens, P, the fed ``<action_start>`` included."""
        return self.template_P.shape[0]

    def prompt_ids(self, state_bins_BJ: Tensor) -> Tensor:
        """Token ids int64 [B, P] of prompts that differ in their state bins only."""
        return filled_prompts(self.template_P, self.state_slots_J, state_bins_BJ, self.ids)


@dataclass(frozen=True)
class HfAdapter:
    """How one model takes its pictures.

    Attributes:
        image_token, before, after: the placeholder of a picture feature, and what stands around a picture.
        tokens_per_image: features of one picture.
        image_px: side of the square picture that the tower reads.
        mean, std: of the pixel values, after division by 255.
        nested: pixel values are [row, picture, ...] (Idefics family) instead of [picture, ...].
        text_parameters, token_tables: see `Adapter`.
    """

    image_token: str
    tokens_per_image: int
    image_px: int
    mean: list[float]
    std: list[float]
    before: str = ""
    after: str = ""
    nested: bool = False
    text_parameters: tuple[str, ...] = field(default=())
    token_tables: tuple[str, ...] = field(default=())

    @classmethod
    def stored(cls, parameters: dict[str, Any]) -> HfAdapter:
        """From the `adapter` object of a `checkpoint.json`.

        Raises:
            ConfigError: a parameter is missing or unknown.
        """
        tuples = {k: tuple(v) for k, v in parameters.items() if k in ("text_parameters", "token_tables")}
        try:
            return cls(**{**parameters, **tuples})
        except TypeError as error:
            raise ConfigError(f"the adapter's parameters do not fit: {error}", where="checkpoint.json") from error

    @property
    def can_recompute(self) -> bool:
        """Their own checkpointing wants a network in training mode."""
        return False

    @property
    def pictures(self) -> PictureTokens:
        """The wording of one picture in the prompt."""
        return PictureTokens(self.image_token, self.before, self.after)

    def prompt(self, policy: VlaPolicy) -> HfPrompt:
        ids = TokenIds.of(policy.tokenizer, policy.vocabulary, self.pictures)
        layout = build_layout(
            policy.tokenizer, policy.task, tokens_per_image=self.tokens_per_image, action_width=policy.vocabulary,
            wording=policy.wording, pictures=self.pictures,
        )  # fmt: skip
        template, slots = (torch.from_numpy(a).to(policy.device) for a in (layout.template_P, layout.state_slots_J))
        return HfPrompt(template, slots, ids)

    def inputs(self, policy: VlaPolicy, frames: Tensor, state_bins_BJ: Tensor) -> dict[str, Tensor]:
        ids = policy.prompt.prompt_ids(state_bins_BJ)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": self._pixels(policy, frames)}

    def logits(self, policy: VlaPolicy, frames: Tensor, state_bins_BJ: Tensor, bins_BT: Tensor) -> Tensor:
        inputs = self.inputs(policy, frames, state_bins_BJ)
        fed = bins_BT[:, :-1].long() + policy.prompt.ids.action_block
        inputs["input_ids"] = torch.cat([inputs["input_ids"], fed], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        hidden = policy.model.base_model(**inputs, use_cache=False).last_hidden_state
        return head_logits(policy, hidden[:, policy.prompt.length - 1 :], action_columns(policy))

    def fed_ids(self, policy: VlaPolicy) -> Tensor:
        return feedable(policy.prompt.template_P, policy.prompt.ids, policy.vocabulary)

    def decoder(self, policy: VlaPolicy, rows: int, *, unconstrained: int | None = None) -> StepDecoder:
        return CachedForward(policy, rows, unconstrained=unconstrained)

    def stored_tensors(self, model: Any) -> Iterator[tuple[str, Tensor]]:
        return stored_hf_tensors(model)

    def save_network(self, policy: VlaPolicy, directory: Path) -> None:
        with quiet_transformers():
            policy.model.save_pretrained(str(directory))

    def parameters(self) -> dict[str, Any]:
        return asdict(self)

    def _pixels(self, policy: VlaPolicy, frames: Tensor) -> Tensor:
        """Frames uint8 [B, C, height, width, 3] as the tower's pixel values [B * C, 3, px, px] or [B, C, 3, px, px]."""
        pictures = frames.flatten(0, 1).movedim(-1, 1).float()
        if pictures.shape[-2:] != (self.image_px, self.image_px):
            resized = interpolate(pictures, size=(self.image_px, self.image_px), mode="bilinear", antialias=True)
            pictures = resized.round().clamp(0, 255)
        mean, std = (torch.tensor(v, device=frames.device)[:, None, None] for v in (self.mean, self.std))
        pixels = ((pictures / 255.0 - mean) / std).to(policy.model.dtype)
        return pixels.unflatten(0, frames.shape[:2]) if self.nested else pixels
