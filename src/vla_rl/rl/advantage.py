"""Group-relative advantages: how much better an episode did than the other draws of its seed.

In: one group id, one reward and one outcome an episode, in any order. Out: one advantage an episode, and what became of
each group. Four estimators, with r the rewards of a group's scorable episodes, all deviations those of a population
(ddof 0) and no epsilon, because groups without spread are dropped instead:

- ``zscore``: (r - mean) / std, as in GRPO (Shao et al., 2024, arXiv:2402.03300, section 4.1);
- ``leave_one_out``: r_i minus the mean of the others, as in RLOO (Ahmadian et al., 2024, arXiv:2402.14740, eq. 6);
- ``mean_only``: r - mean, as in Dr. GRPO (Liu et al., 2025, arXiv:2503.20783): hard and easy seeds weigh by spread;
- ``batch_scaled``: (r - mean) / std of all rewards of the kept groups of the wave (Liu et al., 2025, arXiv:2508.08221).

Left out: how advantages weigh tokens (`loss`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vla_rl.errors import ConfigError
from vla_rl.seeds import stream

ZSCORE, LEAVE_ONE_OUT, MEAN_ONLY, BATCH_SCALED = ESTIMATORS = (
    "zscore", "leave_one_out", "mean_only", "batch_scaled"
)  # fmt: skip
ALONE, SPREAD, RATE = DROPPED = ("unscorable", "spread", "success_rate")


@dataclass(frozen=True)
class GroupRule:
    """What makes an advantage of a reward, and which groups teach.

    Attributes:
        draws: episodes that every group must have.
        estimator: one of `ESTIMATORS`.
        min_group_std: groups whose spread is smaller than this, or is 0, are dropped.
        clip: advantages are clipped to +-clip; None leaves them.
        min_success_rate, max_success_rate: groups whose share of successes is not strictly between the two are dropped
            (DAPO's filter is 0 and 1); None leaves that side open. In units of a rate, whatever the reward's scale.
    """

    draws: int
    estimator: str = ZSCORE
    min_group_std: float = 0.05
    clip: float | None = None
    min_success_rate: float | None = None
    max_success_rate: float | None = None

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise ConfigError(
                f"a group of {self.draws} draws has no spread to learn from",
                where="geometry.draws",
                remedy="use at least 2 draws per seed; 8 is usual",
            )
        if self.estimator not in ESTIMATORS:
            raise ConfigError(
                f"no estimator {self.estimator!r}", where="geometry.advantage", remedy=f"use {', '.join(ESTIMATORS)}"
            )

    def admits(self, rate: float) -> bool:
        """Whether a group with this share of successes passes the filter by success rate."""
        low, high = self.min_success_rate, self.max_success_rate
        return (low is None or rate > low) and (high is None or rate < high)


@dataclass(frozen=True)
class Group:
    """One group of a wave.

    Attributes:
        id: the environment seed that its episodes share.
        size: episodes in the group.
        unscorable: episodes without a finite reward; they take no part and get advantage 0.
        mean: mean reward of the scorable episodes, None if there are none.
        std: their population standard deviation, None if there are none.
        success_rate: share of successes among them, None if there are none.
        dropped: None for a group that teaches; else the first of `DROPPED` that applies: fewer than two scorable
            episodes, too little spread, a success rate that the filter excludes.
    """

    id: int
    size: int
    unscorable: int
    mean: float | None
    std: float | None
    success_rate: float | None
    dropped: str | None

    @property
    def kept(self) -> bool:
        """Whether the group teaches anything."""
        return self.dropped is None


@dataclass(frozen=True)
class Advantages:
    """Advantages in episode order (0 for episodes that do not count), whether each counts, and the groups by id.

    Attributes:
        replans: the advantage of every replan, if credit goes by replan (`credit`); None if the episode's stands on all
            of them.
    """

    values: tuple[float, ...]
    kept: tuple[bool, ...]
    groups: tuple[Group, ...]
    replans: tuple[tuple[float, ...], ...] | None = None

    @property
    def credit(self) -> Sequence[float | tuple[float, ...]]:
        """What each episode's rows are taught with: one number for all of them, or one a replan."""
        return self.values if self.replans is None else self.replans


def group_advantages(
    group_ids: Sequence[int], rewards: Sequence[float | None], successes: Sequence[bool], rule: GroupRule
) -> Advantages:
    """Advantages inside groups, found by id and never by position.

    Args:
        group_ids: the group (environment seed) of each episode.
        rewards: its reward; None or a non-finite number marks an unscorable episode.
        successes: whether it succeeded.
        rule: estimator and filters.

    Raises:
        ConfigError: a group of another size than `rule.draws`.
    """
    members: dict[int, list[int]] = {}
    for index, group_id in enumerate(group_ids):
        members.setdefault(group_id, []).append(index)
    scorable: dict[int, dict[int, float]] = {}
    groups = []
    for group_id, indices in sorted(members.items()):
        if len(indices) != rule.draws:
            raise ConfigError(
                f"group {group_id} has {len(indices)} episodes, not {rule.draws}", where="the wave's group ids"
            )
        own = {i: float(r) for i in indices if (r := rewards[i]) is not None and math.isfinite(r)}
        scorable[group_id] = own
        groups.append(_group(group_id, own, [successes[i] for i in own], rule))
    kept_groups = [group for group in groups if group.kept]
    scale = float(np.std([r for group in kept_groups for r in scorable[group.id].values()])) if kept_groups else 1.0
    values, kept = [0.0] * len(rewards), [False] * len(rewards)
    for group in kept_groups:
        own = scorable[group.id]
        for index, value in zip(own, _estimates(np.array(list(own.values())), group, rule, scale), strict=True):
            values[index], kept[index] = value, True
    return Advantages(tuple(values), tuple(kept), tuple(groups))


def shuffled(advantages: Advantages, key: tuple[int, ...]) -> Advantages:
    """The same advantages, dealt at random to the episodes that count: a control from which nothing can be learned.

    Args:
        key: of the random stream, e.g. first training seed and step.
    """
    counted = [index for index, kept in enumerate(advantages.kept) if kept]
    values = list(advantages.values)
    for index, source in zip(counted, stream("shuffle-advantages", *key).permutation(counted), strict=True):
        values[index] = advantages.values[source]
    if advantages.replans is None:
        return replace(advantages, values=tuple(values))
    dealt = [value for index in counted for value in advantages.replans[index]]
    deck = iter([dealt[i] for i in stream("shuffle-replans", *key).permutation(len(dealt))])
    replans = tuple(
        tuple(next(deck) for _ in own) if kept else own
        for own, kept in zip(advantages.replans, advantages.kept, strict=True)
    )
    return replace(advantages, values=tuple(values), replans=replans)


def success_share(values: Sequence[float], successes: Sequence[bool]) -> float | None:
    """Share of the positive advantage that stands on successful episodes; None when there is none.

    Near 1 the update imitates successes; near 0 it chases the dense part of the reward.
    """
    positive = [max(value, 0.0) for value in values]
    total = sum(positive)
    return sum(p for p, success in zip(positive, successes, strict=True) if success) / total if total > 0 else None


def _group(group_id: int, own: dict[int, float], successes: list[bool], rule: GroupRule) -> Group:
    """What becomes of a group with these rewards of its scorable episodes."""
    group = Group(group_id, rule.draws, rule.draws - len(own), None, None, None, ALONE)
    if not own:
        return group
    numbers, rate = np.array(list(own.values()), dtype=np.float64), sum(successes) / len(successes)
    # The mean of equal floats can differ from them in the last bit: test for spread by range, not by std.
    mean, std = float(numbers.mean()), float(numbers.std()) if np.ptp(numbers) > 0 else 0.0
    dropped = None
    if len(own) < 2:
        dropped = ALONE
    elif std == 0 or std < rule.min_group_std:
        dropped = SPREAD
    elif not rule.admits(rate):
        dropped = RATE
    return replace(group, mean=mean, std=std, success_rate=rate, dropped=dropped)


def _estimates(rewards_N: np.ndarray, group: Group, rule: GroupRule, scale: float) -> list[float]:
    """Advantages of a kept group's scorable episodes; `scale` is the wave's."""
    assert group.mean is not None and group.std is not None
    if rule.estimator == LEAVE_ONE_OUT:
        others_N = (rewards_N.sum() - rewards_N) / (len(rewards_N) - 1)
        values_N = rewards_N - others_N
    else:
        divisor = {ZSCORE: group.std, MEAN_ONLY: 1.0, BATCH_SCALED: scale}[rule.estimator]
        values_N = (rewards_N - group.mean) / divisor
    if rule.clip is not None:
        values_N = np.clip(values_N, -rule.clip, rule.clip)
    return values_N.tolist()
