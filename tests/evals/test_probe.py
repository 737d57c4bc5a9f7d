"""The signal probe's reads and its rule, against cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from vla_rl.errors import ConfigError
from vla_rl.evals.probe import Rule, admit, check_temperatures, decide, read_greedy, read_temperature
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.stats.bootstrap import paired_bootstrap

RULE = Rule(min_group_std_cm=0.05, spread_bar_cm=0.25, cost_floor_cm=-1.0, max_nats=None)
GREEDY_CM = {500: 1.0, 501: 2.0, 502: 0.0}
SAMPLED_CM = {500: (0.0, 2.0), 501: (1.5, 1.5), 502: (-2.0, 1.0)}  # spreads 1, 0 and 1.5


def episode(seed: int, draw: int, progress_cm: float, **changes: Any) -> Episode:
    metrics = {
        "progress_final_cm": progress_cm, "progress_cm": max(progress_cm, 0.0), "success": progress_cm >= 2.0,
        "success_test": "success_strict", "knockaway": progress_cm <= -1.0, "tipped": False, "reset_strikes": 0,
        "ticks": 10,
    }  # fmt: skip
    return Episode(EpisodeSpec(seed, draw), metrics | changes, 1, tokens=4, wall_s=0.1, nll=2.0)


GREEDY = [episode(seed, 0, cm) for seed, cm in GREEDY_CM.items()]
SAMPLED = [episode(seed, draw, cm) for seed, pair in SAMPLED_CM.items() for draw, cm in enumerate(pair)]


def scores(episodes: list[Episode], unscorable: tuple[int, int] | None = None) -> dict[EpisodeSpec, float | None]:
    lost = EpisodeSpec(*unscorable) if unscorable else None
    return {e.spec: None if e.spec == lost else e.metrics["progress_final_cm"] for e in episodes}


def read(episodes: list[Episode] = SAMPLED, **changes: Any) -> dict[str, Any]:
    given = {"greedy": GREEDY, "greedy_scores": scores(GREEDY), "rule": RULE, **changes}
    return read_temperature(1.0, episodes, given.pop("scores", scores(episodes)), **given)


def test_spread_is_the_median_population_std_of_a_seeds_draws() -> None:
    got = read()
    assert got["group_std_cm"] == {"500": 1.0, "501": 0.0, "502": 1.5}
    assert got["median_group_std_cm"] == 1.0 == median((1.0, 0.0, 1.5))
    assert (got["groups"], got["draws"], got["groups_nondegenerate"]) == (3, 2, 2)
    assert got["nondegenerate_frac"] == pytest.approx(2 / 3)
    assert got["best_point_median_group_std_cm"] == pytest.approx(0.5)  # of (0, 2), (1.5, 1.5), (0, 1)


def test_a_group_exactly_at_the_line_is_not_degenerate() -> None:
    draws = [episode(500, 0, 0.0), episode(500, 1, 0.5)]  # population std 0.25
    given = {"greedy": GREEDY[:1], "greedy_scores": scores(GREEDY[:1])}
    assert read(draws, rule=Rule(0.25, 0.25, -1.0, None), **given)["groups_nondegenerate"] == 1
    assert read(draws, rule=Rule(0.2500001, 0.25, -1.0, None), **given)["groups_nondegenerate"] == 0


def test_cost_is_the_paired_difference_of_group_means_and_greedy() -> None:
    got = read()
    by_hand = paired_bootstrap(GREEDY_CM, {500: 1.0, 501: 1.5, 502: -0.5})
    assert got["cost_cm"]["mean"] == pytest.approx(-1 / 3)
    assert (got["cost_cm"]["low"], got["cost_cm"]["high"]) == (by_hand.low, by_hand.high)
    assert (got["cost_cm"]["pairs"], got["cost_cm"]["resamples"], got["cost_cm"]["level"]) == (3, 10_000, 0.95)
    assert got["success_cost"]["mean"] == pytest.approx((0.5 - 1.0) / 3)  # 500 wins half, 501 loses what greedy won


def test_a_bound_on_nats_a_token_refuses_what_lies_above_it() -> None:
    at_bound, below, unknown = (replace(RULE, max_nats=bound) for bound in (0.5, 0.49, 0.5))
    assert admit(read(), at_bound) == admit(read(), RULE) and admit(read(), RULE)[0]
    fine, reason = admit(read(), below)
    assert not fine and "0.500 nats a token are not within 0.49" in reason
    fine, reason = admit({**read(), "nll_mean": None}, unknown)
    assert not fine and "no nats a token are known" in reason


def test_events_and_surprise_are_counted_over_all_draws() -> None:
    got, greedy = read(), read_greedy(GREEDY, scores(GREEDY))
    assert (got["successes"], got["episodes"], got["knockaways"], got["struck"]) == (1, 6, 1, 0)
    assert got["knockaway_frac"] == pytest.approx(1 / 6) and got["mixed_groups_frac"] == pytest.approx(1 / 3)
    assert got["nll_mean"] == greedy["nll_mean"] == 0.5 and got["tokens"] == 24
    assert (greedy["successes"], greedy["score_mean_cm"], greedy["temperature"]) == (1, 1.0, 0.0)


def test_a_read_with_an_unscorable_episode_is_no_read_and_is_not_admitted() -> None:
    got = read(scores=scores(SAMPLED, (501, 1)))
    assert got["median_group_std_cm"] is None and got["cost_cm"] is None and got["nondegenerate_frac"] is None
    assert got["score_mean_cm"] is None
    assert admit(got, RULE) == (False, "T 1: an episode has no score")
    assert read(greedy_scores=scores(GREEDY, (500, 0)))["cost_cm"] is None


def fake(temperature: float, spread: float, mean: float, low: float, high: float, struck: int = 0) -> dict[str, Any]:
    cost = {"mean": mean, "low": low, "high": high}
    return {"temperature": temperature, "median_group_std_cm": spread, "cost_cm": cost, "struck": struck}


ANCHOR = {"struck": 0}


@pytest.mark.parametrize(
    ("read", "admitted"),
    [
        (fake(1.0, 0.25, -0.3, -1.1, 0.2), True),  # the bar itself is reached
        (fake(1.0, 0.2499, -0.3, -1.1, 0.2), False),
        (fake(1.0, 2.0, -1.5, -2.0, -1.0), True),  # reaches up to the floor: not below it entirely
        (fake(1.0, 2.0, -1.5, -2.0, -1.0001), False),
    ],
)
def test_a_temperature_is_admitted_by_spread_and_by_cost(read: dict[str, Any], admitted: bool) -> None:
    assert admit(read, RULE)[0] is admitted


def test_the_documented_numbers_give_the_documented_choice() -> None:
    documented = [fake(1.0, 0.771, -0.351, -1.117, 0.207), fake(1.6, 2.461, -1.081, -1.556, -0.634)]
    decision = decide(ANCHOR, documented, RULE)
    assert (decision["temperature"], decision["verdict"]) == (1.0, "use") and len(decision["reasons"]) == 3
    assert all(admit(each, RULE)[0] for each in documented)


def test_the_least_costly_of_those_admitted_is_used_and_the_lower_of_two_alike() -> None:
    cheap, dear, refused = fake(1.6, 1, -0.1, -1, 1), fake(1.0, 9, -0.5, -1, 1), fake(0.5, 0.1, 0.9, 0, 1)
    assert decide(ANCHOR, [dear, cheap, refused], RULE)["temperature"] == 1.6
    assert decide(ANCHOR, [cheap, fake(0.7, 1, -0.1, -2, 2)], RULE)["temperature"] == 0.7


def test_it_stops_when_no_temperature_is_admitted_and_says_why_of_each() -> None:
    decision = decide(ANCHOR, [fake(1.0, 0.1, 0, -1, 1), fake(1.6, 3, -3, -4, -2)], RULE)
    assert decision["verdict"] == "stop" and decision["temperature"] is None
    assert "does not reach the bar" in decision["reasons"][0] and "below -1 cm entirely" in decision["reasons"][1]


@pytest.mark.parametrize("struck", [1, None])
@pytest.mark.parametrize("side", [0, 1])
def test_no_read_is_valid_when_a_reset_touched_a_boat(struck: int | None, side: int) -> None:
    sides = [ANCHOR, fake(1.0, 3.0, 0.0, -0.1, 0.1)]
    sides[side] = sides[side] | {"struck": struck}
    decision = decide(sides[0], sides[1:], RULE)
    assert decision["verdict"] == "stop" and "reset" in decision["reasons"][0] and len(decision["reasons"]) == 1


@pytest.mark.parametrize("given", [[], [0.0], [1.0, 1], [-1.0], [float("nan")], [float("inf")]])
def test_temperatures_that_are_none_are_refused(given: list[float]) -> None:
    with pytest.raises(ConfigError, match="probe.temperatures"):
        check_temperatures(given)
    assert check_temperatures([1.6, 1]) == (1.6, 1.0)
