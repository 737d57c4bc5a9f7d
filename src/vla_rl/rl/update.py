"""One policy update: gradient passes over the rows that teach something, in micro-batches, an AdamW step after each.

In: a policy, its trainable parameters and optimiser, replay rows, the advantage of each episode. Out: changed weights
and an `UpdateResult`. Left out: which rows teach (`lessons`), the loss itself (`loss`), how far the update went
(`drift`), processes that share the passes (`ranks`).

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
from vla_rl.rl.ranks import ALONE, Ranks
from vla_rl.rl.rowchecks import check_rows
from vla_rl.rl.settings import RECORDED, UpdateSettings
from vla_rl.rl.surfaces import NamedParameters, Surface
from vla_rl.rl.updated import UpdateResult, no_update
from vla_rl.rollout.records import EpisodeSpec, Row


def _silent(done: int, total: int) -> None:
    pass


@dataclass
class Sums:
    """What a pass adds up; passes of several processes add up with `+`. The gap is the largest."""

    stats: RatioStats = RatioStats()
    loss: float = 0.0
    gap: float = 0.0
    entropy: float = 0.0
    anchor_k3: float | None = None

    def __add__(self, other: Sums) -> Sums:
        k3 = [value for value in (self.anchor_k3, other.anchor_k3) if value is not None]
        return Sums(
            self.stats + other.stats,
            self.loss + other.loss,
            max(self.gap, other.gap),
            self.entropy + other.entropy,
            sum(k3) if k3 else None,
        )


@dataclass(frozen=True)
class Passes:
    """What all gradient passes of an update came to: sums of the first and the last, the last norm (not a number if
    there is none), how often the weights were moved, and whether micro-batches had to be halved."""

    first: Sums
    last: Sums
    norm: float
    steps: int
    halved: bool


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
    passes: Callable[..., Passes] | None = None,
) -> UpdateResult:
    """`epochs` times: accumulate the gradient of the whole wave, clip it and step once.

    A gradient that is not finite skips the step; so does a loss that is not finite, at its first micro-batch. A pass
    that runs out of the accelerator's memory is repeated with the micro-batch halved, which lasts for this update.

    Args:
        anchor: needed if the objective has a KL term.
        progress: told how many rows of how many have gone through, over all passes; may raise to stop the update while
            the first pass is under way, before any weight has moved.
        passes: what computes the passes in place of `gradient_passes`, with the same arguments.

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
    done = (passes or gradient_passes)(
        policy=policy, parameters=parameters, optimizer=optimizer, lessons=lessons, divisor=divisor, settings=settings,
        temperature=temperature, step=step, anchor=anchor, progress=progress,
    )  # fmt: skip
    first, sums = done.first, done.last
    count, finite = sums.stats.tokens, math.isfinite(sums.loss)
    return UpdateResult(
        rows=len(lessons),
        tokens=count,
        loss=sums.loss if finite else None,
        loss_finite=finite,
        finite=done.steps == settings.epochs,
        grad_norm=done.norm if math.isfinite(done.norm) else None,
        step_skipped=done.steps < settings.epochs,
        ratios=sums.stats.summary(),
        rollout_gap=first.gap if first.stats.tokens else None,
        anchor_k3=_a_token(first.anchor_k3, first.stats.tokens),
        entropy=_a_token(first.entropy, first.stats.tokens),
        chosen_nll=float(np.mean([-lesson.row.logp.astype(np.float64).mean() for lesson in lessons])),
        optimizer_steps=done.steps,
        oom_retries=int(done.halved),
    )


def gradient_passes(
    *,
    policy: Any,
    parameters: NamedParameters,
    optimizer: torch.optim.Optimizer,
    lessons: Sequence[Lesson],
    divisor: float,
    settings: UpdateSettings,
    temperature: float,
    step: int,
    anchor: Anchor | None,
    progress: Callable[[int, int], None] = _silent,
    ranks: Ranks = ALONE,
) -> Passes:
    """All passes over the lessons of this process, with an optimiser step after each.

    Args:
        divisor: of the loss; of the whole wave, whoever has its lessons.
        ranks: the processes that have the others.
    """
    fixed, tensors, limits = Fixed(None, None), [leaf_of(p) for _, p in parameters], settings.limits
    first, sums, norm, steps = Sums(), Sums(), math.nan, 0
    for epoch in range(settings.epochs):
        told = _over_passes(progress, epoch, settings.epochs)

        def one_pass(limits: BatchLimits, epoch: int = epoch, held: Fixed = fixed, told: Any = told) -> Any:
            within = replace(settings, limits=limits)
            held = held if epoch else _fixed(policy, lessons, within, temperature, anchor, ranks)
            return held, accumulate_gradient(policy, lessons, divisor, within, temperature, held, told, ranks)

        (fixed, sums), limits = in_memory(one_pass, optimizer, limits, settings.limits, again=ranks.alone)
        sums = ranks.total(sums)
        finite = math.isfinite(sums.loss)
        norm = math.nan
        if finite:
            norm = float(ranks.whole(torch.nn.utils.clip_grad_norm_(tensors, settings.grad_clip, foreach=False)))
        first = sums if epoch == 0 else first
        if math.isfinite(norm):
            for group in optimizer.param_groups:
                group["lr"] = settings.lr_at(step)
            optimizer.step()
            steps += 1
        optimizer.zero_grad(set_to_none=True)
        if not finite:
            break
    return Passes(first, sums, norm, steps, limits != settings.limits)


def in_memory(
    one_pass: Callable[[BatchLimits], Any],
    optimizer: torch.optim.Optimizer,
    limits: BatchLimits,
    most: BatchLimits,
    *,
    again: bool = True,
) -> tuple[Any, BatchLimits]:
    """What a pass returns, and the limits that it took: `limits`, or if it runs out of memory half of `most`, once.

    Args:
        again: whether it may be tried again.

    Raises:
        torch.OutOfMemoryError: there is nothing left to halve, or it may not be tried.
    """
    try:
        return one_pass(limits), limits
    except torch.OutOfMemoryError:
        if limits != most or most.rows == 1 or not again:
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
    ranks: Ranks = ALONE,
) -> Sums:
    """Backward through every micro-batch; gradients add up in the leaves' `.grad`. Stops at a non-finite loss."""
    sums, lengths = Sums(), [len(lesson.row.bins) for lesson in lessons]
    for part in ranks.rounds(micro_batches(lengths, settings.limits, policy.prompt.length)):
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
        outputs.loss.backward()
        if not ranks.go_on(math.isfinite(sums.loss)):
            return sums
        mask_RT = scores.mask_RT
        sums.stats += outputs.stats
        sums.gap = max(sums.gap, float((scores.logp_RT.detach() - sampled_RT)[mask_RT].abs().max()))
        sums.entropy += float(scores.entropy_RT.detach()[mask_RT].double().sum())
        if outputs.anchor_k3_sum is not None:
            sums.anchor_k3 = (sums.anchor_k3 or 0.0) + outputs.anchor_k3_sum
        progress(part.stop, len(lessons))
    return sums


def _fixed(
    policy: Any,
    lessons: Sequence[Lesson],
    settings: UpdateSettings,
    temperature: float,
    anchor: Anchor | None,
    ranks: Ranks,
) -> Fixed:
    """Passes without gradient, in the very micro-batches of the gradient passes, so that rounding is the same."""

    def scored() -> list[Tensor]:
        rows = [lesson.row for lesson in lessons]
        return log_probabilities(policy, rows, temperature=temperature, limits=settings.limits, ranks=ranks)

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
