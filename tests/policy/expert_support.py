"""What tests of the flow head share: small experts that have learned something, the release's arithmetic in numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vla_rl.policy.expert import ActionExpert
from vla_rl.policy.flow_config import ExpertSizes, FlowConfig

SIZES = ExpertSizes(width=16, heads=2, mlp_ratio=2.0, mlp_multiple=8, time_features=8)


@torch.no_grad()
def taught(expert: ActionExpert, *, seed: int = 3) -> ActionExpert:
    """The same expert with every weight drawn, so that nothing is zero and every input matters."""
    generator = torch.Generator().manual_seed(seed)
    for _, weight in sorted(expert.named_parameters()):
        scale = 1.0 / math.sqrt(weight.shape[-1]) if weight.ndim == 2 else 0.3
        weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype) * scale)
    return expert


def small_expert(*, layers: int = 2, key_width: int = 6, max_dim: int = 5, sizes: ExpertSizes = SIZES) -> ActionExpert:
    return taught(ActionExpert(FlowConfig(sizes, layers, max_dim=max_dim, max_horizon=8), key_width))


def keys_values(
    rows: int, tokens: int, *, layers: int = 2, width: int = 6, seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[tuple[Tensor, Tensor]]:
    """What a trunk might have seen."""
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(torch.randn(rows, tokens, width, generator=generator, dtype=dtype) for _ in range(2))  # type: ignore[misc]
        for _ in range(layers)
    ]


def released_velocity(
    weights: dict[str, np.ndarray],
    chunk_TA: np.ndarray,
    time: float,
    seen: Sequence[tuple[np.ndarray, np.ndarray]],
    shown_S: np.ndarray,
    *,
    heads: int,
    eps: float = 1e-6,
) -> np.ndarray:
    """The release's expert for one row in plain float64 numpy: loops over heads and ticks, masks in the softmax.

    Args:
        weights: by released name, without prefix.
        seen: of every layer keys and values [S, K], hidden tokens included.
        shown_S: which tokens the mask leaves.
    """

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def norm(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)

    def silu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, shown: np.ndarray) -> np.ndarray:
        score = np.where(shown[None, :], query @ key.T / math.sqrt(query.shape[1]), -np.inf)
        share = np.exp(score - score.max(1, keepdims=True))
        return share / share.sum(1, keepdims=True) @ value

    def rotate(x: np.ndarray) -> np.ndarray:
        half, out = x.shape[1] // 2, x.copy()
        for tick in range(len(x)):
            for i in range(half):
                angle = tick * 1e4 ** (-i / half)
                a, b = x[tick, i], x[tick, half + i]
                out[tick, i] = a * math.cos(angle) - b * math.sin(angle)
                out[tick, half + i] = a * math.sin(angle) + b * math.cos(angle)
        return out

    count = weights["time_embed.1.weight"].shape[1] // 2
    angles = time * np.exp(np.arange(count) * (-math.log(1e4) / (count - 1)))
    clock = linear("time_embed.3", silu(linear("time_embed.1", np.concatenate([np.sin(angles), np.cos(angles)]))))
    x = linear("action_embed", chunk_TA)
    ticks, width = x.shape
    part = [slice(h * width // heads, (h + 1) * width // heads) for h in range(heads)]
    for i, (keys, values) in enumerate(seen):
        block = f"blocks.{i}"
        m = np.split(linear(f"{block}.modulation.linear", silu(clock)), 9)
        h = norm(x) * (1 + m[1]) + m[0]
        query, key, value = np.split(linear(f"{block}.self_attn.qkv", h), 3, axis=1)
        everything = np.ones(ticks, dtype=bool)
        heard = [attend(rotate(norm(query[:, p])), rotate(norm(key[:, p])), value[:, p], everything) for p in part]
        x = x + m[2] * linear(f"{block}.self_attn.out_proj", np.concatenate(heard, axis=1))
        h = norm(x) * (1 + m[4]) + m[3]
        query = linear(f"{block}.cross_attn.q_proj", h)
        key, value = norm(linear("context_k_proj", keys)), norm(linear("context_v_proj", values))
        heard = [attend(norm(query[:, p]), norm(key[:, p]), value[:, p], shown_S) for p in part]
        x = x + m[5] * linear(f"{block}.cross_attn.out_proj", np.concatenate(heard, axis=1))
        h = norm(x) * (1 + m[7]) + m[6]
        gated = silu(linear(f"{block}.mlp.gate_proj", h)) * linear(f"{block}.mlp.up_proj", h)
        x = x + m[8] * linear(f"{block}.mlp.down_proj", gated)
    shift, scale = np.split(linear("final_layer.modulation.linear", silu(clock)), 2)
    return linear("final_layer.linear", norm(x) * (1 + scale) + shift)
