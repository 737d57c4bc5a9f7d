"""What a policy's carry speed is shown against comes from the expert that is in the code."""

from __future__ import annotations

import json

import pytest

from vla_rl.evals.expert_pace import FILE, FIRST, SEEDS, expert_carry_speed, measure
from vla_rl.evals.summary import summarise
from vla_rl.report.evaluation import carry_speed
from vla_rl.rollout.records import Episode, EpisodeSpec
from vla_rl.seeds import parse_seeds
from vla_rl.sim.protocol import PROTOCOLS


def test_every_protocol_is_measured_and_no_other_world() -> None:
    assert all((expert_carry_speed(name) or 0) > 1 for name in PROTOCOLS), f"run vla_rl.evals.expert_pace: {FILE}"
    assert expert_carry_speed("somebody-else's") is None and expert_carry_speed(None) is None


def test_another_horizon_has_the_same_expert_and_is_not_measured_again() -> None:
    assert (
        expert_carry_speed("sim100-spawn2-h10") == expert_carry_speed("sim100-spawn2") != expert_carry_speed("sim100")
    )
    assert expert_carry_speed("sim100-h99") is None
    assert len(json.loads(FILE.read_bytes())["protocols"]) == 8
    speeds = [measure(name, (300,))["first_carry_speeds_cm_s"] for name in ("sim100b", "sim100b-h10")]
    assert speeds[0] == speeds[1]


@pytest.mark.parametrize("protocol", ["sim100b", "sim100-spawn2"])
def test_the_first_seeds_carry_as_fast_as_the_file_says(protocol: str) -> None:
    """Rounding moves a speed by less than 1e-9 of itself; a change of physics or of the expert by far more."""
    recorded = json.loads(FILE.read_bytes())["protocols"][protocol]
    found = measure(protocol, parse_seeds(SEEDS)[:FIRST])
    assert (found["episodes"], found["success_strict"], found["carries"]) == (3, 3, 3)
    assert found["first_carry_speeds_cm_s"] == pytest.approx(recorded["first_carry_speeds_cm_s"], rel=1e-6), (
        "run python -m vla_rl.evals.expert_pace"
    )


def test_a_summary_shows_it_beside_the_policys_own() -> None:
    episodes = [Episode(EpisodeSpec(300), {"success": True, "ticks": 3, "carry_speed_cm_s": 5.0}, 1, 1, 0.1)]
    summary = summarise(episodes, {300: None}, temperature=0.0, scene={"protocol": "sim100b"})
    speed = expert_carry_speed("sim100b")
    assert carry_speed(summary) == f"5.00 cm/s, the expert's {speed:.2f}"
    assert carry_speed(summarise(episodes, {300: None}, temperature=0.0, scene=None)) == "5.00 cm/s"
