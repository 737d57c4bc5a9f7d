"""Where things are at the start: documented figures, draw orders, the reach mask, and streams that do not leak."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from vla_rl import seeds
from vla_rl.errors import IntegrityError
from vla_rl.sim import reach, spawn
from vla_rl.sim.ik import ArmKinematics
from vla_rl.sim.protocol import PROTOCOLS
from vla_rl.sim.scene import shared_scene
from vla_rl.sim.spawn import ReachMask, Spawn, draw_spawn, reach_mask, spawn_v1, spawn_v2

SIM100B, SPAWN2 = PROTOCOLS["sim100b"], PROTOCOLS["sim100b-spawn2"]


def distance_m(spawn: Spawn) -> float:
    return float(np.hypot(spawn.x_m - spawn.disk_xy_m[0], spawn.y_m - spawn.disk_xy_m[1]))


# ------------------------------------------------------------------------------------------------------------ spawn v1
def test_v1_draws_x_then_y_then_yaw_from_the_seeds_own_generator() -> None:
    u_x, u_y, u_yaw = np.random.default_rng(300).random(3)
    spawn = spawn_v1(300, SIM100B)
    assert spawn.x_m == 0.195 + (0.27 - 0.195) * u_x
    assert spawn.y_m == -0.005 + (0.04 + 0.005) * u_y
    assert spawn.yaw_rad == -np.pi + 2 * np.pi * u_yaw
    assert (spawn.x_m, spawn.y_m, spawn.yaw_rad) == pytest.approx((0.245277757, 0.020196719, -0.755319177), abs=1e-9)
    assert spawn.disk_xy_m == (0.22, 0.11)


def test_initial_distances_of_the_documented_set() -> None:
    """Published for seeds 0-99: mean 9.45, sd 1.30 (ddof 0), range 7.06 to 12.08 cm. Spawns only, no episode."""
    distances_cm = [100 * distance_m(draw_spawn(seed, SIM100B)) for seed in range(100)]
    figures = np.mean(distances_cm), np.std(distances_cm, ddof=0), np.min(distances_cm), np.max(distances_cm)
    assert figures == pytest.approx((9.45, 1.30, 7.06, 12.08), abs=0.0051)


def test_every_protocol_draws_by_its_own_spawn() -> None:
    for protocol in PROTOCOLS.values():
        function = spawn_v2 if "spawn2" in protocol.name else spawn_v1
        assert draw_spawn(5000, protocol) == function(5000, protocol)


# ------------------------------------------------------------------------------------------------------------ spawn v2
def test_v2_draws_cell_and_place_in_it_then_squared_radius_and_angle_until_accepted_then_yaw() -> None:
    mask, rng = reach_mask(), seeds.stream("spawn-v2", 300)
    i, j = mask.cells_N2[rng.integers(818)]
    disk = 0.01 * (i + rng.random()), 0.01 * (j + rng.random())
    while True:
        radius, angle = np.sqrt(rng.uniform(0.08**2, 0.19**2)), rng.uniform(-np.pi, np.pi)
        x, y = disk[0] + radius * np.cos(angle), disk[1] + radius * np.sin(angle)
        if mask.holds(x, y) and np.hypot(x - 0.190, y) >= 0.04:
            break
    assert spawn_v2(300, SPAWN2) == Spawn(x, y, rng.uniform(-np.pi, np.pi), disk)


@pytest.mark.parametrize(("base", "jaws", "clear_m"), [("sim100", (0.155, 0.0), 0.06), ("sim100b", (0.190, 0.0), 0.04)])
def test_v2_keeps_its_bounds(base: str, jaws: tuple[float, float], clear_m: float) -> None:
    mask = reach_mask()
    for seed in range(300, 800):
        spawn = spawn_v2(seed, PROTOCOLS[f"{base}-spawn2"])
        assert mask.holds(spawn.x_m, spawn.y_m) and mask.holds(*spawn.disk_xy_m)
        assert 0.08 <= distance_m(spawn) <= 0.19
        assert np.hypot(spawn.x_m - jaws[0], spawn.y_m - jaws[1]) >= clear_m


def test_v2_is_uniform_over_the_cells_and_by_area_over_the_ring() -> None:
    """On a square that contains every ring nothing but the jaws is rejected, so the ring's law shows."""
    square = ReachMask(np.array([(i, j) for i in range(-20, 40) for j in range(20, 80)], dtype=np.int32))
    inner = ReachMask(np.array([(i, j) for i in range(0, 20) for j in range(40, 60)], dtype=np.int32))
    everywhere = ReachMask(square.cells_N2[np.lexsort((square.cells_N2[:, 1], square.cells_N2[:, 0]))])
    spawns = [spawn_v2(seed, SPAWN2, everywhere) for seed in range(1500)]
    x_m, y_m = np.array([s.disk_xy_m for s in spawns]).T
    assert stats.kstest((x_m + 0.20) / 0.60, "uniform").pvalue > 0.01
    assert stats.kstest((y_m - 0.20) / 0.60, "uniform").pvalue > 0.01
    middle = [s for s in spawns if inner.holds(*s.disk_xy_m)]
    area = (np.array([distance_m(s) for s in middle]) ** 2 - 0.08**2) / (0.19**2 - 0.08**2)
    assert len(middle) > 100 and stats.kstest(area, "uniform").pvalue > 0.01
    assert stats.kstest((np.array([s.yaw_rad for s in spawns]) + np.pi) / (2 * np.pi), "uniform").pvalue > 0.01


def test_a_mask_without_room_for_the_ring_raises_instead_of_looping() -> None:
    with pytest.raises(IntegrityError, match="200 tries"):
        spawn_v2(300, SPAWN2, ReachMask(np.array([[20, 0]], dtype=np.int32)))


def test_every_cell_leaves_room_for_the_boat() -> None:
    """Nowhere is a place found for fewer than one try in fifteen: 200 tries in vain are then one in a million seeds."""
    mask, rng = reach_mask(), np.random.default_rng(0)
    radius_m, angle = np.sqrt(rng.uniform(0.08**2, 0.19**2, 300)), rng.uniform(-np.pi, np.pi, 300)
    for jaws, clear_m in (((0.155, 0.0), 0.06), ((0.190, 0.0), 0.04)):
        for cell in mask.cells_N2[::5]:
            x_m, y_m = (0.01 * (cell + 0.5))[:, None] + radius_m * np.stack([np.cos(angle), np.sin(angle)])
            clear = np.hypot(x_m - jaws[0], y_m - jaws[1]) >= clear_m
            room = [mask.holds(x, y) and bool(far) for x, y, far in zip(x_m, y_m, clear, strict=True)]
            assert np.mean(room) > 1 / 15, cell


# ----------------------------------------------------------------------------------------------------------- the mask
def test_the_reach_mask_is_the_frozen_one() -> None:
    assert len(reach_mask().cells_N2) == 818
    assert spawn.mask_digest() == "15f7a1b84ad8bbbc6bd769fcdbf00653ff8eecbf3160c1c6d84580cb3fece798"
    assert spawn.parse_mask(reach.as_text(reach_mask())).cells_N2.tolist() == reach_mask().cells_N2.tolist()


def test_the_reach_mask_is_what_the_arm_can_reach() -> None:
    """A sample of cells, most of them at the mask's edge, measured again."""
    mask, scene = reach_mask(), shared_scene("sim100b")
    arm, inside = ArmKinematics(scene), reach.on_table(scene)
    known = {(int(i), int(j)) for i, j in mask.cells_N2}
    around = {(i + a, j + b) for i, j in known for a in (-1, 0, 1) for b in (-1, 0, 1)}
    edge = sorted(cell for cell in known if not {(cell[0] + 1, cell[1]), (cell[0] - 1, cell[1])} <= known)
    sample = edge[::24] + sorted(around - known)[::24] + sorted(known)[::160]
    for i, j in sample:
        corners = [(0.01 * (i + a), 0.01 * (j + b)) for a in (0, 1) for b in (0, 1)]
        reached = all(inside(x, y) for x, y in corners) and all(reach.reaches(arm, x, y) for x, y in corners)
        assert reached == ((i, j) in known), (i, j)


@pytest.mark.parametrize("text", ["", "0 0 #x#", "0 #", "a 0 #"])
def test_a_damaged_mask_is_refused(text: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mask.txt").write_text(text)
    monkeypatch.setattr(spawn, "MASK_FILE", tmp_path / "mask.txt")
    reach_mask.cache_clear()
    try:
        with pytest.raises(IntegrityError, match=r"mask\.txt"):
            reach_mask()
    finally:
        reach_mask.cache_clear()


# ------------------------------------------------------------------------------------------------------------- streams
MANY = range(5000, 5200)


def correlations(first_draws, protocol) -> np.ndarray:
    """|correlation| over 200 seeds of the first three uniforms of a stream with x, y and yaw of the boat; [3, 3]."""
    drawn = np.array([first_draws(seed).random(3) for seed in MANY])
    poses = np.array([(s.x_m, s.y_m, s.yaw_rad) for s in (draw_spawn(seed, protocol) for seed in MANY)])
    return np.abs(np.corrcoef(drawn.T, poses.T)[:3, 3:])


@pytest.mark.parametrize("protocol", [SIM100B, SPAWN2], ids=["v1", "v2"])
@pytest.mark.parametrize("purpose", ["appearance", "camera-noise", "token"])
def test_what_other_purposes_draw_says_nothing_about_the_spawn(purpose: str, protocol) -> None:
    """200 independent pairs give |r| with a standard deviation of 0.07; 0.28 is four of these."""
    assert correlations(lambda seed: seeds.stream(purpose, seed), protocol).max() < 0.28


def test_that_test_finds_the_leak_of_the_documented_system() -> None:
    """There, appearance came from a second ``default_rng(seed)``: its first draws were x, y and yaw themselves."""
    np.testing.assert_allclose(np.diag(correlations(np.random.default_rng, SIM100B)), 1.0)
