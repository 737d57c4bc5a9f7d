"""The signal probe: is there a sampling temperature at which draws of a start differ, and what does it cost?

In: the greedy episode and the sampled ones of every seed, their scores in cm, and the thresholds. Out: the reads of
each temperature, and a decision by a fixed rule. Pure functions; definitions and source of the rule: docs/probe.md.

The reads and the admission rule are the documented ones (registered 2026-08-12). The documented rule does not say which
of several admitted temperatures is used; here it is the one that costs least, which is what the authors then chose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, pstdev
from typing import Any

from vla_rl.config.schema import ProbeConfig
from vla_rl.errors import ConfigError
from vla_rl.evals.summary import COUNTS, summarise
from vla_rl.rl.advantage import GroupRule, group_advantages
from vla_rl.rl.summary import mixed_groups_frac
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.stats.bootstrap import PairedDifference, paired_bootstrap

USE, STOP = "use", "stop"
Scores = Mapping[EpisodeSpec, float | None]


@dataclass(frozen=True)
class Rule:
    """The thresholds, in cm and nats a token; see `ProbeConfig`."""

    min_group_std_cm: float
    spread_bar_cm: float
    cost_floor_cm: float
    max_nats: float | None

    @classmethod
    def of(cls, config: ProbeConfig) -> Rule:
        return cls(config.min_group_std_cm, config.spread_bar_cm, config.cost_floor_cm, config.max_nats)


def check_temperatures(temperatures: Sequence[float]) -> tuple[float, ...]:
    """The temperatures to choose among.

    Raises:
        ConfigError: there is none, one samples nothing, or one is listed twice.
    """
    given = tuple(float(t) for t in temperatures)
    if not given or not all(t > 0 and math.isfinite(t) for t in given) or len(set(given)) < len(given):
        raise ConfigError(
            f"{list(given)} is no list of different temperatures above 0",
            where="probe.temperatures",
            remedy="e.g. probe.temperatures=[0.7,1.0]; greedy is played anyway, as the anchor",
        )
    return given


def read_greedy(episodes: Sequence[Episode], scores: Scores) -> dict[str, Any]:
    """Counts and means of the anchor."""
    return {"temperature": 0.0, **_counts(episodes, 0.0), "score_mean_cm": _mean([scores[e.spec] for e in episodes])}


def read_temperature(
    temperature: float,
    episodes: Sequence[Episode],
    scores: Scores,
    *,
    greedy: Sequence[Episode],
    greedy_scores: Scores,
    rule: Rule,
) -> dict[str, Any]:
    """All reads of one temperature, JSON-able.

    Args:
        temperature: above 0.
        episodes: the same number of draws of every seed.
        scores: of the sampled episodes, cm; None marks an unscorable one.
        greedy: one episode of each of these seeds.
        greedy_scores: of those.
        rule: thresholds.

    Returns:
        see docs/probe.md. Spread, cost and shares are None if any episode is unscorable: a read of the rest would
        flatter.
    """
    seeds = [e.spec.seed for e in greedy]
    draws = len(episodes) // len(seeds)
    values = [scores[e.spec] for e in episodes]
    groups = group_advantages(
        [e.spec.seed for e in episodes],
        values,
        [bool(e.metrics["success"]) for e in episodes],
        GroupRule(draws, min_group_std=rule.min_group_std_cm),
    ).groups
    whole = all(group.unscorable == 0 for group in groups)
    stds = {group.id: group.std for group in groups if group.std is not None}
    anchor = {e.spec.seed: score for e in greedy if (score := greedy_scores[e.spec]) is not None}
    means = {group.id: group.mean for group in groups if group.mean is not None}
    cost = paired_bootstrap(anchor, means) if whole and len(anchor) == len(seeds) else None
    return {
        "temperature": temperature,
        **_counts(episodes, temperature),
        "groups": len(groups),
        "draws": draws,
        "score_mean_cm": _mean(values),
        "median_group_std_cm": median(stds.values()) if whole else None,
        "groups_nondegenerate": sum(group.kept for group in groups) if whole else None,
        "nondegenerate_frac": sum(group.kept for group in groups) / len(groups) if whole else None,
        "mixed_groups_frac": mixed_groups_frac(episodes),
        "best_point_median_group_std_cm": _best_point_spread(episodes),
        "cost_cm": asdict(cost) if cost else None,
        "success_cost": asdict(_success_cost(episodes, greedy)),
        "group_std_cm": {str(seed): std for seed, std in stds.items()},
    }


def admit(read: Mapping[str, Any], rule: Rule) -> tuple[bool, str]:
    """Whether the rule admits a temperature, and why, in one sentence."""
    name, spread, cost = f"T {read['temperature']:g}", read["median_group_std_cm"], read["cost_cm"]
    if spread is None or cost is None:
        return False, f"{name}: an episode has no score"
    bar, floor = f"{rule.spread_bar_cm:g} cm", f"{rule.cost_floor_cm:g} cm"
    spreads = f"{name}: median group spread {spread:.3f} cm"
    if spread < rule.spread_bar_cm:
        return False, f"{spreads} does not reach the bar of {bar}"
    costs = f"the cost against greedy, {cost['mean']:+.3f} cm [{cost['low']:+.3f}, {cost['high']:+.3f}],"
    if cost["high"] < rule.cost_floor_cm:
        return False, f"{spreads} reaches the bar of {bar}, but {costs} lies below {floor} entirely"
    if rule.max_nats is not None and ((nats := read["nll_mean"]) is None or nats > rule.max_nats):
        told = "no nats a token are known" if nats is None else f"{nats:.3f} nats a token are"
        return False, f"{spreads} reaches the bar of {bar}, but {told} not within {rule.max_nats:g}"
    return True, f"{spreads} reaches the bar of {bar}, and {costs} does not lie below {floor} entirely"


def decide(greedy: Mapping[str, Any], reads: Sequence[Mapping[str, Any]], rule: Rule) -> dict[str, Any]:
    """Apply the rule: use the admitted temperature that costs least (the lower one of two alike), or stop.

    Args:
        greedy: from `read_greedy`.
        reads: from `read_temperature`, one a temperature.
        rule: thresholds.

    Returns:
        `temperature` (None when it says stop), `verdict` (``use`` or ``stop``) and `reasons`, a list of sentences.
    """
    struck = [side["struck"] for side in (greedy, *reads)]
    if any(count is None or count > 0 for count in struck):
        told = f"{sum(count or 0 for count in struck)} episodes were" if None not in struck else "it is unknown who was"
        return _stop([f"{told} struck by the reset: a fault of the scene, and no read of it is valid"])
    judged = [(read, *admit(read, rule)) for read in reads]
    reasons = [reason for _, _, reason in judged]
    admitted = [read for read, fine, _ in judged if fine]
    if not admitted:
        return _stop([*reasons, "no temperature is admitted: group-relative training has nothing to push on here"])
    best = min(admitted, key=lambda read: (-read["cost_cm"]["mean"], read["temperature"]))
    others = ", the least costly of those admitted" if len(admitted) > 1 else ""
    reasons.append(f"T {best['temperature']:g} is used{others}")
    return {"temperature": best["temperature"], "verdict": USE, "reasons": reasons}


def _stop(reasons: list[str]) -> dict[str, Any]:
    return {"temperature": None, "verdict": STOP, "reasons": reasons}


def _counts(episodes: Sequence[Episode], temperature: float) -> dict[str, Any]:
    """What a summary says of these episodes too; no intervals, since draws of a seed are not independent."""
    summary = summarise(episodes, {}, temperature=temperature, scene=None)
    names = ("episodes", "successes", "success_test", "success_rate", *COUNTS, "struck", "tokens", "nll_mean")
    knockaways = summary["knockaways"]
    share = None if knockaways is None else knockaways / len(episodes)
    return {**{name: summary[name] for name in names}, "knockaway_frac": share}


def _best_point_spread(episodes: Sequence[Episode]) -> float | None:
    """Median group spread of `progress_cm`, the best point that was reached."""
    groups: dict[int, list[float | None]] = {}
    for episode in episodes:
        groups.setdefault(episode.spec.seed, []).append(episode.metrics.get("progress_cm"))
    spreads = [pstdev(v for v in values if v is not None) for values in groups.values() if None not in values]
    return median(spreads) if len(spreads) == len(groups) else None


def _success_cost(episodes: Sequence[Episode], greedy: Sequence[Episode]) -> PairedDifference:
    outcomes: dict[int, list[bool]] = {}
    for episode in episodes:
        outcomes.setdefault(episode.spec.seed, []).append(bool(episode.metrics["success"]))
    anchor = {e.spec.seed: float(e.metrics["success"]) for e in greedy}
    return paired_bootstrap(anchor, {seed: fmean(won) for seed, won in outcomes.items()})


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
