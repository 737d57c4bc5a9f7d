"""The task's numbers are the documented ones."""

from __future__ import annotations

import numpy as np
import pytest

from vla_rl.errors import ConfigError
from vla_rl.sim.protocol import PROTOCOLS, protocol_named, spawn_v1

SIM100B = PROTOCOLS["sim100b"]


def test_a_tick_is_exactly_a_thirtieth_of_a_second() -> None:
    assert SIM100B.substeps == 8 and SIM100B.tick_s == 1 / 30


def test_spawn_draws_x_then_y_then_yaw_from_the_seeds_own_generator() -> None:
    u_x, u_y, u_yaw = np.random.default_rng(300).random(3)
    spawn = spawn_v1(300, SIM100B)
    assert spawn.x_m == 0.195 + (0.27 - 0.195) * u_x
    assert spawn.y_m == -0.005 + (0.04 + 0.005) * u_y
    assert spawn.yaw_rad == -np.pi + 2 * np.pi * u_yaw
    assert (spawn.x_m, spawn.y_m, spawn.yaw_rad) == pytest.approx((0.245277757, 0.020196719, -0.755319177), abs=1e-9)


def test_initial_distances_of_the_documented_set() -> None:
    """Published for seeds 0-99: mean 9.45, sd 1.30, range 7.06 to 12.08 cm. Arithmetic only, no episode."""
    spawns = [spawn_v1(seed, SIM100B) for seed in range(100)]
    distances_cm = [100 * np.hypot(s.x_m - SIM100B.disk_xy_m[0], s.y_m - SIM100B.disk_xy_m[1]) for s in spawns]
    figures = np.mean(distances_cm), np.std(distances_cm), np.min(distances_cm), np.max(distances_cm)
    assert figures == pytest.approx((9.45, 1.30, 7.06, 12.08), abs=0.0051)


def test_an_unknown_protocol_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="sim100b"):
        protocol_named("sim100")
