"""Episodes played again on real physics: the film shows what was evaluated, or there is none."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from toy_world import ToyWorld, spec

from vla_rl.config.build import build
from vla_rl.config.compose import compose
from vla_rl.errors import IntegrityError, UsageError
from vla_rl.evals import film, video
from vla_rl.evals.film import play, replay_all
from vla_rl.evals.looks import Recording
from vla_rl.sim.stillness import FROZEN_BELOW

PX = 64
ENV_SPEC = compose("eval", ["sim.image_px=16", "sim.max_ticks=45"]).component_spec("sim")


@functools.cache
def env() -> Any:
    return build(ENV_SPEC)


@pytest.fixture(autouse=True)
def small_films(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(film, "FILM_PX", PX)  # in this process; a child's films have their real size


def swing(chunks: int, amplitude_deg: float = 12.0) -> list[np.ndarray]:
    ticks = np.arange(chunks * 30)
    targets_deg = np.array(env().scene.protocol.home_deg) + amplitude_deg * np.sin(ticks / 9.0)[:, None]
    return list(targets_deg.reshape(chunks, 30, 6))


def record(seed: int, chunks_deg: list[np.ndarray]) -> Recording:
    """An episode as an evaluation runs it, chunk by chunk."""
    env().reset(seed=seed)
    for chunk_deg in chunks_deg:
        env().step(chunk_deg)
    return Recording(seed, tuple(chunks_deg), env().metrics().as_dict())


def pictures_of(path: Path) -> Iterator[np.ndarray]:
    import av

    with av.open(str(path)) as file:
        yield from (frame.to_ndarray(format="rgb24") for frame in file.decode(video=0))


def test_a_film_has_one_picture_a_tick_in_true_time(tmp_path: Path) -> None:
    import av

    replayed = play(env(), record(300, swing(2)), tmp_path / "seed000300_draw00")
    assert replayed.film == tmp_path / "seed000300_draw00.mp4" and list(tmp_path.iterdir()) == [replayed.film]
    with av.open(str(replayed.film)) as file:
        stream = file.streams.video[0]
        assert (stream.width, stream.height, stream.codec_context.name) == (2 * PX, PX, "h264")
        assert stream.frames == 46 and stream.average_rate == 30  # 45 ticks and the state after reset


def test_a_film_shows_the_episode(tmp_path: Path) -> None:
    played = play(env(), record(300, swing(2)), tmp_path / "it")
    assert played.film
    last = list(pictures_of(played.film))[-1].astype(int)
    shown = np.concatenate([env().get_frame(c, PX, PX) for c in ("top", "wrist")], axis=1).astype(int)
    assert np.abs(last - shown).mean() < 6  # what the codec loses
    env().reset(seed=300)
    start = np.concatenate([env().get_frame(c, PX, PX) for c in ("top", "wrist")], axis=1).astype(int)
    assert np.abs(last - start).mean() > 12


def test_a_tick_of_another_length_is_shown_for_as_long(tmp_path: Path) -> None:
    import av

    writer = video.open_film(tmp_path / "slow", tick_s=0.035)
    for level in range(20):
        writer.add(np.full((32, 64, 3), level * 10, np.uint8))
    writer.close()
    with av.open(str(writer.path)) as file:
        stream = file.streams.video[0]
        assert stream.time_base and stream.duration
        assert float(stream.duration * stream.time_base) == pytest.approx(20 * 0.035, abs=1e-3)


def test_without_the_codec_a_film_is_an_animated_webp_in_true_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "has_video_codec", lambda: False)
    replayed = play(env(), record(300, swing(2)), tmp_path / "it")
    assert replayed.film == tmp_path / "it.webp" and list(tmp_path.iterdir()) == [replayed.film]
    with Image.open(replayed.film) as image:
        assert image.size == (2 * PX, PX) and image.n_frames == 23  # type: ignore[attr-defined]
        shown_ms = 0
        for i in range(23):
            image.seek(i)
            image.load()
            shown_ms += image.info["duration"]
    assert shown_ms == pytest.approx(23 * 2000 / 30, abs=1)


def test_a_still_arm_is_frozen_and_a_moving_one_is_not(tmp_path: Path) -> None:
    still = play(env(), record(300, swing(2, 0.0)), tmp_path / "still").motion
    moving = play(env(), record(300, swing(2)), tmp_path / "moving").motion
    assert still is not None and moving is not None and still < FROZEN_BELOW < 1.41 < moving


def test_without_a_film_there_is_a_trace_and_no_motion(tmp_path: Path) -> None:
    replayed = play(env(), record(300, swing(2)), None)
    assert replayed.film is None and replayed.motion is None
    assert len(replayed.trace["distance_cm"]) == len(replayed.trace["grip"]) == 46


def test_an_episode_that_comes_out_differently_is_an_error(tmp_path: Path) -> None:
    recording = record(300, swing(2))
    tampered = replace(recording, metrics={**recording.metrics, "final_cm": 0.0})
    with pytest.raises(IntegrityError, match="seed 300.*final_cm"):
        play(env(), tampered, None)
    moved = replace(recording, seed=301)
    with pytest.raises(IntegrityError):
        play(env(), moved, None)


def test_a_simulator_without_ticks_cannot_be_filmed(tmp_path: Path) -> None:
    toy = ToyWorld(**{k: v for k, v in spec().items() if k != "_target_"})
    with pytest.raises(UsageError, match="ToyWorld.*tick") as error:
        play(toy, Recording(1, (), {"ticks": 0}), None)
    assert error.value.remedy and "--video none" in error.value.remedy


def test_processes_of_their_own_play_recordings_in_order(tmp_path: Path) -> None:
    recordings = [record(seed, swing(2)) for seed in (301, 300, 302)]
    done: list[int] = []
    arguments: dict[str, Any] = {"env_spec": ENV_SPEC, "plugins": (), "workers": 2, "directory": tmp_path / "videos"}
    replayed = replay_all(recordings, film=(300,), on_done=done.append, **arguments)
    assert [r.seed for r in replayed] == [301, 300, 302] and done == [1, 2, 3]
    assert [r.film for r in replayed] == [None, tmp_path / "videos" / "seed000300_draw00.mp4", None]
    assert replayed[1].trace == play(env(), recordings[1], None).trace
    wrong = [replace(recordings[0], seed=303)]
    with pytest.raises(IntegrityError, match="seed 303") as error:
        replay_all(wrong, film=(), **arguments)
    assert error.value.where and error.value.remedy  # a child's error arrives whole


def test_nothing_to_replay_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(film, "play_each", None)
    assert replay_all([], env_spec={}, plugins=(), workers=2, film=(), directory=tmp_path / "videos") == []
    assert not (tmp_path / "videos").exists()
