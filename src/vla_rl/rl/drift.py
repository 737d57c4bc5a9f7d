"""How far the policy has moved: from the anchor, and by the last update.

In: replay rows of the wave that the update learned from, the policy after the update, the anchor. Out: mean estimates a
token, measured on the updated policy, so that they do not lag. Rows are a sample across seeds and draws, the same for
the same step. The tokens were drawn by the policy before the update: the estimates are exact in expectation for that
policy and good to first order for the updated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vla_rl.policy.logprob import score_rows
from vla_rl.policy.prompt import Observation
from vla_rl.rl.anchor import Anchor
from vla_rl.rl.lessons import BatchLimits, micro_batches
from vla_rl.rl.loss import KL_ESTIMATORS
from vla_rl.rl.ranks import ALONE, Ranks
from vla_rl.rollout.records import EpisodeSpec, Row
from vla_rl.seeds import stream


@dataclass(frozen=True)
class Drift:
    """Estimates over the tokens of a sample of rows.

    Attributes:
        rows: rows of the sample.
        anchor_kl: mean k3 estimate of KL(updated || anchor); exactly 0 while nothing has moved.
        update_kl: mean k3 estimate of KL(sampled || updated), against the stored log-probabilities.
    """

    rows: int
    anchor_kl: float
    update_kl: float


def sample_rows(rows: Sequence[Row], count: int, step: int) -> list[Row]:
    """`count` rows, or all if there are fewer: seed by seed, from another draw each time round, at any replan.

    Args:
        rows: rows of a wave, any order.
        count: how many.
        step: the update; decides the choice.
    """
    by_seed: dict[int, dict[EpisodeSpec, list[Row]]] = {}
    for row in sorted(rows, key=lambda r: (r.spec.seed, r.spec.draw, r.replan)):
        by_seed.setdefault(row.spec.seed, {}).setdefault(row.spec, []).append(row)
    rng = stream("kl-sample", step)
    queues = []
    for episodes in by_seed.values():
        dealt = [[episode[i] for i in rng.permutation(len(episode))] for episode in episodes.values()]
        dealt = [dealt[i] for i in rng.permutation(len(dealt))]
        longest = max(map(len, dealt))
        queues.append([episode[i] for i in range(longest) for episode in dealt if i < len(episode)])
    longest = max(map(len, queues), default=0)
    return [queue[i] for i in range(longest) for queue in queues if i < len(queue)][:count]


def measure(
    policy: Any, anchor: Anchor, rows: Sequence[Row], *, temperature: float, limits: BatchLimits
) -> Drift | None:
    """The drift over these rows; None without rows.

    Args:
        policy: after the update.
        rows: see `sample_rows`.
        temperature: the sampling temperature.
        limits: of a forward pass.
    """
    if not rows:
        return None
    live = log_probabilities(policy, rows, temperature=temperature, limits=limits)
    with anchor.installed():
        anchored = log_probabilities(policy, rows, temperature=temperature, limits=limits)
    stored_N = torch.cat([torch.from_numpy(row.logp) for row in rows]).double()
    live_N, anchored_N = (torch.cat(logp).double() for logp in (live, anchored))
    k3 = KL_ESTIMATORS["k3"]
    return Drift(len(rows), float(k3(live_N - anchored_N).mean()), float(k3(stored_N - live_N).mean()))


def kl_cost_cm(
    policy: Any,
    anchor: Anchor,
    rows: Sequence[Row],
    *,
    beta: float,
    estimator: str,
    temperature: float,
    limits: BatchLimits,
) -> dict[EpisodeSpec, float]:
    """What an episode's distance to the anchor takes from its reward: `beta` cm a nat, summed over its tokens.

    Args:
        policy: the one that sampled the rows.
        estimator: k1 (unbiased here), k2 or k3.
        temperature, limits: as for `measure`.
    """
    with anchor.installed():
        anchored = log_probabilities(policy, rows, temperature=temperature, limits=limits)
    costs: dict[EpisodeSpec, float] = {}
    for row, logp in zip(rows, anchored, strict=True):
        nats = float(KL_ESTIMATORS[estimator](torch.from_numpy(row.logp).double() - logp.double()).sum())
        costs[row.spec] = costs.get(row.spec, 0.0) + beta * nats
    return costs


@torch.no_grad()
def log_probabilities(
    policy: Any, rows: Sequence[Row], *, temperature: float, limits: BatchLimits, ranks: Ranks = ALONE
) -> list[Tensor]:
    """Log-probabilities float32 [T] of each row's tokens under the policy's present weights, on the CPU, in order."""
    found = []
    for part in ranks.rounds(micro_batches([len(row.bins) for row in rows], limits, policy.prompt.length)):
        batch = rows[part]
        observations = [Observation(row.frames, row.state_deg) for row in batch]
        scores = score_rows(policy, observations, [row.bins for row in batch], temperature)
        logp_RT = scores.logp_RT.cpu()
        found += [logp_RT[index, : len(row.bins)] for index, row in enumerate(batch)]
    return found
