"""The scripted expert on evaluation seeds: the ceiling against which a policy is read.

In: an environment spec and seeds. Out: episodes with the same metrics as a policy's, with what is kept of them. The
expert reads the true pose and decides itself when it is done, so `replans` and `tokens` are 0.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.evals.looks import TOP, Looks, Recording, small
from vla_rl.evals.players import own_environment, play_each
from vla_rl.evals.scene import scene_of
from vla_rl.policy.prompt import CAMERAS
from vla_rl.rollout.records import Episode, EpisodeSpec

LOOK_EVERY = 30  # ticks between the pictures that the middle one is chosen from


@dataclass(frozen=True)
class ExpertPlay:
    """One episode of the expert: its record, three looks at it, what it takes to run it again, and its scene."""

    episode: Episode
    looks: Looks
    recording: Recording
    scene: dict[str, Any]


class ExpertEvaluator:
    """Runs the expert over seeds in processes of their own.

    Args:
        workers: number of processes.
        env_spec: plain dict with `_target_`.
        plugins: packages besides `vla_rl` that the environment may come from.
    """

    def __init__(self, *, workers: int, env_spec: Mapping[str, Any], plugins: Sequence[str] = ()) -> None:
        self.workers, self._env_spec, self._plugins = workers, dict(env_spec), tuple(plugins)

    def run(
        self, seeds: Sequence[int], on_play: Callable[[ExpertPlay], None] = lambda play: None
    ) -> tuple[ExpertPlay, ...]:
        """One episode per seed, in seed order; `on_play` is given each in that order and may raise to stop.

        Raises:
            RolloutError: a process died.
            Exception: whatever an episode raised in its process, or `on_play` here.
        """
        plays: list[ExpertPlay] = []
        playing = play_each(_run, seeds, workers=self.workers, env_spec=self._env_spec, plugins=self._plugins)
        with closing(playing):
            for play in playing:
                plays.append(play)
                on_play(play)
        return tuple(plays)


@functools.cache
def _expert() -> Any:
    """This process's expert."""
    from vla_rl.sim.expert import ScriptedExpert

    return ScriptedExpert(own_environment())


def _run(seed: int) -> ExpertPlay:
    """In a child process: one episode."""
    expert, started = _expert(), time.perf_counter()
    env = expert.env
    env.begin(seed)
    pictures = [_top(env)]
    played = expert.run(seed, noise=None, record_every=LOOK_EVERY, render=True)
    pictures += [*(small(frame.frames[TOP]) for frame in played.observations), _top(env)]
    metrics = played.metrics.as_dict()
    episode = Episode(EpisodeSpec(seed), metrics, 0, 0, time.perf_counter() - started)
    one_tick_each = tuple(played.targets_deg[:, None])
    return ExpertPlay(episode, Looks.of(pictures), Recording(seed, one_tick_each, metrics), scene_of(env))


def _top(env: Any) -> np.ndarray:
    return small(env.get_frame(CAMERAS[TOP], env.image_px, env.image_px))
