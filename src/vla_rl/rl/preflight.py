"""Proof, before the first wave, that the run can finish: a fitting sampler, a dry update, a canary, disk room.

In: the assembled parts of a run. Out: figures or an error; weights, moments and gradients are as before. Seconds on a
CPU.
Left out: memory plans and machine checks beyond the run's own directory.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vla_rl.errors import ConfigError, MachineError, RolloutError, StoppedRun
from vla_rl.policy.heads import check_token_head
from vla_rl.policy.prompt import Observation
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.policy.sampler import REFERENCE
from vla_rl.rl.device import GIB
from vla_rl.rl.lessons import BatchLimits, Lesson
from vla_rl.rl.ranks import ALONE, Ranks
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.snapshot import Snapshot
from vla_rl.rl.surfaces import NamedParameters
from vla_rl.rl.update import Fixed, accumulate_gradient, in_memory
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.records import EpisodeSpec, Row
from vla_rl.rollout.store import row_bytes


def check_sampling(policy: Any, sampler: Any, steps: int) -> None:
    """Updates need actions that were drawn token by token.

    Raises:
        ConfigError: the policy acts with its flow head, or the sampler decodes greedily outside the grammar.
    """
    check_token_head(getattr(policy, "head", None), "the trainer")
    if steps and getattr(sampler, "mode", None) == REFERENCE:
        raise ConfigError(
            "reference decoding is greedy and leaves the grammar; it cannot be trained on",
            where="sampler.mode",
            remedy="use sampler.mode=grammar_masked",
        )


def set_passes(policy: Any, optim: Any) -> None:
    """Tell the policy how its teacher-forced passes multiply, and what they keep for a backward pass.

    Args:
        optim: `OptimConfig`; its `precision` and `recompute` count.

    Raises:
        ConfigError: its kind of network keeps everything.
    """
    if optim.recompute and not policy.adapter.can_recompute:
        raise ConfigError(
            "only networks in the Molmo2 layout compute their layers again in a backward pass",
            where="optim.recompute",
            remedy="use optim.recompute=false, and smaller micro-batches if memory is short",
        )
    policy.recompute, policy.mixed = optim.recompute, optim.precision == "bfloat16"


def render_canary(pool: Pool, seed: int) -> Observation:
    """Reset one environment and return what it shows.

    Raises:
        MachineError: rendering is impossible here.
        RolloutError: the environment was lost or showed garbage.
    """
    result = pool.reset([(0, seed)])[0]
    if result.observation is None:
        raise RolloutError(f"the first environment cannot be reset: {result.lost}", where="render canary")
    return result.observation


def dry_update(
    policy: Any,
    parameters: NamedParameters,
    optimizer: torch.optim.Optimizer,
    settings: UpdateSettings,
    temperature: float,
    observation: Observation,
    ranks: Ranks = ALONE,
) -> int:
    """Forward, backward and optimiser step on the longest possible row, then put the weights back.

    On an accelerator a whole micro-batch of such rows is used, because peak memory is the question there; on a CPU one
    row shows what there is to show. Call it while the optimiser has no state.

    Returns:
        Tokens of the longest row.

    Raises:
        StoppedRun: the loss or a gradient is not finite.
        torch.OutOfMemoryError: it does not fit, also in half the micro-batch, as for an update.
    """
    row, before = longest_row(policy, observation), Snapshot(parameters, optimizer)

    def one_pass(limits: BatchLimits) -> Any:
        rows = limits.rows if str(policy.device).startswith("cuda") else 1
        anchored = [torch.from_numpy(row.logp)] * rows if settings.objective.kl_beta else None
        lessons, tokens, fixed = [Lesson(row, 1.0, 1.0)] * rows, float(rows * len(row.bins)), Fixed(None, anchored)
        within = replace(settings, limits=limits)
        return accumulate_gradient(policy, lessons, tokens, within, temperature, fixed, ranks=ranks)

    sums, _ = in_memory(one_pass, optimizer, settings.limits, settings.limits, again=ranks.alone)
    sums, whole = ranks.total(sums), ranks.whole
    gradients = {name: leaf_of(parameter).grad for name, parameter in parameters}
    broken = [n for n, grad in gradients.items() if grad is not None and not bool(whole(torch.isfinite(grad).all()))]
    if broken or not np.isfinite(sums.loss):
        raise StoppedRun(
            "a dry update on the longest possible row gives a loss or gradient that is not finite",
            where=broken[0] if np.isfinite(sums.loss) else "loss",
            remedy="check the checkpoint's weights and the temperature; nothing has been trained yet",
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    before.put_back()
    return len(row.bins)


def check_disk(
    path: Path, policy: Any, parameters: NamedParameters, observation: Observation, *, rows: int, checkpoints: int
) -> int:
    """Compare free space with the worst case of the run's own files.

    Args:
        path: the run directory.
        rows: replay rows on disk at the same time.
        checkpoints: checkpoints on disk at the same time.

    Returns:
        Bytes needed.

    Raises:
        MachineError: too little room.
    """
    sizes = disk_bytes(policy, parameters, observation, rows=rows, waves=1, checkpoints=checkpoints)
    needed, free = sizes["waves"] + sizes["checkpoints"], shutil.disk_usage(path).free
    if free < needed:
        raise MachineError(
            f"the run may need {needed / GIB:.2f} GiB of disk and {free / GIB:.2f} GiB are free",
            where=str(path),
            remedy="free some space, choose another run.dir, or lower checkpoint.keep, checkpoint.every or geometry",
        )
    return needed


def disk_bytes(
    policy: Any, parameters: NamedParameters, observation: Observation, *, rows: int, waves: int, checkpoints: int
) -> dict[str, int]:
    """Bytes of the run's own files at worst: `wave` of `rows` longest rows, `waves` of them that lie there at a time,
    and `checkpoints` with weights and two moments each, of token tables those of the rows that have some.

    Args:
        rows: of a wave in which every episode is as long as it can be.
    """
    cameras, image_px = observation.frames.shape[:2]
    wave = rows * row_bytes(image_px, cameras, policy.grammar.total, policy.vocabulary)
    one = sum(p.nbytes + 2 * leaf_of(p).nbytes for _, p in parameters)
    return {"wave": wave, "waves": waves * wave, "checkpoint": one, "checkpoints": checkpoints * one}


def longest_row(policy: Any, observation: Observation) -> Row:
    """The stream of most tokens that the grammar allows: every bin of length 1."""
    shortest = int(np.flatnonzero(policy.grammar.lengths_V == 1)[0])
    bins = np.full(policy.grammar.total, shortest, dtype=np.int16)
    return Row(
        spec=EpisodeSpec(0),
        replan=0,
        frames=observation.frames,
        state_deg=observation.state_deg,
        bins=bins,
        logp=np.zeros(len(bins), dtype=np.float32),
        legal_packed=policy.grammar.packed_masks(bins),
        rng_key=(0, 0, 0, 0),
        policy_digest="",
    )
