"""The clipped token-level policy loss, as pure functions of tensors.

In: new and old log-probabilities of sampled tokens, advantages, weights and the wave's normaliser. Out: the loss of one
micro-batch (a sum already divided by the whole wave's normaliser, so that micro-batches add up) and additive
statistics. The surrogate is PPO's (Schulman et al., 2017, arXiv:1707.06347, eq. 7) per token, with the asymmetric band
of "clip-higher" (DAPO, Yu et al., 2025, arXiv:2503.14476, eq. 10); the token mean runs over the whole wave, as there.
Left out: KL to an anchor.

Shapes: R rows of a micro-batch, T tokens, padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vla_rl.errors import ConfigError


@dataclass(frozen=True)
class LossInputs:
    """One micro-batch.

    Attributes:
        new_logp_RT: live log-probabilities at the sampling temperature, with gradient.
        old_logp_RT: those that the ratio is taken against, without gradient.
        mask_RT: bool, True on sampled tokens; whatever stands elsewhere has no effect, bit for bit.
        advantage_R: advantage of each row's episode.
        weight_R: weight of each row's tokens, see `episode_weights`.
        normaliser: weighted tokens of all kept rows of the wave.
        clip_low, clip_high: the band of the ratio; must bracket 1.
    """

    new_logp_RT: Tensor
    old_logp_RT: Tensor
    mask_RT: Tensor
    advantage_R: Tensor
    weight_R: Tensor
    normaliser: float
    clip_low: float
    clip_high: float


@dataclass(frozen=True)
class RatioStats:
    """Sums over tokens; micro-batches add up with `+`. Every token counts once here, whatever its weight in the
    loss."""

    tokens: int = 0
    ratio_sum: float = 0.0
    ratio_min: float = float("inf")
    ratio_max: float = float("-inf")
    outside: int = 0
    k3_sum: float = 0.0

    def __add__(self, other: RatioStats) -> RatioStats:
        return RatioStats(
            self.tokens + other.tokens,
            self.ratio_sum + other.ratio_sum,
            min(self.ratio_min, other.ratio_min),
            max(self.ratio_max, other.ratio_max),
            self.outside + other.outside,
            self.k3_sum + other.k3_sum,
        )

    def summary(self) -> dict[str, float | None]:
        """The `train.jsonl` fields: `mean_ratio`, `min_ratio`, `max_ratio`, `clip_fraction`, `approx_kl`."""
        n = self.tokens
        return {
            "mean_ratio": self.ratio_sum / n if n else None,
            "min_ratio": self.ratio_min if n else None,
            "max_ratio": self.ratio_max if n else None,
            "clip_fraction": self.outside / n if n else None,
            "approx_kl": self.k3_sum / n if n else None,
        }


@dataclass(frozen=True)
class LossOutputs:
    """The micro-batch's share of the wave's loss (scalar with gradient), and its statistics."""

    loss: Tensor
    stats: RatioStats


def grpo_loss(inputs: LossInputs) -> LossOutputs:
    """``-(1 / normaliser) * sum over tokens of weight * min(r A, clip(r, low, high) A)``, ``r = exp(new - old)``.

    `approx_kl` is the mean of ``r - 1 - ln r``, Schulman's k3 estimate of KL(old || new). `clip_fraction` counts tokens
    whose ratio is outside the band, whether or not the clipped branch is the one taken.

    Raises:
        ConfigError: a band that does not bracket 1.
        ValueError: shapes that do not fit, naming them.
    """
    _check(inputs)
    zero = torch.zeros((), dtype=inputs.new_logp_RT.dtype, device=inputs.new_logp_RT.device)
    # Padding is cut off before the exponential: a masked inf would turn the gradient into nan.
    log_ratio_RT = torch.where(inputs.mask_RT, inputs.new_logp_RT, zero) - torch.where(
        inputs.mask_RT, inputs.old_logp_RT.detach(), zero
    )
    ratio_RT = log_ratio_RT.exp()
    advantage_R1 = inputs.advantage_R.to(ratio_RT)[:, None]
    clipped_RT = ratio_RT.clamp(inputs.clip_low, inputs.clip_high)
    surrogate_RT = torch.minimum(ratio_RT * advantage_R1, clipped_RT * advantage_R1)
    weighted_RT = torch.where(inputs.mask_RT, surrogate_RT * inputs.weight_R.to(ratio_RT)[:, None], zero)
    return LossOutputs(-weighted_RT.sum() / inputs.normaliser, _stats(inputs, log_ratio_RT.detach()))


def episode_weights(tokens: Sequence[int], weighting: str) -> list[float]:
    """Weight of the tokens of each kept episode.

    ``"token"``: 1 for all, so long episodes weigh more (the documented system). ``"episode"``: mean episode tokens /
    own tokens, so that every episode counts the same. Both sum to the plain token count over the kept episodes, which
    is why the normaliser and the scale of the learning rate stay the same.

    Args:
        tokens: action tokens of each kept episode.
        weighting: ``"token"`` or ``"episode"``.

    Raises:
        ConfigError: any other weighting.
    """
    if weighting == "token":
        return [1.0] * len(tokens)
    if weighting == "episode":
        mean = sum(tokens) / max(len(tokens), 1)
        return [mean / own for own in tokens]
    raise ConfigError(f"no weighting {weighting!r}", where="loss.weighting", remedy="use token or episode")


def _check(inputs: LossInputs) -> None:
    if not inputs.clip_low < 1.0 < inputs.clip_high:
        raise ConfigError(
            f"the clip band [{inputs.clip_low}, {inputs.clip_high}] does not bracket 1",
            where="loss.clip_low and loss.clip_high",
            remedy="0.8 and 1.28 are usual",
        )
    shape = tuple(inputs.new_logp_RT.shape)
    for name in ("old_logp_RT", "mask_RT"):
        if (other := tuple(getattr(inputs, name).shape)) != shape:
            raise ValueError(f"new_logp_RT has shape {shape} but {name} has {other}")
    for name in ("advantage_R", "weight_R"):
        if (other := tuple(getattr(inputs, name).shape)) != shape[:1]:
            raise ValueError(f"new_logp_RT has {shape[0]} rows but {name} has shape {other}")


def _stats(inputs: LossInputs, log_ratio_RT: Tensor) -> RatioStats:
    log_ratio_N = log_ratio_RT[inputs.mask_RT].double()
    if log_ratio_N.numel() == 0:
        return RatioStats()
    ratio_N = log_ratio_N.exp()
    outside_N = (ratio_N < inputs.clip_low) | (ratio_N > inputs.clip_high)
    k3_N = ratio_N - 1 - log_ratio_N
    return RatioStats(
        tokens=ratio_N.numel(),
        ratio_sum=float(ratio_N.sum()),
        ratio_min=float(ratio_N.min()),
        ratio_max=float(ratio_N.max()),
        outside=int(outside_N.sum()),
        k3_sum=float(k3_N.sum()),
    )
