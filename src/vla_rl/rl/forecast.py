"""What a run will need, before it is started: parameters, seconds and what a crash costs.

In: a policy with its surface, constants, and what a probe of two episodes took. Out: frozen records and plain sums.
Left out: memory (`memory`), room on the disk (`preflight`), playing the probe and printing (`cli.plan`).

Seconds of a wave are those of its episodes' environments spread over the workers, and of its predicts at the batch that
a round has. With two groups of slots or more the longer of the two hides the other, as far as there are cores for both;
with one they add up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vla_rl.policy.lora import pairs
from vla_rl.rl.lessons import Lesson
from vla_rl.rl.settings import RECORDED, UpdateSettings
from vla_rl.rl.surfaces import NamedParameters
from vla_rl.rl.update import Fixed, accumulate_gradient
from vla_rl.rollout.records import Row


@dataclass(frozen=True)
class Probe:
    """What a few real episodes took.

    Attributes:
        episodes, successes: how many.
        replans: predicts of all of them; `tokens`: sampled tokens.
        env_s: seconds of their environments' own work.
        predict_row_s: seconds of a predict, a row, at the batch of a round.
        update_row_s: seconds of forward and backward, a row, at the micro-batch.
        score_row_s: seconds of a forward pass, a row.
    """

    episodes: int
    successes: int
    replans: int
    tokens: int
    env_s: float
    predict_row_s: float
    update_row_s: float
    score_row_s: float


def parameter_counts(policy: Any, trainable: NamedParameters) -> dict[str, Any]:
    """Numbers of parameters: `total`, `trainable` (of the tensors that the optimiser holds), and `by_surface`: for each
    surface of this package those tensors, and the parameters in them that can move; `lora` if the policy carries an
    adapter, whose size is its own."""
    added = {name: p for pair in pairs(policy.model) for name, p in pair.named()}
    named = {name: p for name, p in policy.model.named_parameters() if name not in added}
    tables = [p for name, p in named.items() if name in policy.adapter.token_tables]
    text = sum(p.numel() for name, p in named.items() if name.startswith(policy.adapter.text_parameters))
    total = sum(p.numel() for p in named.values())
    rows = policy.vocabulary * sum(p.shape[1] for p in tables)
    pair = sum(p.numel() for p in added.values())
    return {
        "total": total + pair,
        "trainable": sum(p.numel() for _, p in trainable),
        "by_surface": {
            "full": {"tensors": total, "moving": total},
            "text_stack": {"tensors": text, "moving": text},
            "patch_only": {"tensors": sum(p.numel() for p in tables), "moving": rows},
            **({"lora": {"tensors": pair, "moving": pair}} if added else {}),
        },
    }


def update_row_seconds(
    policy: Any, rows: Sequence[Row], settings: UpdateSettings, temperature: float, optimizer: torch.optim.Optimizer
) -> float:
    """Seconds of forward and backward a row, over real rows at the micro-batch; gradients are dropped. The first
    micro-batch is done twice: a first pass allocates."""
    lessons = sorted((Lesson(row, 1.0, 1.0) for row in rows), key=lambda lesson: len(lesson.row.bins))
    fixed = [torch.from_numpy(lesson.row.logp) for lesson in lessons]
    known = Fixed(fixed if settings.old_logp == RECORDED else None, fixed if settings.objective.kl_beta else None)
    tokens = float(sum(len(row.bins) for row in rows))
    for chosen in (lessons[: settings.limits.rows], lessons):
        started = time.perf_counter()
        accumulate_gradient(policy, chosen, tokens, settings, temperature, known)
        if str(policy.device).startswith("cuda"):
            torch.cuda.synchronize()
        taken = time.perf_counter() - started
        optimizer.zero_grad(set_to_none=True)
    return taken / len(lessons)


@dataclass(frozen=True)
class Playing:
    """How a wave is played.

    Attributes:
        workers: environments that move at the same time.
        groups: of slots that take turns; 1 plays in lockstep.
        cores: that environments and predicts share; None if predicts run elsewhere.
    """

    workers: int
    groups: int
    cores: int | None


def step_seconds(
    probe: Probe, playing: Playing, *, episodes: int, settings: UpdateSettings, kl_rows: int, kl_beta: float
) -> dict[str, float]:
    """Seconds of a step: `rollout_s`, `update_s` and both, `step_s`, if every group teaches.

    Args:
        episodes: of a wave.
        kl_rows: rows on which the drift is measured, live and under the anchor.
        kl_beta: of the configuration: the rows of a wave are scored under the anchor, be it for the loss or for the
            reward, and that counts as part of the update.
    """
    rows = episodes * probe.replans / probe.episodes
    rollout_s = wave_seconds(probe, playing, episodes=episodes)
    update_s = update_seconds(probe, rows=rows, settings=settings, kl_rows=kl_rows, kl_beta=kl_beta)
    return {"rollout_s": rollout_s, "update_s": update_s, "step_s": rollout_s + update_s}


def demonstrated_step_seconds(
    probe: Probe, *, rows: int, settings: UpdateSettings, kl_rows: int, kl_beta: float
) -> dict[str, float]:
    """The same of a step that learns from demonstrations: `rollout_s` is the time to score them. Reading and decoding
    them, which is not in it, takes about a millisecond a row."""
    scored_s = rows * probe.score_row_s
    update_s = update_seconds(probe, rows=rows, settings=settings, kl_rows=kl_rows, kl_beta=kl_beta)
    return {"rollout_s": scored_s, "update_s": update_s, "step_s": scored_s + update_s}


def update_seconds(probe: Probe, *, rows: float, settings: UpdateSettings, kl_rows: int, kl_beta: float) -> float:
    """Seconds of an update on so many rows, with what is scored for it; see `step_seconds`."""
    passes_s = rows * probe.update_row_s * settings.epochs
    scored = 2 * min(kl_rows, rows) if kl_rows else 0.0
    scored += rows * (settings.epochs > 1 and settings.old_logp != RECORDED) + rows * bool(kl_beta)
    return passes_s + scored * probe.score_row_s


def wave_seconds(probe: Probe, playing: Playing, *, episodes: int) -> float:
    """Seconds to play so many episodes like those of the probe."""
    env_s = episodes * probe.env_s / probe.episodes
    predict_s = episodes * probe.replans / probe.episodes * probe.predict_row_s
    moving_s = env_s / min(playing.workers, episodes)
    if playing.groups == 1:
        return moving_s + predict_s
    crowded_s = (env_s + predict_s) / playing.cores if playing.cores else 0.0
    return max(moving_s, predict_s / playing.groups if playing.cores else predict_s, crowded_s)


def redo_seconds(*, every: int, rollout_s: float, update_s: float, bitwise: bool) -> dict[str, float]:
    """What a kill costs, `worst_s` and on average (`mean_s`), with a checkpoint every so many updates.

    Episodes are stored, and those of a wave whose weights come back bit for bit are not played again (`bitwise`: on a
    CPU). Elsewhere the waves after the first since the checkpoint are. The worst moment is just before a checkpoint is
    in place: all updates since the last are lost, and no episode that is under way.
    """
    again_s = 0.0 if bitwise else rollout_s
    costs = [lost * update_s + max(0, lost - 1) * again_s for lost in range(1, every + 1)]
    return {"worst_s": costs[-1], "mean_s": math.fsum(costs) / len(costs)}
