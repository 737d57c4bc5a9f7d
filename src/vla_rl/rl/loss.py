"""The clipped policy loss, as pure functions of tensors.

In: new, old and anchor log-probabilities of sampled tokens, advantages, weights and the wave's normaliser. Out: the
loss of one micro-batch (a sum already divided by the whole wave's normaliser, so that micro-batches add up) and
additive statistics.

The surrogate is PPO's (Schulman et al., 2017, arXiv:1707.06347, eq. 7), per token, with the asymmetric band of
"clip-higher" (DAPO, Yu et al., 2025, arXiv:2503.14476, eq. 10); the token mean runs over the whole wave, as there. By
choice the ratio is that of a whole chunk of tokens, as the geometric mean of its tokens' (GSPO, Zheng et al., 2025,
arXiv:2507.18071, eq. 7), a negative advantage has a second bound (dual clip, Ye et al., 2020, arXiv:1912.09729), and
a KL term and an entropy bonus are added. Estimates of KL(live || anchor) with d = live - anchor (Schulman,
"Approximating KL divergence", 2020): k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1.

Shapes: R rows (chunks) of a micro-batch, T tokens, padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vla_rl.errors import ConfigError

TOKEN, SEQUENCE = RATIOS = ("token", "sequence")
BY_TOKEN, BY_EPISODE, CONSTANT = WEIGHTINGS = ("token", "episode", "constant")
KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: d,
    "k2": lambda d: d.square() / 2,
    "k3": lambda d: torch.expm1(-d) + d,
}


@dataclass(frozen=True)
class Objective:
    """What is maximised; names and meanings as in the `loss` configuration.

    Attributes:
        clip_low, clip_high: the band of the ratio; must bracket 1.
        ratio: ``token`` or ``sequence``.
        dual_clip: with a negative advantage A the surrogate is at least ``dual_clip * A``; above 1, or None.
        kl_beta: weight of the KL term (0: none, and no anchor is needed).
        kl_estimator: k1, k2 or k3.
        entropy_bonus: weight of the mean entropy of the tokens.
    """

    clip_low: float
    clip_high: float
    ratio: str = TOKEN
    dual_clip: float | None = None
    kl_beta: float = 0.0
    kl_estimator: str = "k3"
    entropy_bonus: float = 0.0

    def __post_init__(self) -> None:
        if not self.clip_low < 1.0 < self.clip_high:
            raise ConfigError(
                f"the clip band [{self.clip_low}, {self.clip_high}] does not bracket 1",
                where="loss.clip_low and loss.clip_high",
                remedy="0.8 and 1.28 are usual",
            )
        for value, known, where in (
            (self.ratio, RATIOS, "loss.ratio"),
            (self.kl_estimator, tuple(KL_ESTIMATORS), "loss.kl_estimator"),
        ):
            if value not in known:
                raise ConfigError(f"there is no {value!r}", where=where, remedy=f"use {' or '.join(known)}")
        if self.dual_clip is not None and not self.dual_clip > 1.0:
            raise ConfigError(
                f"a dual clip of {self.dual_clip} would bind at ratio 1",
                where="loss.dual_clip",
                remedy="use more than 1, e.g. 3, or null",
            )


@dataclass(frozen=True)
class LossInputs:
    """One micro-batch.

    Attributes:
        new_logp_RT: live log-probabilities at the sampling temperature, with gradient.
        old_logp_RT: those that the ratio is taken against, without gradient.
        mask_RT: bool, True on sampled tokens; whatever stands elsewhere has no effect, bit for bit.
        advantage_R: advantage of each row's episode.
        weight_R: weight of each row's tokens, see `episode_weights`.
        normaliser: what the weighted sum over the wave is divided by.
        anchor_logp_RT: those of the anchor; needed for a KL term.
        entropy_RT: live entropies, with gradient; needed for an entropy bonus.
    """

    new_logp_RT: Tensor
    old_logp_RT: Tensor
    mask_RT: Tensor
    advantage_R: Tensor
    weight_R: Tensor
    normaliser: float
    anchor_logp_RT: Tensor | None = None
    entropy_RT: Tensor | None = None


@dataclass(frozen=True)
class RatioStats:
    """Sums over tokens; micro-batches add up with `+`. Every token counts once here, whatever its weight in the loss.

    Ratios are those that the clip sees: of a token, or of its chunk.
    """

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
    """The micro-batch's share of the wave's loss (scalar with gradient), its statistics, and the sum over its tokens of
    the k3 estimate of KL(live || anchor); None without anchor."""

    loss: Tensor
    stats: RatioStats
    anchor_k3_sum: float | None = None


class TokenLoss(Protocol):
    """What the trainer needs of a loss: a micro-batch's share of it, already divided by `inputs.normaliser`, so that
    micro-batches add up to the loss of the wave."""

    def __call__(self, inputs: LossInputs, objective: Objective) -> LossOutputs: ...


class GrpoLoss:
    """`grpo_loss` as a component."""

    def __call__(self, inputs: LossInputs, objective: Objective) -> LossOutputs:
        return grpo_loss(inputs, objective)


def grpo_loss(inputs: LossInputs, objective: Objective) -> LossOutputs:
    """``-(1 / normaliser) * sum over tokens of weight * (surrogate - beta * KL + bonus * entropy)``.

    The surrogate is ``min(r A, clip(r, low, high) A)``, and with a dual clip and A < 0 at least ``dual_clip * A``;
    ``r = exp(new - old)``, or the exponential of its mean over the chunk.

    `approx_kl` is the mean of ``r - 1 - ln r`` over tokens, Schulman's k3 estimate of KL(old || new). `clip_fraction`
    counts tokens whose ratio is outside the band, whether or not the clipped branch is the one taken.

    Raises:
        ValueError: shapes that do not fit, naming them; a KL term without anchor, a bonus without entropies.
    """
    _check(inputs, objective)
    mask_RT, zero = inputs.mask_RT, inputs.new_logp_RT.new_zeros(())

    def shown(values_RT: Tensor) -> Tensor:
        # Padding is cut off before the exponential: a masked inf would turn the gradient into nan.
        return torch.where(mask_RT, values_RT, zero)

    log_ratio_RT = shown(inputs.new_logp_RT) - shown(inputs.old_logp_RT.detach())
    clipped_RT = log_ratio_RT
    if objective.ratio == SEQUENCE:
        tokens_R1 = mask_RT.sum(1, keepdim=True).clamp(min=1)
        clipped_RT = shown((log_ratio_RT.sum(1, keepdim=True) / tokens_R1).expand_as(log_ratio_RT))
    advantage_R1 = inputs.advantage_R.to(log_ratio_RT)[:, None]
    gain_RT = surrogate(clipped_RT.exp(), advantage_R1, objective)
    anchor_k3_sum = None
    if inputs.anchor_logp_RT is not None:
        drift_RT = shown(inputs.new_logp_RT) - shown(inputs.anchor_logp_RT.detach())
        anchor_k3_sum = float(KL_ESTIMATORS["k3"](drift_RT.detach().double())[mask_RT].sum())
        if objective.kl_beta:
            gain_RT = gain_RT - objective.kl_beta * KL_ESTIMATORS[objective.kl_estimator](drift_RT)
    if objective.entropy_bonus:
        assert inputs.entropy_RT is not None
        gain_RT = gain_RT + objective.entropy_bonus * shown(inputs.entropy_RT)
    weighted_RT = shown(gain_RT * inputs.weight_R.to(gain_RT)[:, None])
    stats = _stats(inputs, log_ratio_RT.detach(), clipped_RT.detach(), objective)
    return LossOutputs(-weighted_RT.sum() / inputs.normaliser, stats, anchor_k3_sum)


def surrogate(ratio_RT: Tensor, advantage_R1: Tensor, objective: Objective) -> Tensor:
    """``min(r A, clip(r) A)``, with the dual clip's lower bound where A < 0. Any shapes that broadcast."""
    clamped_RT = ratio_RT.clamp(objective.clip_low, objective.clip_high)
    pessimistic_RT = torch.minimum(ratio_RT * advantage_R1, clamped_RT * advantage_R1)
    if objective.dual_clip is None:
        return pessimistic_RT
    bound_RT = torch.maximum(pessimistic_RT, objective.dual_clip * advantage_R1)
    return torch.where(advantage_R1 < 0, bound_RT, pessimistic_RT)


def episode_weights(tokens: Sequence[int], weighting: str) -> list[float]:
    """Weight of the tokens of each kept episode.

    ``token``: 1 for all, so long episodes weigh more (the documented system). ``episode``: mean episode tokens / own
    tokens, so that every episode counts the same. Both sum to the plain token count over the kept episodes, which is
    why the normaliser and the scale of the learning rate stay the same. ``constant``: 1 for all, and the normaliser
    does not depend on the tokens at all (`normaliser`).

    Args:
        tokens: action tokens of each kept episode.
        weighting: one of `WEIGHTINGS`.

    Raises:
        ConfigError: any other weighting.
    """
    if weighting in (BY_TOKEN, CONSTANT):
        return [1.0] * len(tokens)
    if weighting == BY_EPISODE:
        mean = sum(tokens) / max(len(tokens), 1)
        return [mean / own for own in tokens]
    raise ConfigError(f"no weighting {weighting!r}", where="loss.weighting", remedy=f"use {', '.join(WEIGHTINGS)}")


def normaliser(tokens: Sequence[int], weighting: str, episode_tokens: int) -> float:
    """What the weighted sum over the tokens of the kept episodes is divided by.

    The weighted token count, or with ``constant`` weighting a constant an episode (Dr. GRPO, Liu et al., 2025,
    arXiv:2503.20783), so that neither the length of an episode nor that of its companions changes its tokens' weight.

    Args:
        tokens: action tokens of each kept episode.
        weighting: one of `WEIGHTINGS`.
        episode_tokens: that constant; used with ``constant`` only.
    """
    if weighting == CONSTANT:
        return float(len(tokens) * episode_tokens)
    return float(sum(own * weight for own, weight in zip(tokens, episode_weights(tokens, weighting), strict=True)))


def _check(inputs: LossInputs, objective: Objective) -> None:
    if objective.kl_beta and inputs.anchor_logp_RT is None:
        raise ValueError("a KL term needs anchor_logp_RT")
    if objective.entropy_bonus and inputs.entropy_RT is None:
        raise ValueError("an entropy bonus needs entropy_RT")
    shape = tuple(inputs.new_logp_RT.shape)
    for name in ("old_logp_RT", "mask_RT", "anchor_logp_RT", "entropy_RT"):
        other = getattr(inputs, name)
        if other is not None and tuple(other.shape) != shape:
            raise ValueError(f"new_logp_RT has shape {shape} but {name} has {tuple(other.shape)}")
    for name in ("advantage_R", "weight_R"):
        if (other := tuple(getattr(inputs, name).shape)) != shape[:1]:
            raise ValueError(f"new_logp_RT has {shape[0]} rows but {name} has shape {other}")


def _stats(inputs: LossInputs, log_ratio_RT: Tensor, clipped_RT: Tensor, objective: Objective) -> RatioStats:
    log_ratio_N = log_ratio_RT[inputs.mask_RT].double()
    if log_ratio_N.numel() == 0:
        return RatioStats()
    ratio_N = clipped_RT[inputs.mask_RT].double().exp()
    outside_N = (ratio_N < objective.clip_low) | (ratio_N > objective.clip_high)
    return RatioStats(
        tokens=ratio_N.numel(),
        ratio_sum=float(ratio_N.sum()),
        ratio_min=float(ratio_N.min()),
        ratio_max=float(ratio_N.max()),
        outside=int(outside_N.sum()),
        k3_sum=float((log_ratio_N.exp() - 1 - log_ratio_N).sum()),
    )
