"""Films before and after: captions, true time, and a limit that holds whatever is shown."""

import io

import numpy as np
import pytest
from PIL import Image

from vla_rl.evals.video import Mp4Film, WebpFilm, has_video_codec, read_film
from vla_rl.report.beforeafter import HEAD_PX, LIMIT, SIZES_PX, Side, side_by_side, thinned

TICK_S = 1 / 30


def noise(ticks, seed):
    """The worst that can be filmed: nothing repeats."""
    rng = np.random.default_rng(seed)
    return [(i * TICK_S, rng.integers(0, 256, (160, 320, 3), dtype=np.uint8)) for i in range(ticks)]


def plain(ticks, value):
    return [(i * TICK_S, np.full((64, 128, 3), value, np.uint8)) for i in range(ticks)]


def side(pictures, title="before", success=False):
    return Side(title, "base, 0 updates", "no success: touched", success, thinned(pictures))


def frames(data):
    with Image.open(io.BytesIO(data)) as film:
        told = []
        for i in range(film.n_frames):
            film.seek(i)
            told.append((np.asarray(film.convert("RGB")), film.info["duration"]))
        return told


def test_a_long_episode_of_noise_keeps_the_limit():
    data = side_by_side(side(noise(600, 1)), side(noise(300, 2), "after"), 10000)
    assert 100_000 < len(data) <= LIMIT
    shown = frames(data)
    assert 19.5 <= sum(duration for _, duration in shown) / 1000 <= 23, "twenty seconds, in true time, and a moment"


@pytest.mark.parametrize("limit", [200_000, 100_000])
def test_smaller_limits_are_kept_by_fewer_and_smaller_pictures(limit):
    sides = side(noise(90, 3)), side(noise(90, 4), "after")
    large, small = side_by_side(*sides, 7), side_by_side(*sides, 7, limit=limit)
    assert len(small) <= limit < len(large)
    a, b = frames(large), frames(small)
    assert len(b) < len(a) or b[0][0].shape < a[0][0].shape


def test_what_cannot_fit_is_an_error_and_no_file_over_the_limit():
    with pytest.raises(ValueError, match="seed 7"):
        side_by_side(side(noise(30, 3)), side(noise(30, 4)), 7, limit=500)


def test_a_short_film_is_shown_in_full_size_and_the_shorter_side_stands_still():
    data = side_by_side(side(plain(31, 200)), side([*plain(61, 10)[:60], (2.0, np.full((64, 128, 3), 120, np.uint8))],
                                                   "after", True), 10007)  # fmt: skip
    shown = frames(data)
    first, last = shown[0][0], shown[-1][0]
    size = SIZES_PX[0]
    assert first.shape[1] == 2 * size + 6
    middle = HEAD_PX + size // 2
    assert abs(int(first[middle, size // 2, 0]) - 200) < 12 and abs(int(last[middle, size // 2, 0]) - 200) < 12
    assert abs(int(first[middle, -size // 2, 0]) - 10) < 12 and abs(int(last[middle, -size // 2, 0]) - 120) < 12
    assert (first[:HEAD_PX, : size // 2] != 255).any() and (first[:HEAD_PX, size + 10 :] != 255).any(), "captions"
    assert abs(sum(duration for _, duration in shown) / 1000 - 3.5) < 0.1, "two seconds and a moment"


def test_a_name_of_several_lines_is_written_in_one():
    film = thinned(plain(3, 50))
    one, several = (Side("after", name, "success", True, film) for name in ("a b, 40 updates", "a\n b,\n40 updates"))
    assert side_by_side(one, one, 7) == side_by_side(several, several, 7)


def test_the_same_episodes_give_the_same_bytes():
    sides = side(noise(20, 5)), side(noise(30, 6), "after")
    assert side_by_side(*sides, 1) == side_by_side(*sides, 1)


def test_of_a_film_the_left_camera_is_kept_ten_times_a_second_and_always_the_last():
    pictures = [(i * TICK_S, np.concatenate([np.full((8, 8, 3), i), np.full((8, 8, 3), 255)], axis=1).astype(np.uint8))
                for i in range(32)]  # fmt: skip
    kept = thinned(iter(pictures), size_px=8)
    assert [int(picture[0, 0, 0]) for _, picture in kept] == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31]
    assert all(picture.shape == (8, 8, 3) for _, picture in kept)


@pytest.mark.parametrize("kind", [Mp4Film, WebpFilm])
def test_a_film_is_read_back_with_its_times(kind, tmp_path):
    if kind is Mp4Film and not has_video_codec():
        pytest.skip("no H.264 here")
    film = kind(tmp_path / f"a.{'mp4' if kind is Mp4Film else 'webp'}", TICK_S)
    for i in range(31):
        film.add(np.full((32, 64, 3), 8 * i, np.uint8))
    film.close()
    told = list(read_film(film.path))
    every = 1 if kind is Mp4Film else 2
    assert len(told) == len(range(0, 31, every))
    assert [at for at, _ in told] == pytest.approx([i * TICK_S for i in range(0, 31, every)], abs=0.002)
    assert abs(int(told[-1][1].mean()) - 240) < 12 and told[0][1].shape == (32, 64, 3)
