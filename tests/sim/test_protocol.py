"""The task's numbers are the documented ones, and every protocol has exactly one id."""

from __future__ import annotations

import dataclasses

import pytest

from vla_rl.config.schema import SimConfig
from vla_rl.errors import ConfigError
from vla_rl.sim.protocol import PROTOCOLS, Servo, protocol_named

SIM100, SIM100B = PROTOCOLS["sim100"], PROTOCOLS["sim100b"]


def changed(first, second) -> set[str]:
    """Fields in which two protocols differ, their names aside."""
    names = {field.name for field in dataclasses.fields(first)} - {"name"}
    return {name for name in names if getattr(first, name) != getattr(second, name)}


def test_sim100_has_the_documented_constants() -> None:
    assert SIM100.servo == Servo(108.18, 13.377, 3.478, 0.722, 0.0183, 0.2045)
    assert SIM100.home_deg == (4.6, -102.7, 97.0, 78.7, 77.6, 3.5)
    assert dict(SIM100.joint_limits_deg) == {"shoulder_lift": 110.0, "elbow_flex": 100.0}
    assert (SIM100.substeps, SIM100.timestep_s) == (7, 0.005) and SIM100.tick_s == pytest.approx(0.035)
    assert (SIM100.arm_settle_steps, SIM100.boat_settle_steps, SIM100.spawn_height_m) == (200, 30, 0.001)
    assert SIM100.parked_jaws_m == (0.155, 0.0)


def test_both_bases_have_the_documented_boat_disk_and_patch() -> None:
    for protocol in (SIM100, SIM100B):
        assert (protocol.spawn_x_m, protocol.spawn_y_m) == ((0.195, 0.27), (-0.005, 0.04))
        assert (protocol.disk_xy_m, protocol.disk_radius_m, protocol.disk_top_m) == ((0.22, 0.11), 0.040, 0.012)
        assert protocol.boat_mass_kg == 0.040 and protocol.execute_ticks == 30 and protocol.spawn == "v1"


def test_the_projects_default_ticks_at_exactly_thirty_hertz() -> None:
    assert SimConfig().protocol == "sim100b"
    assert SIM100B.substeps == 8 and SIM100B.tick_s == 1 / 30
    assert protocol_named("sim100-30hz").tick_s == 1 / 30


def test_the_bases_differ_in_servo_home_and_timing_alone() -> None:
    servo, timing = {"servo"}, {"substeps", "timestep_s"}
    home = {"home_deg", "joint_limits_deg", "contact_exclusions", "settle_from_deg", "parked_jaws_m", "clear_of_jaws_m"}
    assert changed(SIM100, SIM100B) == servo | timing | home


@pytest.mark.parametrize("base", ["sim100", "sim100b"])
def test_a_suffix_changes_what_it_says_and_nothing_else(base: str) -> None:
    camera = {"top_camera_pos_m", "top_camera_target_m", "top_camera_fovy_deg"}
    other_timing = {"sim100": "30hz", "sim100b": "35ms"}[base]
    says = {other_timing: {"substeps", "timestep_s"}, "spawn2": {"spawn"} | camera}
    says |= {"h15": {"execute_ticks"}, "h10": {"execute_ticks"}}
    for suffix, fields in says.items():
        assert changed(protocol_named(base), protocol_named(f"{base}-{suffix}")) == fields
    together = protocol_named(f"{base}-{other_timing}-spawn2-h10")
    assert changed(protocol_named(base), together) == set().union(*says.values()) and together.execute_ticks == 10


def test_every_protocol_has_one_id_and_no_two_are_alike() -> None:
    assert len(PROTOCOLS) == 2 * 2 * 2 * 3
    assert all(protocol.name == name for name, protocol in PROTOCOLS.items())
    assert len({dataclasses.replace(protocol, name="") for protocol in PROTOCOLS.values()}) == len(PROTOCOLS)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "sim9",
        "SIM100",
        "sim100-35ms",  # the timing that it has already
        "sim100b-30hz",
        "sim100b-h10-spawn2",  # another order
        "sim100b-h30",
        "sim100b-h10-h15",
        "sim100b--spawn2",
        "sim100b-spawn2-",
        "spawn2",
    ],
)
def test_anything_else_is_refused_with_the_bases_and_suffixes(name: str) -> None:
    with pytest.raises(ConfigError, match=r"sim100b, sim100\).*\[-30hz\|-35ms\] \[-spawn2\] \[-h15\|-h10\]"):
        protocol_named(name)
