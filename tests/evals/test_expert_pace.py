"""What a policy's carry speed is shown against comes from the expert that is in the code."""

from __future__ import annotations

import pytest

from vla_rl.evals.expert_pace import FILE, expert_carry_speed, measure
from vla_rl.evals.summary import summarise
from vla_rl.report.evaluation import carry_speed
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.sim.protocol import PROTOCOLS


def test_every_protocol_is_measured_and_no_other_world() -> None:
    assert all((expert_carry_speed(name) or 0) > 1 for name in PROTOCOLS), f"run vla_rl.evals.expert_pace: {FILE}"
    assert expert_carry_speed("somebody-else's") is None and expert_carry_speed(None) is None


def test_a_few_seeds_carry_about_as_fast_as_the_file_says() -> None:
    found = measure("sim100b", (300, 301, 302))
    assert (found["episodes"], found["success_strict"], found["carries"]) == (3, 3, 3)
    assert found["carry_speed_median_cm_s"] == pytest.approx(expert_carry_speed("sim100b"), rel=0.25)


def test_a_summary_shows_it_beside_the_policys_own() -> None:
    episodes = [Episode(EpisodeSpec(300), {"success": True, "ticks": 3, "carry_speed_cm_s": 5.0}, 1, 1, 0.1)]
    summary = summarise(episodes, {300: None}, temperature=0.0, scene={"protocol": "sim100b"})
    speed = expert_carry_speed("sim100b")
    assert carry_speed(summary) == f"5.00 cm/s, the expert's {speed:.2f}"
    assert carry_speed(summarise(episodes, {300: None}, temperature=0.0, scene=None)) == "5.00 cm/s"
