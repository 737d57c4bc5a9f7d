"""Looks as a whole: plain stays plain, nothing leaks, colour tells nothing, and each look is one of its own."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.sim.conftest import PLAIN_LOOK, SETTINGS
from vla_rl import seeds
from vla_rl.config.compose import compose, options
from vla_rl.errors import ConfigError
from vla_rl.sim.appearance import draw_appearance, draw_jitter
from vla_rl.sim.cameras import HALF_TURN_X
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.gl import mujoco, new_renderer, switch_effects_off
from vla_rl.sim.look import PLAIN, Look
from vla_rl.sim.protocol import PROTOCOLS
from vla_rl.sim.scene import CAMERA_NAMES, build_model, scene_digest
from vla_rl.sim.spawn import spawn_v1

ROOT = Path(__file__).resolve().parents[2]
SIM100B = PROTOCOLS["sim100b"]
MakeEnv = Callable[..., BoatToDisk]
# Counts of 255 (mean absolute difference over both 112 px pictures) that any two looks are apart in the fixed state of
# the contact sheet. The nearest are the documented cameras with and without shadows, at 0.77.
MIN_DISTANCE = 0.5
# Counts that a cell of the stored sheet may be off, for rasterisers that differ along edges; a missing shadow is 1.5.
GOLDEN_TOLERANCE = 1.0


@functools.cache
def of_option(name: str) -> dict[str, Any]:
    """The node of an option of the group."""
    return compose("demos", [f"sim/look={name}"]).tree["sim"]["look"]


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_looks", ROOT / "benchmarks" / "looks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def every_look(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, BoatToDisk]:
    folder = tmp_path_factory.mktemp("plates")
    bench.draw_plates(folder)
    return bench.environments(folder, 112)


# ------------------------------------------------------------------------------------------------------ configuration
def test_the_default_look_is_plain_and_every_option_is_a_look() -> None:
    assert Look.from_config(compose("demos").tree["sim"]["look"]) == PLAIN
    assert not PLAIN.painted
    looks = {name: of_option(name) for name in options("sim/look")}
    assert looks["composite"]["plates"] is None
    looks["composite"] = looks["composite"] | {"plates": "somewhere"}
    assert len({Look.from_config(node) for node in looks.values()}) == len(looks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lens": "fish"}, "one of none, equidistant, fitted"),
        ({"noise_counts": -1.0}, "at least 0"),
        ({"shadow_strength": float("nan")}, "finite"),
        ({"colour": 1}, "no key sim.look.colour"),
        ({"patches": "x"}, "shows no cut-outs"),
        ({"plates": "x"}, "nothing is composited"),
    ],
)
def test_a_look_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Look.from_config(PLAIN_LOOK | change)
    with pytest.raises(ConfigError, match="no value for sim.look.lens"):
        Look.from_config({key: value for key, value in PLAIN_LOOK.items() if key != "lens"})


def test_a_folder_that_does_not_exist_is_named(make_env: MakeEnv, tmp_path: Path) -> None:
    for change in ({"composite": True, "plates": str(tmp_path / "no")}, {"clutter": "patches", "patches": "/no"}):
        with pytest.raises(ConfigError, match="sim.look"):
            make_env(look=PLAIN_LOOK | change)


# ------------------------------------------------------------------------------------------------------------- digest
def test_the_scene_digest_changes_with_every_field_of_the_look(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), (1, 2, 3)).save(tmp_path / "a.png")
    composite = {"composite": True, "plates": str(tmp_path)}
    patches = {"clutter": "patches", "patches": str(tmp_path)}
    changes: list[dict[str, Any]] = [
        {},
        {"cameras": "documented"},
        {"mount": "flipped"},
        {"lens": "equidistant"},
        {"lens": "fitted"},
        {"grade": "documented"},
        {"blur_px": 0.7},
        {"noise_counts": 2.0},
        {"jitter": True},
        {"shadow_strength": 0.392},
        {"shadow_px": 12.0},
        {"clutter": "standins"},
        {"clutter": "patches"},
        patches,
        composite,
    ]
    assert {key for change in changes for key in change} == set(PLAIN_LOOK)
    looks = [Look.from_config(PLAIN_LOOK | change) for change in changes]
    digests = [scene_digest(SIM100B, look) for look in looks]
    assert len(set(digests)) == len(digests)
    assert scene_digest(SIM100B, Look.from_config(PLAIN_LOOK | {"noise_counts": 2})) in digests  # 2 is 2.0
    Image.new("RGB", (4, 4), (1, 2, 4)).save(tmp_path / "a.png")
    after = [scene_digest(SIM100B, look) for look in looks]
    changed = [change for change, old, new in zip(changes, digests, after, strict=True) if old != new]
    assert changed == [patches, composite]  # the content of a folder counts, not its name


# -------------------------------------------------------------------------------------------------------------- plain
def test_plain_pictures_come_straight_from_the_renderer(make_env: MakeEnv) -> None:
    env = make_env()
    assert env.scene.painter is None
    env.begin(301)
    renderer = new_renderer(env.scene.model, 112, 112)
    for camera in ("top", "wrist"):
        renderer.update_scene(env.data, CAMERA_NAMES[camera])
        switch_effects_off(renderer.scene)
        np.testing.assert_array_equal(env.get_frame(camera, 112, 112), renderer.render())
    renderer.close()


def test_a_painter_with_nothing_to_do_gives_the_plain_picture(make_env: MakeEnv) -> None:
    """Noise too small to round: the whole path of a painted picture, with the plain result."""
    env, plain = make_env(look=PLAIN_LOOK | {"noise_counts": 1e-6}), make_env()
    assert env.scene.painter is not None
    for each in (env, plain):
        each.begin(301)
    for camera in ("top", "wrist"):
        np.testing.assert_array_equal(env.get_frame(camera, 112, 112), plain.get_frame(camera, 112, 112))


# ---------------------------------------------------------------------------------------------------------- isolation
def fingerprint(env: BoatToDisk, seed: int, *others: BoatToDisk) -> str:
    """Digest of the pictures of a short episode, with other environments drawing pictures in between."""
    digest = hashlib.sha256()
    env.begin(seed)
    for step in range(2):
        for k, other in enumerate(others):
            other.begin(310 + step + k)
            other.observe()
            other.get_frame("top", 64, 64)
        observation = env.observe()
        digest.update(observation["top"].tobytes() + observation["wrist"].tobytes())
        for _ in range(5):
            env.tick(np.array(env.scene.protocol.home_deg) + 4.0)
    return digest.hexdigest()


EVERYTHING = {"noise_counts": 2.0, "jitter": True, "shadow_strength": 0.392, "clutter": "standins"}


def test_a_picture_depends_on_nothing_that_was_drawn_before(make_env: MakeEnv) -> None:
    """Alone in a new process, alone here, and among other episodes, other looks and plain pictures: the same bits."""
    code = (
        "from tests.sim.conftest import PLAIN_LOOK, SETTINGS; from tests.sim.test_look import *;"
        "print(fingerprint(BoatToDisk(**SETTINGS | {'look': PLAIN_LOOK | EVERYTHING}), 305))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    look = PLAIN_LOOK | EVERYTHING
    same_look, plain, patched = make_env(look=look), make_env(), make_env(look=of_option("clutter_patches"))
    before = fingerprint(plain, 305)
    among = fingerprint(make_env(look=look), 305, same_look, plain, patched)
    assert among == fingerprint(make_env(look=look), 305)
    assert among != fingerprint(make_env(look=look), 306)
    assert fingerprint(plain, 305, same_look, patched) == before
    assert child.communicate(timeout=120)[0].strip() == among


def test_a_video_frame_does_not_change_what_is_seen_next_and_each_tick_has_noise_of_its_own(make_env: MakeEnv) -> None:
    env = make_env(look=PLAIN_LOOK | {"noise_counts": 2.0})
    env.begin(300)
    first = env.get_frame("top", 112, 112)
    env.render()
    np.testing.assert_array_equal(first, env.get_frame("top", 112, 112))
    env.tick(env.state_deg)
    still = np.abs(env.get_frame("top", 112, 112).astype(int) - first)
    assert 1.5 < still.mean() < 3.0  # two independent draws of sigma 2: mean absolute difference 2.26
    env.begin(301)
    assert not np.array_equal(first[:20], env.get_frame("top", 112, 112)[:20])


# ------------------------------------------------------------------------------------------------------------- colour
def r_squared(targets_N3: np.ndarray, predictors_NP: np.ndarray) -> np.ndarray:
    """Share of each target's variance that a linear fit on the predictors explains."""
    design = np.column_stack([np.ones(len(predictors_NP)), predictors_NP])
    left = targets_N3 - design @ np.linalg.lstsq(design, targets_N3, rcond=None)[0]
    return 1.0 - left.var(axis=0) / targets_N3.var(axis=0)


def test_the_boats_colour_tells_nothing_about_where_it_is() -> None:
    """Regress the spawn's x, y and yaw on the tint and its casts over 200 seeds: R^2 is that of chance.

    By chance R^2 follows Beta(2, 97.5): mean 0.020, and 0.089 is exceeded once in a thousand. Drawn as in the described
    system, both from ``default_rng(seed)``, the same regression recovers the spawn exactly.
    """
    band = range(200)
    spawns = np.array([(s.x_m, s.y_m, s.yaw_rad) for s in (spawn_v1(seed, SIM100B) for seed in band)])
    look = Look.from_config(PLAIN_LOOK | {"jitter": True})
    ours = [draw_appearance(look, seed, 0).jitter for seed in band]
    described = [draw_jitter(np.random.default_rng(seed)) for seed in band]
    explained = []
    for jitters in (ours, described):
        explained.append(r_squared(spawns, np.array([[j.tint, *j.casts] for j in jitters if j is not None])))
    assert (explained[0] < 0.089).all(), explained[0]
    np.testing.assert_allclose(explained[1], 1.0, atol=1e-9)


def test_jitter_stays_in_its_documented_ranges_and_reaches_the_picture(make_env: MakeEnv) -> None:
    jitters = [draw_jitter(seeds.stream("jitter-test", seed)) for seed in range(500)]
    for jitter in jitters:
        assert 0.72 <= jitter.tint <= 0.92 and all(-0.06 <= cast <= 0.04 for cast in jitter.casts)
        assert np.linalg.norm(jitter.sun_direction) == pytest.approx(1.0) and jitter.sun_direction[2] <= -np.cos(0.45)
        assert 0.85 * 0.93 <= jitter.sun_factor.min() and jitter.sun_factor.max() <= 1.18 * 1.07
    env = make_env(look=PLAIN_LOOK | {"jitter": True})
    tables = []
    for seed in range(300, 306):
        env.begin(seed)
        tables.append(env.get_frame("top", 112, 112)[-1, 0].tolist())
    assert len({tuple(table) for table in tables}) == len(tables)  # sun, warmth, fill and table tone differ
    painter = env.scene.painter
    assert painter is not None
    renderer = env.scene._renderer(112, 112)
    jitter = painter.appearance(305).jitter
    assert jitter is not None
    boat = [geom.rgba[:3] for geom in renderer.scene.geoms[: renderer.scene.ngeom] if geom.objid in painter._boat]
    np.testing.assert_allclose(boat, [jitter.boat_rgb] * 5, atol=1e-6)
    assert (env.scene.model.geom_rgba[list(painter._boat)][:, 0] != jitter.boat_rgb[0]).all()  # the model is untouched


def test_the_plate_and_the_clutter_of_a_seed_do_not_hang_on_what_else_is_random() -> None:
    few = draw_appearance(Look.from_config(PLAIN_LOOK | {"clutter": "standins"}), 300, 0)
    many = draw_appearance(
        Look.from_config(PLAIN_LOOK | {"clutter": "standins", "jitter": True, "composite": True, "plates": "x"}), 300, 9
    )
    assert few.things == many.things and many.jitter is not None and many.plate is not None


# ------------------------------------------------------------------------------------------------------------ cameras
def test_documented_cameras_stand_and_look_as_documented(make_env: MakeEnv) -> None:
    env = make_env(look=of_option("documented_cameras"))
    env.begin(300)
    top = env.scene.model.camera("top").id
    np.testing.assert_allclose(env.data.cam_xpos[top], (-0.02, -0.125, 0.555))
    axes = env.data.cam_xmat[top].reshape(3, 3)
    np.testing.assert_allclose(axes[:, 0], (0, -1, 0), atol=1e-9)  # picture right is -y
    np.testing.assert_allclose(axes[:, 1], (0.9063, 0, 0.4226), atol=1e-4)
    np.testing.assert_allclose(env.scene.model.cam_fovy, 52.0)
    wrist = env.scene.model.camera("wrist_cam")
    np.testing.assert_allclose(wrist.pos, (0.02416, -0.05504, 0.03225))
    np.testing.assert_allclose(wrist.quat, (-0.24345, -0.05192, 0.02663, 0.96816), atol=1e-4)
    lens = make_env(look=of_option("lens")).scene.model
    np.testing.assert_allclose(lens.cam_fovy, 72.0, atol=1e-4)


def mount_pixels(model: Any, data: Any) -> tuple[int, np.ndarray]:
    """(pixel count, mean row and column) of the bracket's visible mesh in a 300 px picture of the gripper."""
    body = model.body("camera_mount").id
    (mesh,) = [
        g
        for g in range(model.ngeom)
        if model.geom_bodyid[g] == body and model.geom_type[g] == int(mujoco.mjtGeom.mjGEOM_MESH)
    ]
    viewpoint = mujoco.MjvCamera()
    viewpoint.lookat[:] = data.xpos[model.body("gripper").id]
    viewpoint.distance, viewpoint.azimuth, viewpoint.elevation = 0.6, 0.0, 0.0
    renderer = new_renderer(model, 300, 300)
    try:
        renderer.update_scene(data, viewpoint)
        renderer.enable_segmentation_rendering()
        rows, columns = np.nonzero(renderer.render()[..., 0] == mesh)
    finally:
        renderer.close()
    return len(rows), np.array([rows.mean(), columns.mean()])


def test_the_flipped_bracket_moves_in_the_picture_too(make_env: MakeEnv) -> None:
    """Mesh and boxes move, the camera does not. Turning the geoms of a compiled model instead, the obvious edit, moves
    the boxes alone: the compiler marked the mesh as sharing its body's inertial frame. The last lines prove that this
    test sees the difference."""
    standard, flipped = make_env(), make_env(look=of_option("flipped_mount"))
    pose_deg = np.array(standard.scene.protocol.home_deg)
    for env in (standard, flipped):
        env.data.qpos[:6] = np.deg2rad(pose_deg)
        mujoco.mj_forward(env.scene.model, env.data)
    count, where = mount_pixels(standard.scene.model, standard.data)
    count_flipped, where_flipped = mount_pixels(flipped.scene.model, flipped.data)
    assert min(count, count_flipped) > 100
    assert np.linalg.norm(where_flipped - where) > 40.0
    for name in ("camera_box1", "camera_box2"):
        local = standard.scene.model.geom(name).pos
        body = standard.scene.model.body("gripper").id
        axes = standard.data.xmat[body].reshape(3, 3)
        expected = standard.data.xpos[body] + axes @ (local * (1, -1, -1))
        np.testing.assert_allclose(flipped.data.geom(name).xpos, expected, atol=1e-9)
    for data_name in ("cam_xpos", "cam_xmat"):
        camera = standard.scene.model.camera("wrist_cam").id, flipped.scene.model.camera("wrist_cam").id
        here, there = (getattr(env.data, data_name)[c] for env, c in zip((standard, flipped), camera, strict=True))
        np.testing.assert_allclose(here, there, atol=1e-9)

    model = build_model(SIM100B, PLAIN)  # one of our own, to be spoilt
    for geom in np.flatnonzero(model.geom_bodyid == model.body("camera_mount").id):
        model.geom_pos[geom, 1:] *= -1.0
        turned = np.empty(4)
        mujoco.mju_mulQuat(turned, np.array(HALF_TURN_X), model.geom_quat[geom])
        model.geom_quat[geom] = turned
    data = mujoco.MjData(model)
    data.qpos[:6] = np.deg2rad(pose_deg)
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.geom("camera_box1").xpos, flipped.data.geom("camera_box1").xpos, atol=1e-9)
    assert mount_pixels(model, data)[0] == count  # the boxes have moved, the picture has not


def test_the_arm_rests_at_home_with_either_bracket(make_env: MakeEnv) -> None:
    env = make_env(look=of_option("flipped_mount"))
    env.begin(300)
    np.testing.assert_allclose(env.state_deg, env.scene.protocol.home_deg, atol=0.05)
    assert env.metrics().reset_strikes == 0
    assert env.scene.grip_code(env.data) == 0


# ---------------------------------------------------------------------------------------------------- looks as a whole
def test_top_only_effects_leave_the_wrist_alone(every_look: dict[str, BoatToDisk]) -> None:
    wrist = {name: env.get_frame("wrist", 112, 112) for name, env in every_look.items()}
    np.testing.assert_array_equal(wrist["shadows"], wrist["documented_cameras"])
    assert (wrist["lens"] != wrist["documented_cameras"]).any()


def test_shadows_darken_the_table_and_nothing_else(every_look: dict[str, BoatToDisk]) -> None:
    before, after = (every_look[name].get_frame("top", 112, 112) for name in ("documented_cameras", "shadows"))
    assert (after <= before).all()
    darker = (after < before).any(axis=2)
    assert 0.05 < darker.mean() < 0.9
    ratio = after[darker].sum() / before[darker].sum()
    assert 1 - 0.392 < ratio < 0.99
    yellow = (before[..., 0] > 150) & (before[..., 2] < 60)  # the robot
    assert yellow.mean() > 0.05 and not darker[yellow].any()


def test_any_two_looks_are_apart(bench: Any, every_look: dict[str, BoatToDisk]) -> None:
    distance = bench.pairwise_distance(every_look, 112)
    assert len(every_look) == len(options("sim/look")) and len(distance) == len(every_look) * (len(every_look) - 1) // 2
    assert min(distance.values()) > MIN_DISTANCE, sorted(distance.items(), key=lambda item: item[1])[:3]


def test_the_contact_sheet_in_the_documentation_is_up_to_date(bench: Any, every_look: dict[str, BoatToDisk]) -> None:
    path = ROOT / "docs" / "looks.png"
    with Image.open(path) as image:
        golden = np.asarray(image.convert("RGB"), int)
    now = np.asarray(bench.contact_sheet(every_look), int)
    assert golden.shape == now.shape, "repeat: python benchmarks/looks.py --sheet docs/looks.png"
    off = np.abs(golden - now).mean(axis=2)
    for rows in np.array_split(off, -(-len(every_look) // bench.COLUMNS)):
        for cell in np.array_split(rows, 2 * bench.COLUMNS, axis=1):
            assert cell.mean() < GOLDEN_TOLERANCE
    assert path.stat().st_size < 400_000


def test_the_settings_of_the_tests_are_the_plain_look() -> None:
    assert Look.from_config(SETTINGS["look"]) == PLAIN
