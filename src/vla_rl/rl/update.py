"""One policy update: gradient passes over the rows that teach something, in micro-batches, an AdamW step after each.

In: a policy, its trainable parameters and optimiser, replay rows, the advantage of each episode. Out: changed weights
and an `UpdateResult`. Left out: which rows teach (`lessons`), the loss itself (`loss`), how far the update went
(`drift`).

Shapes: R rows of a micro-batch, T tokens.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.logprob import Scores, score_rows
from vla_rl.policy.prompt import Observation
from vla_rl.policy.rowgradients import leaf_of, step_tables
from vla_rl.rl.anchor import Anchor
from vla_rl.rl.drift import log_probabilities
from vla_rl.rl.hostmoments import HOST, HostAdamW
from vla_rl.rl.lessons import BatchLimits, Lesson, micro_batches, select_lessons
from vla_rl.rl.loss import LossInputs, RatioStats
from vla_rl.rl.rowchecks import check_rows
from vla_rl.rl.settings import RECORDED, UpdateSettings
from vla_rl.rl.surfaces import NamedParameters, Surface
from vla_rl.rollout.records import EpisodeSpec, Row


def _silent(done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class UpdateResult:
    """What an update did.

    Attributes:
        rows, tokens: how many went through a gradient pass.
        loss: value of the objective in the last pass (0 on-policy with centred advantages, while the gradient is not);
            None without rows.
        loss_finite: False where a loss was no number.
        finite: False where a loss or gradient was no number, in any pass; the wire `non_finite` judges it.
        grad_norm: total norm before clipping, of the last pass; None without rows or when the loss was not finite.
        step_skipped: the optimiser did not step in some pass: nothing to learn from, or a loss or gradient that was not
            finite.
        ratios: `mean_ratio`, `min_ratio`, `max_ratio`, `clip_fraction`, `approx_kl` of the last pass.
        rollout_gap: largest |trainer - sampler| log-probability over the tokens used, in the first pass.
        anchor_k3: mean k3 estimate of KL(live || anchor) over those tokens, before the update; None without a KL term.
        entropy: mean entropy a token in nats, under the grammar mask and temperature, in the first pass.
        chosen_nll: mean over rows of the row's mean sampled -log-probability at rollout time.
        rolled_back: the update went too far and was undone.
        optimizer_steps: how often the weights were moved; fewer than the passes if some were skipped.
        oom_retries: gradient passes that ran out of memory and were repeated in halved micro-batches; 0 or 1.
    """

    rows: int
    tokens: int
    loss: float | None
    loss_finite: bool
    finite: bool
    grad_norm: float | None
    step_skipped: bool
    ratios: dict[str, float | None]
    rollout_gap: float | None
    anchor_k3: float | None
    entropy: float | None
    chosen_nll: float | None
    optimizer_steps: int
    rolled_back: bool = False
    oom_retries: int = 0

    @property
    def moved(self) -> bool:
        """Whether the weights are others than before."""
        return self.optimizer_steps > 0 and not self.rolled_back


def no_update() -> UpdateResult:
    """The result of a step that has no update."""
    return UpdateResult(0, 0, None, True, True, None, True, RatioStats().summary(), None, None, None, None, 0)


@dataclass
class _Sums:
    stats: RatioStats = RatioStats()
    loss: float = 0.0
    gap: float = 0.0
    entropy: float = 0.0
    anchor_k3: float | None = None


@dataclass(frozen=True)
class Fixed:
    """What stays the same while the weights move, for every lesson: old and anchor log-probabilities; None where the
    live pass stands for the old one, or where there is no KL term."""

    old: list[Tensor] | None
    anchor: list[Tensor] | None


def build_optimizer(parameters: NamedParameters, optim: Any, surface: Surface) -> torch.optim.AdamW:
    """AdamW over the surface, without fused or foreach kernels (their temporaries double the peak on a large surface).
    Of token tables it holds the rows that can get a gradient (`vla_rl.policy.rowgradients`).

    Raises:
        ConfigError: weight decay on a surface that must leave some rows alone.
    """
    if optim.weight_decay and not surface.allows_decay:
        raise ConfigError(
            f"weight decay {optim.weight_decay} would move rows that {type(surface).__name__} promises to leave alone",
            where="optim.weight_decay",
            remedy="use optim.weight_decay=0 with this surface",
        )
    kind = HostAdamW if optim.moments == HOST else torch.optim.AdamW
    optimizer = kind(
        [leaf_of(parameter) for _, parameter in parameters],
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        foreach=False,
        fused=False,
    )
    step_tables(optimizer, [parameter for _, parameter in parameters])
    return optimizer


def grpo_update(
    *,
    policy: Any,
    parameters: NamedParameters,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    advantages: Mapping[EpisodeSpec, float | tuple[float, ...]],
    settings: UpdateSettings,
    temperature: float,
    step: int,
    anchor: Anchor | None = None,
    progress: Callable[[int, int], None] = _silent,
) -> UpdateResult:
    """`epochs` times: accumulate the gradient of the whole wave, clip it and step once.

    A gradient that is not finite skips the step; so does a loss that is not finite, at its first micro-batch. A pass
    that runs out of the accelerator's memory is repeated with the micro-batch halved, which lasts for this update.

    Args:
        anchor: needed if the objective has a KL term.
        progress: told how many rows of how many have gone through, over all passes; may raise to stop the update while
            the first pass is under way, before any weight has moved.

    Raises:
        IntegrityError: a stored legal mask differs from the one recomputed, or a stored log-probability is not finite.
    """
    idle = bool(settings.objective.kl_beta or settings.objective.entropy_bonus)
    lessons, divisor = select_lessons(
        rows, advantages, weighting=settings.weighting, episode_tokens=settings.episode_tokens, idle_rows=idle
    )
    optimizer.zero_grad(set_to_none=True)
    if not lessons:
        return no_update()
    check_rows(policy, [lesson.row for lesson in lessons])
    fixed, tensors, limits = Fixed(None, None), [leaf_of(p) for _, p in parameters], settings.limits
    first, sums, norm, steps = _Sums(), _Sums(), math.nan, 0
    for epoch in range(settings.epochs):
        told = _over_passes(progress, epoch, settings.epochs)

        def one_pass(limits: BatchLimits, epoch: int = epoch, held: Fixed = fixed, told: Any = told) -> Any:
            within = replace(settings, limits=limits)
            held = held if epoch else _fixed(policy, lessons, within, temperature, anchor)
            return held, accumulate_gradient(policy, lessons, divisor, within, temperature, held, told)

        (fixed, sums), limits = in_memory(one_pass, optimizer, limits, settings.limits)
        finite = math.isfinite(sums.loss)
        norm = float(torch.nn.utils.clip_grad_norm_(tensors, settings.grad_clip, foreach=False)) if finite else math.nan
        first = sums if epoch == 0 else first
        if math.isfinite(norm):
            for group in optimizer.param_groups:
                group["lr"] = settings.lr_at(step)
            optimizer.step()
            steps += 1
        optimizer.zero_grad(set_to_none=True)
        if not finite:
            break
    count, finite = sums.stats.tokens, math.isfinite(sums.loss)
    return UpdateResult(
        rows=len(lessons),
        tokens=count,
        loss=sums.loss if finite else None,
        loss_finite=finite,
        finite=steps == settings.epochs,
        grad_norm=norm if math.isfinite(norm) else None,
        step_skipped=steps < settings.epochs,
        ratios=sums.stats.summary(),
        rollout_gap=first.gap if first.stats.tokens else None,
        anchor_k3=_a_token(first.anchor_k3, first.stats.tokens),
        entropy=_a_token(first.entropy, first.stats.tokens),
        chosen_nll=float(np.mean([-lesson.row.logp.astype(np.float64).mean() for lesson in lessons])),
        optimizer_steps=steps,
        oom_retries=int(limits != settings.limits),
    )


def in_memory(
    one_pass: Callable[[BatchLimits], Any], optimizer: torch.optim.Optimizer, limits: BatchLimits, most: BatchLimits
) -> tuple[Any, BatchLimits]:
    """What a pass returns, and the limits that it took: `limits`, or if it runs out of memory half of `most`, once.

    Raises:
        torch.OutOfMemoryError: there is nothing left to halve.
    """
    try:
        return one_pass(limits), limits
    except torch.OutOfMemoryError:
        if limits != most or most.rows == 1:
            raise
    # Only here, behind the handler, is nothing of the failed pass referred to any more.
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    return one_pass(most.halved()), most.halved()


def accumulate_gradient(
    policy: Any,
    lessons: Sequence[Lesson],
    divisor: float,
    settings: UpdateSettings,
    temperature: float,
    fixed: Fixed,
    progress: Callable[[int, int], None] = _silent,
) -> _Sums:
    """Backward through every micro-batch; gradients add up in the leaves' `.grad`. Stops at a non-finite loss."""
    sums = _Sums()
    for part in micro_batches([len(lesson.row.bins) for lesson in lessons], settings.limits, policy.prompt.length):
        batch = lessons[part]
        scores = score_rows(
            policy,
            [Observation(lesson.row.frames, lesson.row.state_deg) for lesson in batch],
            [lesson.row.bins for lesson in batch],
            temperature,
        )
        sampled_RT = _padded([torch.from_numpy(lesson.row.logp) for lesson in batch], scores.logp_RT)
        inputs = _inputs(batch, scores, sampled_RT, divisor, settings, fixed, part)
        outputs = settings.token_loss(inputs, settings.objective)
        sums.loss += float(outputs.loss.detach())
        if not math.isfinite(sums.loss):
            return sums
        outputs.loss.backward()
        mask_RT = scores.mask_RT
        sums.stats += outputs.stats
        sums.gap = max(sums.gap, float((scores.logp_RT.detach() - sampled_RT)[mask_RT].abs().max()))
        sums.entropy += float(scores.entropy_RT.detach()[mask_RT].double().sum())
        if outputs.anchor_k3_sum is not None:
            sums.anchor_k3 = (sums.anchor_k3 or 0.0) + outputs.anchor_k3_sum
        progress(part.stop, len(lessons))
    return sums


def _fixed(
    policy: Any, lessons: Sequence[Lesson], settings: UpdateSettings, temperature: float, anchor: Anchor | None
) -> Fixed:
    """Passes without gradient, in the very micro-batches of the gradient passes, so that rounding is the same."""

    def scored() -> list[Tensor]:
        rows = [lesson.row for lesson in lessons]
        return log_probabilities(policy, rows, temperature=temperature, limits=settings.limits)

    old = anchored = None
    if settings.old_logp == RECORDED:
        old = [torch.from_numpy(lesson.row.logp) for lesson in lessons]
    elif settings.epochs > 1:
        old = scored()
    if settings.objective.kl_beta:
        if anchor is None:
            raise ValueError("an objective with a KL term needs an anchor")
        with anchor.installed():
            anchored = scored()
    return Fixed(old, anchored)


def _inputs(
    batch: Sequence[Lesson],
    scores: Scores,
    sampled_RT: Tensor,
    divisor: float,
    settings: UpdateSettings,
    fixed: Fixed,
    part: slice,
) -> LossInputs:
    new_logp_RT = scores.logp_RT
    device = new_logp_RT.device
    return LossInputs(
        new_logp_RT=new_logp_RT,
        old_logp_RT=new_logp_RT.detach() if fixed.old is None else _padded(fixed.old[part], sampled_RT),
        mask_RT=scores.mask_RT,
        advantage_R=torch.tensor([lesson.advantage for lesson in batch], dtype=torch.float64, device=device),
        weight_R=torch.tensor([lesson.weight for lesson in batch], dtype=torch.float64, device=device),
        normaliser=divisor,
        anchor_logp_RT=None if fixed.anchor is None else _padded(fixed.anchor[part], sampled_RT),
        entropy_RT=scores.entropy_RT if settings.objective.entropy_bonus else None,
    )


def _padded(values: Sequence[Tensor], like_RT: Tensor) -> Tensor:
    """Ragged rows as a zero-padded tensor of the shape, type and device of `like_RT`."""
    padded_RT = torch.zeros_like(like_RT, requires_grad=False)
    for index, value in enumerate(values):
        padded_RT[index, : len(value)] = value.to(padded_RT)
    return padded_RT


def _over_passes(progress: Callable[[int, int], None], done_passes: int, passes: int) -> Callable[[int, int], None]:
    """Progress of one pass as progress of all of them."""
    return lambda done, total: progress(done_passes * total + done, passes * total)


def _a_token(total: float | None, tokens: int) -> float | None:
    return total / tokens if total is not None and tokens else None
