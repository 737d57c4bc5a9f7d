"""Are stored rows what the trainer would have sampled: masks, log-probabilities, the gap between two programs.

In: rows and the policy. Out: nothing, or the first row that breaks the promise. Run before any weight moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from vla_rl.errors import IntegrityError, StoppedRun
from vla_rl.rl.drift import log_probabilities
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rollout.records import Row


def check_first(policy: Any, rows: Sequence[Row], settings: UpdateSettings, temperature: float) -> float:
    """Compare the trainer's log-probabilities of sampled rows with the sampler's; the weights are still those that
    sampled.

    Args:
        rows: of this launch, as far as there are any.

    Returns:
        The largest difference in nats; not a number if the policy is broken, which the update itself reports.

    Raises:
        StoppedRun: it is above `settings.max_first_gap`: ratios would measure the difference between two programs.
    """
    batch = rows[: settings.limits.rows]
    live = log_probabilities(policy, batch, temperature=temperature, limits=settings.limits)
    gap = max(float((a - torch.from_numpy(row.logp)).abs().max()) for a, row in zip(live, batch, strict=True))
    if gap > settings.max_first_gap:
        raise StoppedRun(
            f"before any update, trainer and sampler differ by {gap:.3g} nats in a sampled token's log-probability",
            where="loss.max_first_gap",
            remedy="something differs between sampling and scoring: weights, number format, mask or temperature",
        )
    return gap


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
