"""One policy update: a single gradient pass over the rows that teach something, in micro-batches, and one AdamW step.

In: a policy, its trainable parameters and optimiser, replay rows, the advantage of each episode. Out: changed weights
and an `UpdateResult`. Rows of dropped groups and rows with advantage 0 are skipped: their gradient is exactly 0. Rows
are bucketed by token length, which changes the padding but not the gradient. Left out: KL penalties, several epochs a
wave.

Shapes: R rows of a micro-batch, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_rl.errors import ConfigError, IntegrityError
from vla_rl.policy.logprob import Scores, score_rows
from vla_rl.policy.prompt import Observation
from vla_rl.rl.loss import LossInputs, RatioStats, episode_weights, grpo_loss
from vla_rl.rl.surfaces import NamedParameters, Surface
from vla_rl.rollout.records import EpisodeSpec, Row


@dataclass(frozen=True)
class UpdateSettings:
    """Constants of an update; names and meanings as in the `loss` and `optim` configuration.

    `old_logp`: "recompute" takes the old log-probabilities from the trainer's own forward pass. With one gradient pass
    a wave that is the live pass itself, so the ratio is exactly 1 and clipping is inactive by design; "rollout" takes
    what the sampler stored.
    """

    clip_low: float
    clip_high: float
    weighting: str
    old_logp: str
    lr: float
    warmup_steps: int
    grad_clip: float
    microbatch_rows: int

    @classmethod
    def of(cls, loss: Any, optim: Any) -> UpdateSettings:
        """From a `LossConfig` and an `OptimConfig` (vla_rl.config.schema).

        Raises:
            ConfigError: an unknown `old_logp` or `weighting`, or a micro-batch of no rows.
        """
        if loss.old_logp not in ("recompute", "rollout"):
            raise ConfigError(
                f"no old_logp {loss.old_logp!r}", where="loss.old_logp", remedy="use recompute or rollout"
            )
        if optim.microbatch_rows < 1:
            raise ConfigError(f"a micro-batch of {optim.microbatch_rows} rows", where="optim.microbatch_rows")
        episode_weights([1], loss.weighting)
        return cls(
            loss.clip_low, loss.clip_high, loss.weighting, loss.old_logp,
            optim.lr, optim.warmup_steps, optim.grad_clip, optim.microbatch_rows,
        )  # fmt: skip

    def lr_at(self, step: int) -> float:
        """Learning rate of update `step` (from 1): a linear rise over the warm-up, then constant."""
        return self.lr * min(1.0, step / self.warmup_steps) if self.warmup_steps > 0 else self.lr


@dataclass(frozen=True)
class UpdateResult:
    """What an update did.

    Attributes:
        rows, tokens: how many went through the gradient pass.
        loss: value of the objective (0 on-policy with centred advantages, while the gradient is not); None without
            rows.
        loss_finite: False stops the run.
        grad_norm: total norm before clipping; None without rows or when the loss was not finite.
        step_skipped: the optimiser did not step: nothing to learn from, or a loss or gradient that was not finite.
        ratios: `mean_ratio`, `min_ratio`, `max_ratio`, `clip_fraction`, `approx_kl`.
        rollout_gap: largest |trainer - sampler| log-probability over the tokens used.
        entropy: mean entropy a token in nats, under the grammar mask and temperature.
        chosen_nll: mean over rows of the row's mean sampled -log-probability at rollout time.
    """

    rows: int
    tokens: int
    loss: float | None
    loss_finite: bool
    grad_norm: float | None
    step_skipped: bool
    ratios: dict[str, float | None]
    rollout_gap: float | None
    entropy: float | None
    chosen_nll: float | None


@dataclass(frozen=True)
class Lesson:
    """A row with the advantage and the token weight of its episode."""

    row: Row
    advantage: float
    weight: float


@dataclass
class _Sums:
    stats: RatioStats = RatioStats()
    loss: float = 0.0
    gap: float = 0.0
    entropy: float = 0.0


def build_optimizer(parameters: NamedParameters, optim: Any, surface: Surface) -> torch.optim.AdamW:
    """AdamW over the surface, without fused or foreach kernels (their temporaries double the peak on a large surface).

    Raises:
        ConfigError: weight decay on a surface that must leave some rows alone.
    """
    if optim.weight_decay and not surface.allows_decay:
        raise ConfigError(
            f"weight decay {optim.weight_decay} would move rows that {type(surface).__name__} promises to leave alone",
            where="optim.weight_decay",
            remedy="use optim.weight_decay=0 with this surface",
        )
    return torch.optim.AdamW(
        [parameter for _, parameter in parameters],
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        foreach=False,
        fused=False,
    )


def select_lessons(
    rows: Sequence[Row], advantages: Mapping[EpisodeSpec, float], weighting: str
) -> tuple[list[Lesson], float]:
    """The rows that teach something, by token length then key, and the normaliser of the wave.

    Args:
        rows: rows of the wave, any order.
        advantages: advantage of each episode of a kept group; other episodes are absent.
        weighting: see `loss.episode_weights`.

    Returns:
        lessons (rows whose advantage is not 0) and the weighted token count of all rows of kept groups. Rows with
        advantage 0 count in the normaliser, because their gradient is part of the mean.
    """
    tokens: dict[EpisodeSpec, int] = {}
    for row in rows:
        if row.spec in advantages:
            tokens[row.spec] = tokens.get(row.spec, 0) + len(row.bins)
    weights = dict(zip(tokens, episode_weights(list(tokens.values()), weighting), strict=True))
    lessons = [
        Lesson(row, advantages[row.spec], weights[row.spec])
        for row in rows
        if row.spec in advantages and advantages[row.spec] != 0.0
    ]
    lessons.sort(key=lambda x: (len(x.row.bins), x.row.spec.seed, x.row.spec.draw, x.row.replan))
    return lessons, float(sum(tokens[spec] * weights[spec] for spec in tokens))


def grpo_update(
    *,
    policy: Any,
    parameters: NamedParameters,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    advantages: Mapping[EpisodeSpec, float],
    settings: UpdateSettings,
    temperature: float,
    step: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> UpdateResult:
    """Accumulate the gradient of the whole wave, clip it and step once.

    A gradient that is not finite skips the step; so does a loss that is not finite, at its first micro-batch.

    Raises:
        IntegrityError: a stored legal mask differs from the one recomputed, or a stored log-probability is not finite.
    """
    lessons, normaliser = select_lessons(rows, advantages, settings.weighting)
    optimizer.zero_grad(set_to_none=True)
    if not lessons:
        return UpdateResult(0, 0, None, True, None, True, RatioStats().summary(), None, None, None)
    check_rows(policy, [lesson.row for lesson in lessons])
    sums = accumulate_gradient(policy, lessons, normaliser, settings, temperature, progress)
    loss_finite = math.isfinite(sums.loss)
    tensors = [parameter for _, parameter in parameters]
    norm = (
        float(torch.nn.utils.clip_grad_norm_(tensors, settings.grad_clip, foreach=False)) if loss_finite else math.nan
    )
    if math.isfinite(norm):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr_at(step)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    count = sums.stats.tokens
    return UpdateResult(
        rows=len(lessons),
        tokens=count,
        loss=sums.loss if loss_finite else None,
        loss_finite=loss_finite,
        grad_norm=norm if math.isfinite(norm) else None,
        step_skipped=not math.isfinite(norm),
        ratios=sums.stats.summary(),
        rollout_gap=sums.gap,
        entropy=sums.entropy / count if count else None,
        chosen_nll=float(np.mean([-lesson.row.logp.astype(np.float64).mean() for lesson in lessons])),
    )


def accumulate_gradient(
    policy: Any,
    lessons: Sequence[Lesson],
    normaliser: float,
    settings: UpdateSettings,
    temperature: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> _Sums:
    """Backward through every micro-batch; gradients add up in the parameters' `.grad`. Stops at a non-finite loss."""
    sums = _Sums()
    for start in range(0, len(lessons), settings.microbatch_rows):
        batch = lessons[start : start + settings.microbatch_rows]
        scores = score_rows(
            policy,
            [Observation(lesson.row.frames, lesson.row.state_deg) for lesson in batch],
            [lesson.row.bins for lesson in batch],
            temperature,
        )
        sampled_RT = _padded([lesson.row.logp for lesson in batch], scores.logp_RT)
        outputs = grpo_loss(_inputs(batch, scores, sampled_RT, normaliser, settings))
        sums.loss += float(outputs.loss.detach())
        if not math.isfinite(sums.loss):
            return sums
        outputs.loss.backward()
        mask_RT = scores.mask_RT
        sums.stats += outputs.stats
        sums.gap = max(sums.gap, float((scores.logp_RT.detach() - sampled_RT)[mask_RT].abs().max()))
        sums.entropy += float(scores.entropy_RT.detach()[mask_RT].double().sum())
        progress(start + len(batch), len(lessons))
    return sums


def check_rows(policy: Any, rows: Sequence[Row]) -> None:
    """Compare every stored legal mask with the one recomputed from the row's own tokens, bit for bit.

    Raises:
        IntegrityError: naming the first row that differs, or whose log-probabilities are not finite.
    """
    for row in rows:
        where = f"{row.spec.episode_id} replan {row.replan}"
        if not np.isfinite(row.logp).all():
            raise IntegrityError("a stored log-probability is not finite", where=where)
        if not np.array_equal(policy.grammar.packed_masks(row.bins), row.legal_packed):
            raise IntegrityError(
                "the stored legal-token mask differs from the recomputed one",
                where=where,
                remedy="the row was sampled under another codec, or the file is damaged; delete the wave's directory",
            )


def _inputs(
    batch: Sequence[Lesson], scores: Scores, sampled_RT: Tensor, normaliser: float, settings: UpdateSettings
) -> LossInputs:
    new_logp_RT = scores.logp_RT
    device = new_logp_RT.device
    return LossInputs(
        new_logp_RT=new_logp_RT,
        old_logp_RT=new_logp_RT.detach() if settings.old_logp == "recompute" else sampled_RT,
        mask_RT=scores.mask_RT,
        advantage_R=torch.tensor([lesson.advantage for lesson in batch], dtype=torch.float64, device=device),
        weight_R=torch.tensor([lesson.weight for lesson in batch], dtype=torch.float64, device=device),
        normaliser=normaliser,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
    )


def _padded(values: Sequence[np.ndarray], like_RT: Tensor) -> Tensor:
    """Ragged rows as a zero-padded tensor of the shape, type and device of `like_RT`."""
    padded_RT = torch.zeros_like(like_RT, requires_grad=False)
    for index, value in enumerate(values):
        padded_RT[index, : len(value)] = torch.from_numpy(value).to(padded_RT)
    return padded_RT
