"""Photographs as background: folders, fitting, and what is in front of what."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.sim.conftest import PLAIN_LOOK
from vla_rl.errors import ConfigError
from vla_rl.sim import optics, plates
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.look import Look

MakeEnv = Callable[..., BoatToDisk]


def write_plate(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (64, 48)) -> None:
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_plate(tmp_path / "a.png", (10, 200, 30))
    write_plate(tmp_path / "b.png", (200, 10, 30))
    (tmp_path / "plates.json").write_text(json.dumps({"b.png": {"gain": [0.5, 1.0, 1.0], "bias": [1, 2, 3]}}))
    return tmp_path


def composite(folder: Path, **more: object) -> dict[str, object]:
    return PLAIN_LOOK | {"cameras": "documented", "composite": True, "plates": str(folder)} | more


def test_a_folder_gives_its_plates_in_name_order_with_their_light(folder: Path) -> None:
    bank = plates.load_plates(str(folder))
    assert [plate.fitted(4, 4)[0, 0].tolist() for plate in bank] == [[10, 200, 30], [200, 10, 30]]
    assert bank[0].gain_3.tolist() == [1, 1, 1] and bank[1].bias_3.tolist() == [1, 2, 3]


def test_a_plate_fills_the_height_and_is_cut_at_both_sides(tmp_path: Path) -> None:
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:, 8:56] = 100  # the middle square
    picture[:4] = 200
    Image.fromarray(picture).save(tmp_path / "p.png")
    (plate,) = plates.load_plates(str(tmp_path))
    square = plate.fitted(48, 48)
    np.testing.assert_array_equal(square, picture[:, 8:56])
    with pytest.raises(ConfigError, match="wider"):
        plate.fitted(96, 48)


@pytest.mark.parametrize(
    "lights",
    ['{"c.png": {"gain": [1, 1, 1], "bias": [0, 0, 0]}}', '{"a.png": {"gain": [1, 1, 1]}}', "[]x", '{"a.png": 3}']
    + ['{"a.png": {"gain": [1, 1], "bias": [0, 0, 0]}}', '{"a.png": {"gain": [1, 1, "x"], "bias": [0, 0, 0]}}'],
)
def test_a_wrong_table_of_lights_is_refused(folder: Path, lights: str) -> None:
    (folder / "plates.json").write_text(lights)
    with pytest.raises(ConfigError, match="gain"):
        plates.load_plates(str(folder))


def test_an_empty_folder_and_a_file_that_is_no_picture_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no PNG"):
        plates.load_plates(str(tmp_path))
    (tmp_path / "x.png").write_bytes(b"not a picture")
    with pytest.raises(ConfigError, match="cannot read"):
        plates.load_plates(str(tmp_path))


def test_a_composite_without_photographs_says_that_none_ships() -> None:
    with pytest.raises(ConfigError, match="none ships") as error:
        Look.from_config(PLAIN_LOOK | {"composite": True})
    assert "plates.json" in str(error.value) and "sim.look.plates" in str(error.value)


def test_the_weight_decides_between_foreground_and_background() -> None:
    front, back = np.full((1, 3, 3), 100.0), np.full((1, 3, 3), 20.0)
    out = plates.compose_over(front, np.array([[[0.0], [0.25], [1.5]]]), back)
    np.testing.assert_allclose(out[0, :, 0], (20.0, 40.0, 100.0))


def test_the_table_is_replaced_and_the_foreground_takes_the_plates_light(make_env: MakeEnv, folder: Path) -> None:
    env, bare = make_env(look=composite(folder)), make_env(look=PLAIN_LOOK | {"cameras": "documented"})
    painter = env.scene.painter
    assert painter is not None
    drawn = {seed: painter.appearance(seed).plate for seed in range(300, 320)}
    assert set(drawn.values()) == {0, 1}  # a new draw at each reset
    seed = next(seed for seed, plate in drawn.items() if plate == 1)
    env.begin(seed)
    bare.begin(seed)
    picture, plain = env.get_frame("top", 112, 112), bare.get_frame("top", 112, 112)
    on_table = (picture == (200, 10, 30)).all(axis=2)
    assert 0.5 < on_table.mean() < 0.98
    lit = optics.to_counts(plain * np.array([0.5, 1.0, 1.0]) + np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(picture[~on_table], lit[~on_table])
    np.testing.assert_array_equal(env.get_frame("wrist", 112, 112), bare.get_frame("wrist", 112, 112))


def test_cut_outs_and_shadows_fall_on_the_plate_alone(make_env: MakeEnv, folder: Path) -> None:
    only, shaded, strewn = (
        make_env(look=composite(folder, **more)) for more in ({}, {"shadow_strength": 0.392}, {"clutter": "patches"})
    )
    pictures = []
    for env in (only, shaded, strewn):
        env.begin(326)
        pictures.append(env.get_frame("top", 112, 112).astype(float))
    before, dark, things = pictures
    background = (before == before[0, -1]).all(axis=2)
    for after in (dark, things):
        np.testing.assert_array_equal(before[~background], after[~background])
    share = dark[background] / before[background]
    assert 1.0 - 0.392 <= share.min() < 0.9 and share.max() == 1.0
    assert (np.abs(things - before).max(axis=2) > 60)[background].mean() > 0.02
