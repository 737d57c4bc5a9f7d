"""Finished episodes played again in processes of their own: their film, their trace, and whether anything moved in it.

In: recordings and an environment spec. Out: one `Replayed` a recording. An episode is a function of its chunks, so what
is filmed is the episode that was evaluated; a replay with other metrics is an error. Left out: file formats (`video`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vla_rl.errors import IntegrityError, UsageError
from vla_rl.evals.looks import Recording
from vla_rl.evals.players import own_environment, play_each
from vla_rl.evals.video import open_film
from vla_rl.policy.prompt import CAMERAS
from vla_rl.rollout.records import EpisodeSpec
from vla_rl.sim.metrics import trace_columns
from vla_rl.sim.stillness import GREY_SIZE, SAMPLE_S, picture_motion

FILM_PX = 320  # height and width of each camera's half of the film
NEEDED = ("tick", "get_frame", "trace", "tick_s")


@dataclass(frozen=True)
class Replayed:
    """What a second run of an episode showed.

    Attributes:
        seed: environment seed.
        film: where its film is; None if it was not filmed.
        motion: see `sim.stillness.picture_motion`; None if it was not filmed, or is shorter than half a second.
        trace: see `sim.metrics.trace_columns`.
    """

    seed: int
    film: Path | None
    motion: float | None
    trace: dict[str, Any]


def replay_all(
    recordings: Sequence[Recording],
    *,
    env_spec: Mapping[str, Any],
    plugins: Sequence[str],
    workers: int,
    film: Collection[int],
    directory: Path,
    on_done: Callable[[int], None] = lambda done: None,
) -> list[Replayed]:
    """Play recordings again, in their order.

    Args:
        recordings: any number.
        env_spec: plain dict with `_target_`: the environment that they were made in.
        plugins: packages besides `vla_rl` that it may come from.
        workers: processes.
        film: seeds that are filmed, both cameras side by side, into `directory`.
        directory: made if absent and needed.
        on_done: told how many have ended.

    Raises:
        IntegrityError: a replay came out differently.
        RolloutError: a process died.
        UsageError: the environment cannot be played tick by tick.
    """
    if not recordings:
        return []
    if film:
        directory.mkdir(parents=True, exist_ok=True)
    stems = [directory / EpisodeSpec(r.seed).episode_id if r.seed in film else None for r in recordings]
    replayed: list[Replayed] = []
    playing = play_each(_replay, recordings, stems, workers=workers, env_spec=env_spec, plugins=plugins)
    with closing(playing):
        for result in playing:
            replayed.append(result)
            on_done(len(replayed))
    return replayed


def _replay(recording: Recording, stem: Path | None) -> Replayed:
    """In a child process: one episode, filmed to `stem` if there is one."""
    return play(own_environment(), recording, stem)


def play(env: Any, recording: Recording, stem: Path | None) -> Replayed:
    """Run a recording in an environment of this process; see `replay_all`."""
    missing = [name for name in NEEDED if not hasattr(env, name)]
    if missing:
        raise UsageError(
            f"{type(env).__name__} cannot be played tick by tick: it has no {', '.join(missing)}",
            where="sim",
            remedy="leave videos and traces out: --video none, eval.traces=false",
        )
    grey: list[np.ndarray] = []
    film = open_film(stem, env.tick_s) if stem else None
    sample_ticks = max(1, round(SAMPLE_S / env.tick_s))
    for tick in _ticks(env, recording):
        if film:
            picture = np.concatenate([env.get_frame(camera, FILM_PX, FILM_PX) for camera in CAMERAS], axis=1)
            film.add(picture)
            if tick % sample_ticks == 0:
                grey.append(np.asarray(Image.fromarray(picture).convert("L").resize(GREY_SIZE)))
    if film:
        film.close()
    _check_same(recording, env.metrics().as_dict())
    return Replayed(recording.seed, film.path if film else None, picture_motion(grey), trace_columns(env.trace))


def _ticks(env: Any, recording: Recording) -> Iterator[int]:
    """Execute the recorded targets; yields 0 after reset, then the number of ticks executed."""
    env.reset(seed=recording.seed)
    yield 0
    executed = env.action_space.shape[0]
    targets_deg = np.concatenate([chunk[:executed] for chunk in recording.chunks_deg])
    for tick, target_deg in enumerate(targets_deg[: recording.metrics["ticks"]]):
        env.tick(target_deg)
        yield tick + 1


def _check_same(recording: Recording, metrics: Mapping[str, Any]) -> None:
    differing = [name for name, value in metrics.items() if recording.metrics.get(name) != value]
    if differing:
        raise IntegrityError(
            f"seed {recording.seed} played again came out differently: {', '.join(differing[:5])}",
            where="replay of an evaluated episode",
            remedy="physics must repeat bit for bit on one machine; look for a change of code or packages meanwhile",
        )
