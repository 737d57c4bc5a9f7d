"""The flow-matching action expert of MolmoAct2: a velocity for a noisy chunk, given the trunk's keys and values.

In: a noisy chunk, a time, and of every trunk layer the keys (after their norm and rotation) and values of the prompt.
Out: the velocity towards the data. Block i attends to what layer i of the trunk has seen, through one pair of
projections that all blocks share, so the expert has no prompt of its own. Names and shapes of the weights are the
release's, see docs/policies.md. Left out: noise, integration and loss (`vla_rl.policy.flow`), files
(`vla_rl.policy.expert_files`).

Time runs from 0, noise, to 1, data. Norms have no weights; scales and shifts come from the time alone (adaLN-Zero,
Peebles and Xie, 2023, arXiv:2212.09748), nine vectors a block and two at the end.

Shapes: B rows, T ticks, A action width, W expert width, H heads, E head width, S prompt tokens, K width of the trunk's
keys over all of its heads, N times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from vla_rl.policy.flow_config import ExpertSizes, FlowConfig

NORM_EPS = 1e-6
ROPE_BASE = LONGEST_PERIOD = 1e4

KeyValues = Sequence[tuple[Tensor, Tensor]]  # of every trunk layer, each [B, S, K]
Context = Sequence[tuple[Tensor, Tensor]]  # of every block, each [B, H, S, E]


@dataclass(frozen=True)
class Modulations:
    """What a time does to the network.

    Attributes:
        blocks: of every block nine vectors, [N, 9 W].
        final: of the last layer two, [N, 2 W].
    """

    blocks: Sequence[Tensor]
    final: Tensor

    def at(self, index: int) -> Modulations:
        """Those of one of the times, for all rows."""
        return Modulations([block[index : index + 1] for block in self.blocks], self.final[index : index + 1])


class TimeFeatures(nn.Module):
    """Sines, then cosines, of a time at `features / 2` frequencies from 1 down to 1 / `LONGEST_PERIOD`."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.count = features // 2

    def forward(self, time_N: Tensor) -> Tensor:
        steps = torch.arange(self.count, device=time_N.device, dtype=time_N.dtype)
        angles = time_N[:, None] * torch.exp(steps * (-math.log(LONGEST_PERIOD) / (self.count - 1)))
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class SelfAttention(nn.Module):
    """Ticks look at each other, both ways; positions by rotation of the two halves of a head against each other."""

    def __init__(self, sizes: ExpertSizes) -> None:
        super().__init__()
        self.heads, self.eps = sizes.heads, sizes.qk_norm_eps
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out_proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, x_BTW: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = self.qkv(x_BTW).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = (_rotated(_normed(part, self.eps), rotation) for part in (query, key))
        return self.out_proj(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Ticks look at the prompt."""

    def __init__(self, sizes: ExpertSizes) -> None:
        super().__init__()
        self.heads, self.eps = sizes.heads, sizes.qk_norm_eps
        self.q_proj = nn.Linear(sizes.width, sizes.width)
        self.out_proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, x_BTW: Tensor, context: tuple[Tensor, Tensor]) -> Tensor:
        query = _normed(self.q_proj(x_BTW).unflatten(-1, (self.heads, -1)).transpose(1, 2), self.eps)
        return self.out_proj(scaled_dot_product_attention(query, *context).transpose(1, 2).flatten(2))


class GatedLayers(nn.Module):
    """SwiGLU."""

    def __init__(self, sizes: ExpertSizes) -> None:
        super().__init__()
        self.up_proj = nn.Linear(sizes.width, sizes.mlp)
        self.gate_proj = nn.Linear(sizes.width, sizes.mlp)
        self.down_proj = nn.Linear(sizes.mlp, sizes.width)

    def forward(self, x_BTW: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x_BTW)) * self.up_proj(x_BTW))


class Modulation(nn.Module):
    """`count` vectors made of the embedded time, [N, count W]."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, count * width)

    def forward(self, time_NW: Tensor) -> Tensor:
        return self.linear(silu(time_NW))


class Block(nn.Module):
    """Self-attention, cross-attention, gated layers, each shifted and scaled before and gated after."""

    def __init__(self, sizes: ExpertSizes) -> None:
        super().__init__()
        self.self_attn, self.cross_attn = SelfAttention(sizes), CrossAttention(sizes)
        self.mlp, self.modulation = GatedLayers(sizes), Modulation(sizes.width, 9)

    def forward(
        self, x_BTW: Tensor, modulation: Tensor, context: tuple[Tensor, Tensor], rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        parts = modulation[:, None].chunk(9, dim=-1)
        x_BTW = x_BTW + parts[2] * self.self_attn(_modulated(x_BTW, *parts[:2]), rotation)
        x_BTW = x_BTW + parts[5] * self.cross_attn(_modulated(x_BTW, *parts[3:5]), context)
        return x_BTW + parts[8] * self.mlp(_modulated(x_BTW, *parts[6:8]))


class FinalLayer(nn.Module):
    """From the action stream to a velocity."""

    def __init__(self, width: int, max_dim: int) -> None:
        super().__init__()
        self.modulation, self.linear = Modulation(width, 2), nn.Linear(width, max_dim)

    def forward(self, x_BTW: Tensor, modulation: Tensor) -> Tensor:
        return self.linear(_modulated(x_BTW, *modulation[:, None].chunk(2, dim=-1)))


class ActionExpert(nn.Module):
    """The expert; its weights are those that torch draws until they are loaded or `fresh_weights` has drawn them.

    Args:
        config: sizes.
        key_width: of the trunk's keys over all of its heads, K.
    """

    def __init__(self, config: FlowConfig, key_width: int) -> None:
        super().__init__()
        sizes = config.sizes
        self.config, self.key_width = config, key_width
        self.time_embed = nn.Sequential(
            TimeFeatures(sizes.time_features),
            nn.Linear(sizes.time_features, sizes.width),
            nn.SiLU(),
            nn.Linear(sizes.width, sizes.width),
        )
        self.action_embed = nn.Linear(config.max_dim, sizes.width)
        self.context_k_proj = nn.Linear(key_width, sizes.width, bias=False)
        self.context_v_proj = nn.Linear(key_width, sizes.width, bias=False)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(config.layers))
        self.final_layer = FinalLayer(sizes.width, config.max_dim)

    @property
    def dtype(self) -> torch.dtype:
        """Number format of its weights, in which it computes."""
        return self.action_embed.weight.dtype

    def context(self, keys_values: KeyValues) -> Context:
        """What the blocks attend to: the trunk's keys and values in the expert's width and number format, normalised
        over the width, keys over each head too."""
        return [
            (_normed(self._heads(self.context_k_proj(key.to(self.dtype))), self.config.sizes.qk_norm_eps),
             self._heads(self.context_v_proj(value.to(self.dtype))))
            for key, value in keys_values
        ]  # fmt: skip

    def modulations(self, time_N: Tensor) -> Modulations:
        """Of N times."""
        features, *layers = self.time_embed
        embedded = features(time_N).to(self.dtype)
        for layer in layers:
            embedded = layer(embedded)
        return Modulations(
            [block.modulation(embedded) for block in self.blocks],  # type: ignore[operator]
            self.final_layer.modulation(embedded),
        )

    def velocity(self, noisy_BTA: Tensor, modulations: Modulations, context: Context) -> Tensor:
        """Velocity [B, T, A] of chunks at the time of one set of modulations (N is 1), or each at its own (N is B)."""
        x_BTW = self.action_embed(noisy_BTA)
        rotation = _rotation(x_BTW.shape[1], self.config.sizes.width // self.config.sizes.heads, like=x_BTW)
        for block, modulation, seen in zip(self.blocks, modulations.blocks, context, strict=True):
            x_BTW = block(x_BTW, modulation, seen, rotation)
        return self.final_layer(x_BTW, modulations.final)

    def forward(self, noisy_BTA: Tensor, time_B: Tensor, context: Context) -> Tensor:
        """Velocity [B, T, A] of chunks, each at its own time."""
        return self.velocity(noisy_BTA, self.modulations(time_B), context)

    def _heads(self, x_BSW: Tensor) -> Tensor:
        """[B, H, S, E] of what the context projections give, normalised over the width."""
        return _normed(x_BSW, NORM_EPS).unflatten(-1, (self.config.sizes.heads, -1)).transpose(1, 2)


@torch.no_grad()
def fresh_weights(expert: ActionExpert, *, seed: int) -> None:
    """Draw the weights of an expert that has learned nothing: they depend on its sizes and `seed` alone.

    Matrices are uniform (Glorot), those that write into the action stream divided by sqrt(2 * layers); biases,
    modulations and the last layer are zero, so that every block does nothing and the velocity is 0 everywhere.
    """
    generator, depth = torch.Generator().manual_seed(seed), math.sqrt(2 * len(expert.blocks))
    for name, weight in sorted(expert.named_parameters()):
        if name.endswith("bias") or ".modulation." in name or name.startswith("final_layer."):
            weight.zero_()
            continue
        bound = math.sqrt(6 / sum(weight.shape)) / (depth if name.split(".")[-2] in ("out_proj", "down_proj") else 1.0)
        weight.copy_((torch.rand(weight.shape, generator=generator) * 2 - 1) * bound)


def _normed(x: Tensor, eps: float) -> Tensor:
    """Root mean square 1 over the last axis."""
    return rms_norm(x, x.shape[-1:], eps=eps)


def _modulated(x_BTW: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return _normed(x_BTW, NORM_EPS) * (1 + scale) + shift


def _rotation(ticks: int, head: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, E / 2], made in float32."""
    half = head // 2
    steps = torch.arange(half, device=like.device, dtype=torch.float32)
    positions = torch.arange(ticks, device=like.device, dtype=torch.float32)
    angles = positions[:, None] * (1.0 / ROPE_BASE ** (steps / half))
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotated(x_BHTE: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    (first, second), (cos, sin) = x_BHTE.chunk(2, dim=-1), rotation
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
