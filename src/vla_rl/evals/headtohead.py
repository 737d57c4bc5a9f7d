"""Two evaluations of the same seeds, head to head: a diagnosis, not a verdict.

In: two records (`eval.json`). Out: one JSON-able dict: which seeds only one of them solves, whether that could be
chance, the differences with intervals, both funnels and carry speeds. Temperatures may differ, and where one side is
greedy and the other sampled it is called the greedy-sampled gap. Left out: judging, which belongs to a registration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_rl.errors import UsageError
from vla_rl.evals.paired import LONGEST, SAME_TASK, check_comparable, paired_read
from vla_rl.seeds import format_seeds
from vla_rl.stats.mcnemar import exact_mcnemar

FUNNEL = ("touched", "pinched", "lifted", "success_documented", "success_strict")
COUNTS = ("episodes", "successes", "knockaways", "tipped", "carries")
MEANS = ("reward_mean", "nll_mean", "carry_speed_median_cm_s", "expert_carry_speed_median_cm_s")
POLICY = ("name", "digest", "frames")
GAP, POLICIES, BOTH, DRAWS = "greedy-sampled gap", "two policies", "two policies, decoded differently", "same policy"


def head_to_head(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two records; differences are B - A.

    Args:
        a, b: records of `vla-rl eval`.

    Returns:
        `kind`, `seeds`, `success_test`, `a` and `b` (see `_side`), `both`, `neither` (counts), `only_a`, `only_b`
        (seeds), `mcnemar_p`, `success` and `reward_cm` (paired differences with 95 % intervals).

    Raises:
        UsageError: protocol, scene, success test, length of an episode or seeds differ; says which, and how. Or a
            record does not say which policy it is of.
    """
    for side, record in (("A", a), ("B", b)):
        check_policy(record, side)
    check_comparable(a["summary"], b["summary"], {**SAME_TASK, **LONGEST}, where="the two records")
    won = [{row["seed"]: bool(row["success"]) for row in record["episodes"]} for record in (a, b)]
    _check_seeds(*won)
    seeds = sorted(won[0])
    only_a = [seed for seed in seeds if won[0][seed] and not won[1][seed]]
    only_b = [seed for seed in seeds if won[1][seed] and not won[0][seed]]
    both = sum(won[0][seed] and won[1][seed] for seed in seeds)
    return {
        "kind": _kind(a, b),
        "seeds": format_seeds(seeds),
        "success_test": a["summary"]["success_test"],
        "a": _side(a),
        "b": _side(b),
        "both": both,
        "neither": len(seeds) - both - len(only_a) - len(only_b),
        "only_a": only_a,
        "only_b": only_b,
        "mcnemar_p": exact_mcnemar(len(only_a), len(only_b)),
        **paired_read(a["episodes"], b["episodes"]),
    }


def _side(record: Mapping[str, Any]) -> dict[str, Any]:
    """One side: which policy and head (None in older records and for the scripted expert), how it was decoded, its
    funnel (episodes), carry speed and nats a token."""
    summary, policy = record["summary"], record["policy"]
    told = {**{key: policy[key] for key in POLICY}, "head": policy.get("head")}
    return {**told, **{name: summary.get(name) for name in ("temperature", *COUNTS, *MEANS, *FUNNEL)}}


def _kind(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """What the two sides differ in. Policies are told apart by their digest, or by name where there is none."""
    policies = [record["policy"] for record in (a, b)]
    which = [(policy["digest"] or policy["name"], policy["frames"]) for policy in policies]
    same_policy = which[0] == which[1]
    greedy = [record["summary"]["temperature"] == 0 for record in (a, b)]
    if greedy[0] != greedy[1]:
        return GAP if same_policy else BOTH
    return DRAWS if same_policy else POLICIES


def check_policy(record: Mapping[str, Any], side: str) -> None:
    """Refuse a record that does not say which policy it is of.

    Raises:
        UsageError: naming the record.
    """
    policy = record.get("policy")
    if not isinstance(policy, Mapping) or not policy.keys() >= set(POLICY):
        raise UsageError(
            f"record {side} does not say which policy it is of",
            where="the two records",
            remedy="evaluate it again with `vla-rl eval`",
        )


def _check_seeds(a: Mapping[int, bool], b: Mapping[int, bool]) -> None:
    if a.keys() == b.keys() and a:
        return
    sides = [(name, format_seeds(sorted(x.keys() - y.keys()))) for name, x, y in (("A", a, b), ("B", b, a))]
    told = ", ".join(f"only {name} has {seeds}" for name, seeds in sides if seeds)
    raise UsageError(
        f"the two evaluations hold different seeds: {told or 'none at all'}",
        where="the two records",
        remedy="evaluate both on the same seeds; a comparison of the rest would be of other states than was asked for",
    )
