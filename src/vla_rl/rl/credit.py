"""Credit by replan: each replan answers for the reward from its own first tick on, not for what came before it.

In: the trace of an episode and a reward that can be spread over ticks; then the returns of a wave and its advantages by
episode, which say which groups teach. Out: one advantage a replan: the return from there on, minus the mean over the
group's draws at the same replan, in units of the group's spread (of whole episodes, as the estimator chooses). At
replan 0 that is the episode's own advantage. A replan that only one draw of its group reached has nothing to be
compared with, and gets 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vla_rl.errors import ConfigError
from vla_rl.rl.advantage import BATCH_SCALED, LEAVE_ONE_OUT, ZSCORE, Advantages, GroupRule
from vla_rl.rl.reward import spread
from vla_rl.rollout.records import Episode

EPISODE, TO_GO = CREDITS = ("episode", "to_go")


def check_credit(credit: str, reward: Any, kl_in_reward: bool) -> None:
    """Refuse credit by replan for a reward that only prices whole episodes.

    Raises:
        ConfigError: it does, or the KL cost is part of it.
    """
    if credit == TO_GO and not hasattr(reward, "way_ticks"):
        raise ConfigError(
            f"{type(reward).__name__} cannot be spread over ticks", where="geometry.credit", remedy="use credit=episode"
        )
    if credit == TO_GO and kl_in_reward:
        raise ConfigError(
            "a KL cost in the reward is one of whole episodes",
            where="geometry.credit, loss.kl_in",
            remedy="use loss.kl_in=loss with credit=to_go",
        )


def returns_to_go(terms: Mapping[str, np.ndarray], starts: Sequence[int]) -> tuple[float, ...]:
    """What is still to come at each replan.

    Args:
        terms: reward by term and tick, see `reward.tick_terms`.
        starts: first tick of each replan.
    """
    to_go_T = np.sum(list(terms.values()), axis=0)[::-1].cumsum()[::-1]
    return tuple(float(to_go_T[start]) for start in starts)


def episode_returns(episode: Episode, reward: Any) -> tuple[float, ...]:
    """The returns of an episode's replans.

    Raises:
        ConfigError: the simulator keeps no trace, or one that does not add up to the reward of the episode.
    """
    trace, metrics = episode.trace, episode.metrics
    if trace is None:
        raise ConfigError(
            "this simulator keeps no trace of an episode", where="geometry.credit", remedy="use credit=episode"
        )
    ends = "strict_tick" if metrics["success_test"] == "success_strict" else "success_tick"
    terms = spread(
        np.array(trace.distance_cm),
        None if trace.grip is None else np.array(trace.grip),
        upright=metrics["final_upright"],
        success_tick=metrics[ends] if metrics["success"] else None,
        reset_strikes=metrics["reset_strikes"],
        reward=reward,
    )
    returns, total = returns_to_go(terms, trace.starts), reward.terms(metrics)["total"]
    if total is None or not math.isclose(returns[0], total, rel_tol=1e-6, abs_tol=1e-9):
        raise ConfigError(
            f"{type(reward).__name__} is {total} for {episode.spec.episode_id}, and {returns[0]} summed over its ticks",
            where="geometry.credit",
            remedy="use credit=episode; the reward's way_ticks and the simulator's trace have to add up to its terms",
        )
    return returns


def by_replan(
    advantages: Advantages, group_ids: Sequence[int], returns: Sequence[Sequence[float]], rule: GroupRule
) -> Advantages:
    """The same groups, with an advantage for every replan.

    Args:
        advantages: by episode.
        group_ids: the group of each episode.
        returns: of every replan of each episode that counts.
        rule: estimator and clip.
    """
    kept = [index for index, counts in enumerate(advantages.kept) if counts]
    scale = float(np.std([returns[index][0] for index in kept])) if kept else 1.0
    values = [[0.0] * len(own) for own in returns]
    for group in advantages.groups:
        members = [index for index in kept if group_ids[index] == group.id]
        divisor = {ZSCORE: group.std, BATCH_SCALED: scale}.get(rule.estimator, 1.0)
        for replan in range(max((len(returns[index]) for index in members), default=0)):
            here = [index for index in members if replan < len(returns[index])]
            if len(here) < 2:
                continue
            compared_N = np.array([returns[index][replan] for index in here])
            compared_N = compared_N - compared_N.mean()
            if rule.estimator == LEAVE_ONE_OUT:  # minus the mean of the others
                compared_N = compared_N * len(here) / (len(here) - 1)
            compared_N = compared_N / divisor
            if rule.clip is not None:
                compared_N = np.clip(compared_N, -rule.clip, rule.clip)
            for index, value in zip(here, compared_N.tolist(), strict=True):
                values[index][replan] = value
    return replace(advantages, replans=tuple(map(tuple, values)))


def lone_replans(group_ids: Sequence[int], advantages: Advantages) -> int | None:
    """Replans of groups that teach which only one draw reached; None if credit does not go by replan."""
    if advantages.replans is None:
        return None
    lengths: dict[int, list[int]] = {}
    for group_id, own, kept in zip(group_ids, advantages.replans, advantages.kept, strict=True):
        if kept:
            lengths.setdefault(group_id, []).append(len(own))
    return sum(longest[0] - longest[1] for longest in (sorted(own, reverse=True) for own in lengths.values()))
