"""Clutter: how often and where, and that it is seen where it lies and touched by nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.sim.conftest import PLAIN_LOOK
from vla_rl import seeds
from vla_rl.errors import ConfigError
from vla_rl.sim import patches
from vla_rl.sim.clutter import PLACES, THINGS, Placed, place_things
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.pinhole import Pinhole, Pose

MakeEnv = Callable[..., BoatToDisk]
# Straight down from 0.6 m; picture right is -y, picture up is +x, as in the documented top camera.
OVERHEAD = Pose(np.array([0.0, 0.0, 0.6]), np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
EYE = Pinhole(121, 121, 300.0)


@pytest.mark.parametrize("cameras", ["documented", "close"])
def test_things_are_there_as_often_as_documented_and_where_their_ranges_say(cameras: str) -> None:
    episodes = [place_things(seeds.stream("clutter-test", seed), cameras) for seed in range(2000)]
    for index, thing in enumerate(THINGS):
        place = PLACES[cameras][thing.name]
        found = [item for episode in episodes for item in episode if item.thing == index]
        assert len(found) / 2000 == pytest.approx(place.presence, abs=0.035)  # 3 standard errors
        for item in found:
            assert place.x_m[0] <= item.x_m <= place.x_m[1] and place.y_m[0] <= item.y_m <= place.y_m[1]
            assert abs(item.yaw_rad - place.yaw_rad) <= place.yaw_jitter_rad


def test_documented_presence() -> None:
    assert {name: place.presence for name, place in PLACES["documented"].items()} == {
        "mouse": 0.269,
        "mug": 0.154,
        "laptop": 0.769,
        "pcb": 1.0,
    }


def test_no_thing_lies_where_the_boat_starts_or_under_the_disk(make_env: MakeEnv) -> None:
    """Clutter has no body, so a boat in it would be a picture of the impossible."""
    protocol = make_env().scene.protocol
    reach = 0.035  # half a boat
    for places in PLACES.values():
        for thing in THINGS:
            place, half = places[thing.name], max(thing.half_m[:2])
            patch_x, patch_y = protocol.spawn_x_m, protocol.spawn_y_m
            clear_x = place.x_m[1] + thing.half_m[0] < patch_x[0] - 0.03 or place.x_m[0] - half > patch_x[1] + reach
            clear_y = place.y_m[1] + half < patch_y[0] - reach or place.y_m[0] - half > patch_y[1] + reach
            assert clear_x or clear_y, (thing.name, place)
            corner = np.array([*place.x_m, *place.y_m]).reshape(2, 2).T
            nearest = np.clip(np.array(protocol.disk_xy_m), corner[0], corner[1])
            assert np.hypot(*(nearest - protocol.disk_xy_m)) > protocol.disk_radius_m


def test_standins_are_seen_but_touch_nothing(make_env: MakeEnv) -> None:
    """The model is the same, so the physics is bit-identical, and nothing stays in the scene for the next picture."""
    bare = make_env(look=PLAIN_LOOK | {"cameras": "documented"})
    full = make_env(look=PLAIN_LOOK | {"cameras": "documented", "clutter": "standins"})
    assert full.scene.model.ngeom == bare.scene.model.ngeom
    pictures = []
    for env in (bare, full):
        env.begin(326)
        pictures.append(env.get_frame("top", 112, 112).astype(int))
        for _ in range(20):
            env.tick(np.array(env.scene.protocol.home_deg) + 5.0)
    np.testing.assert_array_equal(bare.data.qpos, full.data.qpos)
    assert (np.abs(pictures[0] - pictures[1]).max(axis=2) > 20).sum() > 300
    full.begin(326)
    first = full.get_frame("top", 112, 112)
    np.testing.assert_array_equal(first, full.get_frame("top", 112, 112))


@pytest.mark.parametrize("clutter", ["standins", "patches"])
def test_a_thing_is_seen_where_it_lies(make_env: MakeEnv, clutter: str) -> None:
    env = make_env(look=PLAIN_LOOK | {"cameras": "documented", "clutter": clutter})
    bare = make_env(look=PLAIN_LOOK | {"cameras": "documented"})
    painter = env.scene.painter
    assert painter is not None
    env.begin(326)
    bare.begin(326)
    changed = np.abs(env.get_frame("top", 224, 224).astype(int) - bare.get_frame("top", 224, 224)).max(axis=2) > 12
    camera = env.scene.model.camera("top").id
    pose = Pose(env.data.cam_xpos[camera], env.data.cam_xmat[camera].reshape(3, 3))
    eye = painter._view("top", 224, 224).source
    for item in painter.appearance(326).things:
        if THINGS[item.thing].name == "laptop":
            continue  # partly outside the picture
        row, column, _ = eye.project(np.array([[item.x_m, item.y_m, 0.0]]), pose)
        around = changed[int(row[0]) - 3 : int(row[0]) + 4, int(column[0]) - 3 : int(column[0]) + 4]
        assert around.mean() > 0.6, THINGS[item.thing].name


def half_red_half_blue(width: int = 60, height: int = 20) -> Image.Image:
    image = Image.new("RGBA", (width, height), (0, 0, 255, 255))
    image.paste((255, 0, 0, 255), (0, 0, width // 2, height))
    return image


def test_a_cut_out_lies_centred_turned_and_scaled_as_its_place_says() -> None:
    """0.12 m wide, seen at 300 / 0.6 = 500 px per metre: 60 px. Left columns lie towards its own +y."""
    cutouts = {"mouse": patches.CutOut(half_red_half_blue(), 0.12)}
    rows, columns = np.mgrid[0:121, 0:121]

    def centre(weight: np.ndarray) -> tuple[float, float]:
        return float((weight * rows).sum() / weight.sum()), float((weight * columns).sum() / weight.sum())

    layer = patches.table_layer([Placed(0, 0.02, 0.03, 0.0)], cutouts, EYE, OVERHEAD)
    assert layer is not None
    assert layer[..., 3].sum() == pytest.approx(60 * 20, rel=0.03)
    np.testing.assert_allclose(centre(layer[..., 3]), (60 - 10, 60 - 15), atol=0.3)
    assert centre(layer[..., 0])[1] < centre(layer[..., 2])[1] - 25  # red on the left, which is +y
    layer = patches.table_layer([Placed(0, 0.0, 0.0, np.pi / 2)], cutouts, EYE, OVERHEAD)
    assert layer is not None
    # Turned by a quarter, its own +y points to the world's -x: down in the picture.
    assert centre(layer[..., 0])[0] > centre(layer[..., 2])[0] + 25
    np.testing.assert_allclose(centre(layer[..., 3]), (60, 60), atol=0.3)


def test_a_far_cut_out_keeps_its_area_and_one_out_of_view_costs_nothing() -> None:
    cutouts = {"mouse": patches.CutOut(half_red_half_blue(600, 200), 0.12)}
    small = Pinhole(25, 25, 62.0)  # a sixteenth of the resolution of the cut-out
    layer = patches.table_layer([Placed(0, 0.0, 0.0, 0.3)], cutouts, small, OVERHEAD)
    assert layer is not None
    assert layer[..., 3].sum() == pytest.approx(0.12 * 0.04 * (62.0 / 0.6) ** 2, rel=0.05)
    assert patches.table_layer([Placed(0, 3.0, 0.0, 0.0)], cutouts, small, OVERHEAD) is None
    upward = Pose(OVERHEAD.position_m, np.diag([1.0, -1.0, -1.0]) @ OVERHEAD.axes_33)
    assert patches.table_layer([Placed(0, 0.0, 0.0, 0.0)], cutouts, small, upward) is None


def test_cut_outs_lie_behind_the_robot(make_env: MakeEnv, tmp_path: Path) -> None:
    """A cut-out as large as the view changes every background pixel and none of the foreground."""
    Image.new("RGBA", (64, 64), (0, 255, 0, 255)).save(tmp_path / "green.png")
    (tmp_path / "patches.json").write_text(json.dumps({"pcb": {"file": "green.png", "width_m": 3.0}}))
    env, bare = make_env(look=PLAIN_LOOK | {"clutter": "patches", "patches": str(tmp_path)}), make_env()
    model = bare.scene.model
    in_front = np.array(model.geom_bodyid) != 0
    in_front[model.geom("disk").id] = True
    env.begin(300)
    bare.begin(300)
    for camera in ("top", "wrist"):
        picture, plain = env.get_frame(camera, 112, 112), bare.get_frame(camera, 112, 112)
        renderer = bare.scene._renderer(112, 112)  # its scene still holds the plain picture
        renderer.enable_segmentation_rendering()
        ids = renderer.render()[..., 0]
        renderer.disable_segmentation_rendering()
        front, table = (ids >= 0) & in_front[ids], ids == model.geom("table").id
        green = (picture == (0, 255, 0)).all(axis=2)
        assert 0.02 < front.mean() < 0.6
        np.testing.assert_array_equal(picture[front], plain[front])
        assert green[table].mean() > 0.97 and not green[front].any()


def test_a_folder_of_cut_outs_is_used_and_a_broken_one_refused(tmp_path: Path) -> None:
    half_red_half_blue().save(tmp_path / "x.png")

    def listed(content: object) -> dict[str, patches.CutOut]:
        (tmp_path / "patches.json").write_text(json.dumps(content))
        return patches.load_cutouts(str(tmp_path))

    cutouts = listed({"mouse": {"file": "x.png", "width_m": 0.12}})
    assert set(cutouts) == {"mouse"} and cutouts["mouse"].levels[0][0] == 500.0
    for wrong in (
        {},
        {"spoon": {"file": "x.png", "width_m": 0.1}},
        {"mouse": {"file": "x.png", "width_m": 0.0}},
        {"mouse": {"file": "y.png", "width_m": 0.1}},
        {"mouse": {"width_m": 0.1}},
        ["mouse"],
    ):
        with pytest.raises(ConfigError, match="patches"):
            listed(wrong)
    with pytest.raises(ConfigError, match="cut-outs"):
        patches.load_cutouts(str(tmp_path / "nowhere"))


def test_every_thing_is_drawn_in_its_size() -> None:
    for thing in THINGS:
        cutout = patches.drawn_cutouts()[thing.name]
        px_per_m, layer = cutout.levels[0]
        rows, columns = np.nonzero(layer[..., 3] > 0.5)
        drawn_m = np.array([np.ptp(rows) + 1, np.ptp(columns) + 1]) / px_per_m
        if thing.name == "mug":
            drawn_m[1] = drawn_m[0]  # its handle sticks out sideways
        np.testing.assert_allclose(drawn_m, 2 * np.array(thing.half_m[:2]), atol=0.003)
