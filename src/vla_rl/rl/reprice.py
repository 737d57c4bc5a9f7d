"""What a run's episodes would have taught under another price: rewards, groups and advantages again, without a policy.

In: rows of `episodes.jsonl` (or the stored episodes of a wave under way), a reward, a `GroupRule`. Out: a `Priced`, and
its ledger: which groups teach, where the advantage comes from term by term, how much of it stands on successes. Nothing
here imports torch: this is the dry decomposition to look at before a run is paid for. Left out: what advantages weigh
per token (`loss`).

Every estimator is linear in the reward, so an advantage is the sum of what each term contributes: the term minus its
own group mean, over the same divisor. A clipped advantage scales the contributions of its episode. What a reward pays
beyond the terms that it names is one more of them, `rest`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vla_rl.errors import UsageError
from vla_rl.rl.advantage import DROPPED, Advantages, GroupRule, group_advantages, shuffled, success_share
from vla_rl.rl.reward import Reward

KL_TERM = "kl"  # what `loss.kl_in=reward` took: it belongs to the policies that played, so no price changes it
REST = "rest"  # what a reward's own terms leave of its total; a reward need not name any
ROUNDING = 1e-9  # relative, of a sum of terms


@dataclass(frozen=True)
class Priced:
    """Episodes of some waves under one price; tuples are in the order of the rows.

    Attributes:
        terms: of each episode, without `total`; with `rest` where they leave some of it.
        totals: reward of each episode; None cannot be scored.
        successes: whether it succeeded.
        values, kept: its advantage, and whether its group teaches.
        contributions: what each term contributes to the advantage, by name; 0 where the group was dropped.
        waves: the advantages of each step, with their groups.
    """

    terms: tuple[dict[str, float | None], ...]
    totals: tuple[float | None, ...]
    successes: tuple[bool, ...]
    values: tuple[float, ...]
    kept: tuple[bool, ...]
    contributions: dict[str, tuple[float, ...]]
    waves: dict[int, Advantages]


def price(rows: Sequence[Mapping[str, Any]], reward: Reward, rule: GroupRule) -> Priced:
    """Price training episodes; waves stay apart, as they were for the trainer.

    Args:
        rows: with `step`, `seed`, `success`, all metrics, and `reward_kl` where the run took one.
        reward: prices one episode.
        rule: makes advantages.

    Raises:
        UsageError: there is no row, or the reward needs a number that the episodes lack.
        ConfigError: a group of another size than the rule's.
    """
    if not rows:
        raise UsageError("there are no episodes to price", where="episodes.jsonl", remedy="name a run that has played")
    terms = [_terms(row, reward) for row in rows]
    totals = [t.pop("total") for t in terms]
    terms = _explained(terms, totals)
    successes = [bool(row["success"]) for row in rows]
    values, kept = [0.0] * len(rows), [False] * len(rows)
    waves: dict[int, Advantages] = {}
    contributions = {name: [0.0] * len(rows) for name in dict.fromkeys(name for t in terms for name in t)}
    for step in sorted({row["step"] for row in rows}):
        at = [index for index, row in enumerate(rows) if row["step"] == step]
        seeds = [rows[index]["seed"] for index in at]
        wave = group_advantages(seeds, [totals[i] for i in at], [successes[i] for i in at], rule)
        waves[step] = wave
        linear = group_advantages(seeds, [totals[i] for i in at], [successes[i] for i in at], replace(rule, clip=None))
        for index, value, taught in zip(at, wave.values, wave.kept, strict=True):
            values[index], kept[index] = value, taught
        for group in wave.groups:
            members = [n for n, seed in enumerate(seeds) if seed == group.id and wave.kept[n]]
            own = _contributions(
                [terms[at[n]] for n in members], [totals[at[n]] for n in members], [linear.values[n] for n in members],
                rule.clip,
            )  # fmt: skip
            for name, parts in own.items():
                for n, part in zip(members, parts, strict=True):
                    contributions[name][at[n]] = part
    return Priced(
        tuple(terms), tuple(totals), tuple(successes), tuple(values), tuple(kept),
        {name: tuple(parts) for name, parts in contributions.items()}, waves,
    )  # fmt: skip


def ledger(priced: Priced) -> dict[str, Any]:
    """What a price makes of the episodes, JSON-able.

    Returns:
        `episodes`, `successes`, `unscorable`, `reward_mean_cm`, `groups`, `groups_kept`, `groups_dropped` (by reason),
        `groups_mixed` (with both outcomes), `median_group_std_cm` (over all groups), `success_share` (of the positive
        advantage, what stands on successes), and `terms`: by name `mean_cm` over the episodes, `mass` (sum of
        |contribution| over kept episodes), `mass_share`, and `share`: of the sum of squared advantages what the term
        accounts for; the shares sum to 1, and one below 0 worked against the others.
    """
    groups = [group for wave in priced.waves.values() for group in wave.groups]
    stds = [group.std for group in groups if group.std is not None]
    scored = [total for total in priced.totals if total is not None]
    squares = sum(value * value for value in priced.values)
    masses = {name: sum(map(abs, parts)) for name, parts in priced.contributions.items()}
    mass = sum(masses.values())
    terms = {}
    for name, parts in priced.contributions.items():
        known = [value for t in priced.terms if (value := t.get(name)) is not None]
        explained = sum(part * value for part, value in zip(parts, priced.values, strict=True))
        terms[name] = {
            "mean_cm": statistics.fmean(known) if known else None,
            "mass": masses[name],
            "mass_share": masses[name] / mass if mass > 0 else None,
            "share": explained / squares if squares > 0 else None,
        }
    return {
        "episodes": len(priced.totals),
        "successes": sum(priced.successes),
        "unscorable": len(priced.totals) - len(scored),
        "reward_mean_cm": statistics.fmean(scored) if scored else None,
        "groups": len(groups),
        "groups_kept": sum(group.kept for group in groups),
        "groups_dropped": {reason: sum(group.dropped == reason for group in groups) for reason in DROPPED},
        "groups_mixed": sum(group.success_rate is not None and 0 < group.success_rate < 1 for group in groups),
        "median_group_std_cm": statistics.median(stds) if stds else None,
        "success_share": success_share(priced.values, priced.successes),
        "terms": terms,
    }


def compare_prices(used: Priced, other: Priced) -> dict[str, Any]:
    """How differently two prices teach on the same episodes.

    Returns:
        `taught_by_both`, `only_used`, `only_other` (episodes), `turned` (of those taught by both, how many are praised
        by one and blamed by the other), `correlation` of their advantages (None where it does not exist).
    """
    pairs = zip(used.kept, other.kept, strict=True)
    both = [index for index, (a, b) in enumerate(pairs) if a and b]
    a_N, b_N = (np.array([p.values[i] for i in both]) for p in (used, other))
    defined = len(both) > 1 and float(a_N.std()) > 0 and float(b_N.std()) > 0
    return {
        "taught_by_both": len(both),
        "only_used": sum(used.kept) - len(both),
        "only_other": sum(other.kept) - len(both),
        "turned": int((a_N * b_N < 0).sum()),
        "correlation": float(np.corrcoef(a_N, b_N)[0, 1]) if defined else None,
    }


def departures(
    rows: Sequence[Mapping[str, Any]], priced: Priced, shuffle_key: Callable[[int], tuple[int, ...]] | None
) -> list[str]:
    """Episodes whose recorded reward or advantage is not the one that the run's own price gives, by name.

    Args:
        rows: those that were priced; the ones without a recorded `reward` are passed over.
        shuffle_key: the random key of a step, for a run that dealt its advantages at random.
    """
    standing: dict[int, float | None] = {}
    for step, wave in priced.waves.items():
        at = [index for index, row in enumerate(rows) if row["step"] == step]
        dealt = shuffled(wave, shuffle_key(step)) if shuffle_key else wave
        standing |= {i: v if k else None for i, v, k in zip(at, dealt.values, dealt.kept, strict=True)}
    return [
        f"step {row['step']} seed {row['seed']} draw {row['draw']}"
        for index, row in enumerate(rows)
        if "reward" in row and (row["reward"], row["advantage"]) != (priced.totals[index], standing[index])
    ]


def _terms(row: Mapping[str, Any], reward: Reward) -> dict[str, float | None]:
    """Terms and `total` of one episode, a recorded cost of distance to the anchor included; None where no number is."""
    numbers = {name: None if value is None else float(value) for name, value in reward.terms(row).items()}
    terms = {name: value if value is not None and math.isfinite(value) else None for name, value in numbers.items()}
    cost = row.get(f"reward_{KL_TERM}")
    if cost is None:
        return terms
    total = terms["total"]
    return {**terms, KL_TERM: cost, "total": None if total is None else total + cost}


def _explained(
    terms: Sequence[dict[str, float | None]], totals: Sequence[float | None]
) -> list[dict[str, float | None]]:
    """Terms that sum to the totals: with `rest` in all episodes if those of some leave more than rounding of it."""
    rests: list[float | None] = []
    for own, total in zip(terms, totals, strict=True):
        known = [value for value in own.values() if value is not None]
        rest = None if total is None else total - math.fsum(known)
        rests.append(rest if rest is None or abs(rest) > ROUNDING * max(map(abs, (*known, 1.0))) else 0.0)
    if not any(rests):
        return list(terms)
    return [
        {**own, REST: rest if rest is None else rest + (own.get(REST) or 0.0)}
        for own, rest in zip(terms, rests, strict=True)
    ]


def _contributions(
    terms: Sequence[Mapping[str, float | None]],
    totals: Sequence[float | None],
    unclipped: Sequence[float],
    clip: float | None,
) -> dict[str, Sequence[float]]:
    """What each term contributes to the advantages of one group's scorable episodes; columns sum to the advantages.

    Args:
        totals: what the terms sum to.
        unclipped: the advantages before clipping, proportional to the centred totals.
        clip: the bound that they are clipped to, if any.
    """
    if not terms:
        return {}
    names = list(dict.fromkeys(name for t in terms for name in t))
    parts_NT = np.array([[t.get(name) or 0.0 for name in names] for t in terms], dtype=np.float64)
    parts_NT = parts_NT - parts_NT.mean(axis=0)
    whole_N, values_N = np.array(totals, dtype=np.float64), np.array(unclipped)
    whole_N = whole_N - whole_N.mean()  # not all 0: a group without spread is dropped
    furthest = int(np.abs(whole_N).argmax())  # an episode near the group's mean would give the divisor from its noise
    scale_N = np.full(len(terms), values_N[furthest] / whole_N[furthest])
    if clip is not None:
        scale_N *= clip / np.maximum(np.abs(values_N), clip)
    return {name: (parts_NT[:, column] * scale_N).tolist() for column, name in enumerate(names)}
