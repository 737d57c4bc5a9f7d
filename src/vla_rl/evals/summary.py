"""The summary of an evaluation: every count, interval, mean and median over its episodes.

In: finished episodes, their rewards, and what was evaluated. Out: one JSON-able dict, flat but for the pinch-fail
classes and the reach envelope. Counts are of episodes; a count or mean that an episode lacks the number for is None,
never a number over the rest. Definitions are listed in docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from vla_rl.evals.expert_pace import expert_carry_speed
from vla_rl.rollout.records import Episode, decode_counts, mean_nll
from vla_rl.sim.funnel import PINCH_FAILS, REACH_BINS
from vla_rl.stats.intervals import clopper_pearson

# summary name -> metric, counted over episodes
COUNTS = {
    "touched": "touched",
    "pinched": "pinched",
    "lifted": "lifted",
    "success_documented": "success_documented",
    "success_strict": "success_strict",
    "tipped": "tipped",
    "knockaways": "knockaway",
    "setbacks": "setback",
    "hopeless": "hopeless",
    "engaged": "engaged",
    "moved": "moved",
    "interacted": "interacted",
}
MEANS = ("progress_cm", "progress_final_cm", "grasped_progress_cm", "ungrasped_displacement_cm")
MEDIANS = ("carry_speed_cm_s", "carry_speed_nominal_cm_s")
SCENE_KEYS = ("protocol", "scene_hash", "max_replans", "training_scene_match")


def summarise(
    episodes: Sequence[Episode],
    rewards: Mapping[int, float | None],
    *,
    temperature: float,
    scene: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Summarise one evaluation.

    Args:
        episodes: at least one.
        rewards: documented reward v1 by seed; None where it could not be computed.
        temperature: of the sampler; 0 is greedy.
        scene: what the simulator says of itself (`protocol`, `scene_hash`, `max_replans`), and `training_scene_match`.
    """
    metrics = [episode.metrics for episode in episodes]
    trials, successes = len(metrics), sum(bool(m["success"]) for m in metrics)
    counts = {name: _count(metrics, metric) for name, metric in COUNTS.items()}
    scored = [value for value in rewards.values() if value is not None]
    tests = {m.get("success_test") for m in metrics}
    speeds = {name: [m[name] for m in metrics if m.get(name) is not None] for name in MEDIANS}
    strikes = [m.get("reset_strikes") for m in metrics]
    return {
        "episodes": trials,
        "trials": trials,
        "successes": successes,
        "success_test": tests.pop() if len(tests) == 1 else None,
        "success_rate": successes / trials,
        **_interval("success", successes, trials),
        **counts,
        **_interval("success_documented", counts["success_documented"], trials),
        **_interval("success_strict", counts["success_strict"], trials),
        "pinch_per_touch": _ratio(counts["pinched"], counts["touched"]),
        "success_per_pinch": _ratio(successes, counts["pinched"]),
        "pinch_fails": _pinch_fails(metrics) if counts["pinched"] is not None else None,
        "strikes": None if None in strikes else sum(s for s in strikes if s),
        "struck": None if None in strikes else sum(s > 0 for s in strikes if s is not None),
        "reward_mean": fmean(scored) if scored else None,
        "unscorable": trials - len(scored),
        **{f"{name.removesuffix('_cm')}_mean_cm": _mean(metrics, name) for name in MEANS},
        "ticks_mean": _mean(metrics, "ticks"),
        "tokens": sum(e.tokens for e in episodes),
        "nll_mean": mean_nll(episodes),
        **decode_counts(episodes),
        "carries": len(speeds["carry_speed_cm_s"]),
        **{name.replace("_cm_s", "_median_cm_s"): median(v) if v else None for name, v in speeds.items()},
        "expert_carry_speed_median_cm_s": expert_carry_speed((scene or {}).get("protocol")),
        "reach": reach_envelope(metrics),
        "temperature": temperature,
        **{key: (scene or {}).get(key) for key in SCENE_KEYS},
    }


def reach_envelope(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Touch and success by the ring that the boat began in; one row a ring, empty rings included."""
    rows = []
    for ring in REACH_BINS:
        inside = [m for m in metrics if m.get("reach_bin") == ring]
        touched, successes = _count(inside, "touched"), _count(inside, "success")
        rows.append(
            {
                "bin_cm": ring,
                "episodes": len(inside),
                "touched": touched,
                "touched_share": _ratio(touched, len(inside)),
                "successes": successes,
                "success_share": _ratio(successes, len(inside)),
            }
        )
    return rows


def _pinch_fails(metrics: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {kind: sum(m.get("pinch_fail") == kind for m in metrics) for kind in PINCH_FAILS}


def _count(metrics: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = [m.get(name) for m in metrics]
    return None if None in values else sum(map(bool, values))


def _mean(metrics: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [m.get(name) for m in metrics]
    return None if None in values else fmean(v for v in values if v is not None)


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _interval(name: str, successes: int | None, trials: int) -> dict[str, float | None]:
    low, high = (None, None) if successes is None else clopper_pearson(successes, trials)
    return {f"{name}_low": low, f"{name}_high": high}
