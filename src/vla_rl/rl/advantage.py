"""Group-relative advantages: z-scores of the rewards inside each group of draws of one seed.

In: one group id and one reward an episode, in any order. Out: one advantage an episode, and what became of each group.
``A = (r - mean) / std`` with the population std (ddof 0), as in GRPO (Shao et al., 2024, arXiv:2402.03300, section
4.1), without an epsilon because groups without spread are dropped instead. Left out: how advantages weigh tokens
(`loss`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vla_rl.errors import ConfigError


@dataclass(frozen=True)
class Group:
    """One group of a wave.

    Attributes:
        id: the environment seed that its episodes share.
        size: episodes in the group.
        unscorable: episodes without a finite reward; they take no part and get advantage 0.
        mean: mean reward of the scorable episodes, None if there are none.
        std: their population standard deviation, None if there are none.
        kept: whether the group teaches anything.
    """

    id: int
    size: int
    unscorable: int
    mean: float | None
    std: float | None
    kept: bool


@dataclass(frozen=True)
class Advantages:
    """Advantages in episode order (0 for episodes that do not count), whether each counts, and the groups by id."""

    values: tuple[float, ...]
    kept: tuple[bool, ...]
    groups: tuple[Group, ...]


def group_advantages(
    group_ids: Sequence[int],
    rewards: Sequence[float | None],
    *,
    draws: int,
    min_group_std: float,
    clip: float | None,
) -> Advantages:
    """Z-scores inside groups, found by id and never by position.

    Args:
        group_ids: the group (environment seed) of each episode.
        rewards: its reward; None or a non-finite number marks an unscorable episode.
        draws: episodes that every group must have.
        min_group_std: groups whose spread is smaller than this, or is 0, are dropped.
        clip: advantages are clipped to +-clip; None leaves them.

    Raises:
        ConfigError: `draws` below 2 (a z-score of one number is nothing), or a group of another size.
    """
    if draws < 2:
        raise ConfigError(
            f"a group of {draws} draws has no spread to learn from",
            where="geometry.draws",
            remedy="use at least 2 draws per seed; 8 is usual",
        )
    members: dict[int, list[int]] = {}
    for index, group_id in enumerate(group_ids):
        members.setdefault(group_id, []).append(index)
    values, kept = [0.0] * len(rewards), [False] * len(rewards)
    groups = []
    for group_id, indices in sorted(members.items()):
        if len(indices) != draws:
            raise ConfigError(
                f"group {group_id} has {len(indices)} episodes, not {draws}", where="the wave's group ids"
            )
        group, scores = _score(group_id, {i: rewards[i] for i in indices}, min_group_std, clip)
        groups.append(group)
        for index, value in scores.items():
            values[index], kept[index] = value, True
    return Advantages(tuple(values), tuple(kept), tuple(groups))


def _score(
    group_id: int, rewards: dict[int, float | None], min_group_std: float, clip: float | None
) -> tuple[Group, dict[int, float]]:
    """The group's summary, and the advantages of its scorable episodes if it is kept."""
    scorable = {i: float(r) for i, r in rewards.items() if r is not None and math.isfinite(r)}
    missing = len(rewards) - len(scorable)
    if not scorable:
        return Group(group_id, len(rewards), missing, None, None, False), {}
    numbers = np.array(list(scorable.values()), dtype=np.float64)
    # The mean of equal floats can differ from them in the last bit: test for spread by range, not by std.
    mean, std = float(numbers.mean()), float(numbers.std()) if np.ptp(numbers) > 0 else 0.0
    kept = std > 0 and std >= min_group_std
    z_scores = {i: (r - mean) / std for i, r in scorable.items()} if kept else {}
    if clip is not None:
        z_scores = {i: min(max(z, -clip), clip) for i, z in z_scores.items()}
    return Group(group_id, len(rewards), missing, mean, std, kept), z_scores
