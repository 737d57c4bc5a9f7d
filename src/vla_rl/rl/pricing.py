"""From a wave to what its episodes are worth: reward terms, and advantages inside the draws of each seed.

In: a wave, a reward, constants, and where the KL to step 0 is part of the reward, policy and anchor. Out: terms and
`Advantages` in the order of the episodes. Left out: what an advantage weighs per token (`lessons`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vla_rl.config.schema import LossConfig
from vla_rl.rl.advantage import Advantages, group_advantages, shuffled
from vla_rl.rl.anchor import Anchor
from vla_rl.rl.credit import TO_GO, by_replan, check_credit, episode_returns
from vla_rl.rl.drift import kl_cost_cm
from vla_rl.rl.lessons import BatchLimits
from vla_rl.rl.plan import Geometry
from vla_rl.rl.reward import Reward
from vla_rl.rl.settings import IN_REWARD
from vla_rl.rl.summary import Terms
from vla_rl.rollout.wave import Wave


@dataclass(frozen=True)
class KlCost:
    """What a nat of distance to step 0 takes from an episode's reward.

    Attributes:
        policy, anchor: the live policy, and its weights at step 0.
        beta: cm a nat.
        estimator: k1, k2 or k3.
        limits: of a forward pass.
    """

    policy: Any
    anchor: Anchor
    beta: float
    estimator: str
    limits: BatchLimits

    @classmethod
    def of(cls, loss: LossConfig, policy: Any, anchor: Anchor | None, limits: BatchLimits) -> KlCost | None:
        """As configured; None where the reward has no such term."""
        if loss.kl_in != IN_REWARD or not loss.kl_beta:
            return None
        assert anchor is not None, "a KL term needs an anchor"
        return cls(policy, anchor, loss.kl_beta, loss.kl_estimator, limits)


class Pricing:
    """Prices waves.

    Args:
        reward: of an episode.
        geometry: groups, filters and credit.
        kl: a term more of the reward, or None.

    Raises:
        ConfigError: credit by replan of a reward that cannot be spread over an episode.
    """

    def __init__(self, reward: Reward, geometry: Geometry, kl: KlCost | None) -> None:
        check_credit(geometry.credit, reward, kl is not None)
        self._reward, self._geometry, self._kl = reward, geometry, kl

    def advantages(self, step: int, wave: Wave, terms: Sequence[Terms]) -> Advantages:
        """Advantages of the episodes of a wave, from their reward terms."""
        seeds = [episode.spec.seed for episode in wave.episodes]
        advantages = group_advantages(
            seeds,
            [t["total"] for t in terms],
            [bool(episode.metrics["success"]) for episode in wave.episodes],
            self._geometry.rule,
        )
        if self._geometry.credit == TO_GO:
            counted = zip(wave.episodes, advantages.kept, strict=True)
            returns = [episode_returns(episode, self._reward) if kept else () for episode, kept in counted]
            advantages = by_replan(advantages, seeds, returns, self._geometry.rule)
        if self._geometry.shuffle_advantages:
            advantages = shuffled(advantages, (self._geometry.train_seed_base, step))
        return advantages

    def terms(self, wave: Wave) -> list[Terms]:
        """Reward terms of the episodes of a wave."""
        terms: list[Terms] = [self._reward.terms(episode.metrics) for episode in wave.episodes]
        if self._kl is None:
            return terms
        costs = kl_cost_cm(
            self._kl.policy, self._kl.anchor, wave.rows, beta=self._kl.beta, estimator=self._kl.estimator,
            temperature=self._geometry.temperature, limits=self._kl.limits,
        )  # fmt: skip
        return [_less(t, costs[episode.spec]) for t, episode in zip(terms, wave.episodes, strict=True)]


def _less(terms: Terms, cost_cm: float) -> Terms:
    """Reward terms with the KL cost as one more of them."""
    total = terms["total"]
    return {**terms, "kl": -cost_cm, "total": None if total is None else total - cost_cm}
