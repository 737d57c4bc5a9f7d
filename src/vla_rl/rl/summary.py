"""The rows of `train.jsonl` and `episodes.jsonl`: plain dictionaries from what a step produced.

In: episodes, reward terms, advantages, an `UpdateResult`, times. Out: JSON-able rows with the documented keys; a value
that does not apply is None. Pure functions, no files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vla_rl.rl.advantage import DROPPED, Advantages, success_share
from vla_rl.rl.credit import lone_replans
from vla_rl.rl.drift import Drift
from vla_rl.rl.updated import UpdateResult, no_update
from vla_rl.rl.wires import WaveFacts
from vla_rl.rollout.records import Episode, decode_counts, facts
from vla_rl.rollout.wave import Wave

Terms = Mapping[str, float | None]


@dataclass(frozen=True)
class Evaluation:
    """What an injected evaluation returns.

    Attributes:
        row: its line in `eval.jsonl`; the trainer adds `step` and `wall_s`.
        episodes: its lines in `episodes.jsonl`, see `episode_row`.
    """

    row: dict[str, Any]
    episodes: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class StepCosts:
    """Wall times of a step in seconds (None: did not happen), and what the accelerator was held for."""

    rollout_s: float
    update_s: float
    eval_s: float | None
    vram_gib: float | None
    gpu_h: float | None
    gpu_h_total: float | None


def episode_row(
    phase: str,
    step: int,
    episode: Episode,
    terms: Terms,
    advantage: float | None = None,
    credit: float | tuple[float, ...] | None = None,
) -> dict[str, Any]:
    """One line of `episodes.jsonl`: key, reward with each term as `reward_<term>`, all metrics, counts and wall time.

    Args:
        phase: ``"train"`` or ``"eval"``.
        step: the training step, or the number of updates before an evaluation.
        episode: the finished episode.
        terms: reward terms including `total`.
        advantage: of a training episode; None if its group was dropped.
        credit: what its rows were taught with, see `Advantages.credit`; recorded if it differs from replan to replan.
    """
    rewards = {f"reward_{name}": value for name, value in terms.items() if name != "total"}
    return {
        "phase": phase,
        "step": step,
        "seed": episode.spec.seed,
        "draw": episode.spec.draw,
        "reward": terms["total"],
        **rewards,
        "advantage": advantage,
        "replan_advantages": list(credit) if isinstance(credit, tuple) else None,
        **facts(episode),
        "predict_s": episode.predict_s,
        "wall_s": episode.wall_s,
    }


def episode_rows(step: int, wave: Wave, terms: Sequence[Terms], advantages: Advantages) -> list[dict[str, Any]]:
    """The lines of a training step's episodes; what was not taught has no advantage."""
    standing = zip(wave.episodes, terms, advantages.values, advantages.credit, advantages.kept, strict=True)
    return [
        episode_row("train", step, episode, own, value, credit) if kept else episode_row("train", step, episode, own)
        for episode, own, value, credit, kept in standing
    ]


def train_row(
    step: int,
    wave: Wave,
    terms: Sequence[Terms],
    advantages: Advantages,
    update: UpdateResult,
    drift: Drift | None,
    costs: StepCosts,
    planned_groups: int,
) -> dict[str, Any]:
    """One line of `train.jsonl`, without `save_s`, which is known only after the row is part of the checkpoint.

    A wave without episodes has no outcomes: of demonstrations, or of a wave that was stopped.
    `rows`, `tokens`, ratios, `entropy` and `chosen_nll` are those of the gradient pass; everything else of all
    episodes.
    """
    episodes, known = wave.episodes, wave_facts(wave, terms, advantages)
    metrics = [episode.metrics for episode in episodes]
    played = bool(episodes)
    ticks = sum(m["ticks"] for m in metrics)
    return {
        "step": step,
        "episodes": len(episodes),
        "successes": sum(m["success"] for m in metrics) if played else None,
        "reward_mean": known.reward_mean,
        "median_group_std_cm": known.median_group_std_cm,
        "groups_total": len(advantages.groups),
        "groups_refilled": len(advantages.groups) - planned_groups if played else 0,
        "groups_kept": sum(group.kept for group in advantages.groups),
        "groups_dropped": {reason: sum(g.dropped == reason for g in advantages.groups) for reason in DROPPED},
        "lone_replans": lone_replans([episode.spec.seed for episode in episodes], advantages),
        "mixed_groups_frac": mixed_groups_frac(episodes),
        "success_advantage_share": success_share(advantages.values, [bool(m["success"]) for m in metrics]),
        **update.ratios,
        "anchor_kl": drift.anchor_kl if drift else None,
        "anchor_k3_pre": update.anchor_k3,
        "update_kl": drift.update_kl if drift else None,
        "rolled_back": update.rolled_back,
        "rollout_gap": update.rollout_gap if played else None,
        "loss": update.loss,
        "grad_norm": update.grad_norm,
        "step_skipped": update.step_skipped,
        "chosen_nll": update.chosen_nll,
        "entropy": update.entropy,
        "knockaway_frac": known.knockaway_frac,
        "setback_frac": known.setback_frac,
        "tip_frac": _mean([m["tipped"] for m in metrics]),
        "strikes": known.strikes if played else None,
        "earned_progress_mean_cm": _mean([m["grasped_progress_cm"] for m in metrics]),
        "ungrasped_disp_mean_cm": _mean([m["ungrasped_displacement_cm"] for m in metrics]),
        "oom_retries": update.oom_retries,
        "rows": update.rows,
        "tokens": update.tokens,
        "predict_rounds": wave.predict_rounds,
        "mean_predict_batch": wave.mean_predict_batch,
        "rollout_s": costs.rollout_s,
        "update_s": costs.update_s,
        "eval_s": costs.eval_s,
        "save_s": None,
        "env_steps_per_s": ticks / costs.rollout_s if costs.rollout_s > 0 and played else None,
        "vram_gib": costs.vram_gib,
        "gpu_h": costs.gpu_h,
        "gpu_h_total": costs.gpu_h_total,
        **decode_counts(episodes),
    }


def stopped_row(step: int, finished: int, costs: StepCosts) -> dict[str, Any]:
    """The line of a step that was stopped in its wave: how many episodes are `finished`, and nothing of them, as the
    next launch finds them and goes on."""
    nothing = Wave((), (), costs.rollout_s, 0, 0, None), (), Advantages((), (), ())
    row = train_row(step, *nothing, no_update(), None, costs, planned_groups=0)
    return {**row, "episodes": finished}


def wave_facts(wave: Wave, terms: Sequence[Terms], advantages: Advantages) -> WaveFacts:
    """What is known of a wave before its update; a share that cannot be computed is None."""
    metrics = [episode.metrics for episode in wave.episodes]
    stds = [group.std for group in advantages.groups if group.std is not None]
    return WaveFacts(
        strikes=sum(m["reset_strikes"] for m in metrics),
        median_group_std_cm=statistics.median(stds) if stds else None,
        knockaway_frac=_mean([m["knockaway"] for m in metrics]),
        setback_frac=_mean([m["setback"] for m in metrics]),
        reward_mean=_mean([t["total"] for t in terms if t["total"] is not None and math.isfinite(t["total"])]),
        success_rate=sum(bool(m["success"]) for m in metrics) / len(metrics) if metrics else 0.0,
    )


def mixed_groups_frac(episodes: Sequence[Episode]) -> float | None:
    """Share of groups with at least one success and at least one failure."""
    outcomes: dict[int, set[bool]] = {}
    for episode in episodes:
        outcomes.setdefault(episode.spec.seed, set()).add(bool(episode.metrics["success"]))
    return _mean([len(seen) == 2 for seen in outcomes.values()])


def _mean(values: Sequence[float | bool | None]) -> float | None:
    """Plain mean; None if there is nothing, or if any value is missing (a mean of the rest would flatter)."""
    numbers = [float(value) for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None
