"""The scripted expert on evaluation seeds: the ceiling against which a policy is read.

In: an environment spec and seeds. Out: episodes with the same metrics as a policy's. The expert reads the true pose and
decides itself when it is done, so `replans` and `tokens` are 0.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vla_rl.config.build import build
from vla_rl.rollout.records import Episode, EpisodeSpec


class ExpertEvaluator:
    """Runs the expert over seeds in processes of their own.

    Args:
        workers: number of processes.
        env_spec: plain dict with `_target_`.
        plugins: packages besides `vla_rl` that the environment may come from.
    """

    def __init__(self, *, workers: int, env_spec: Mapping[str, Any], plugins: Sequence[str] = ()) -> None:
        self._workers, self._env_spec, self._plugins = workers, dict(env_spec), tuple(plugins)

    def run(self, seeds: Sequence[int], on_done: Callable[[int], None] = lambda done: None) -> tuple[Episode, ...]:
        """One episode per seed, in seed order; `on_done` is told how many have ended.

        Raises:
            Exception: whatever an episode raised in its process.
        """
        context = multiprocessing.get_context("spawn")
        episodes: list[Episode] = []
        with context.Pool(self._workers, _start, (self._env_spec, self._plugins)) as pool:
            for episode in pool.imap(_run, seeds):
                episodes.append(episode)
                on_done(len(episodes))
        return tuple(episodes)


_expert: Any = None


def _start(env_spec: dict[str, Any], plugins: tuple[str, ...]) -> None:
    global _expert
    from vla_rl.sim.expert import ScriptedExpert

    _expert = ScriptedExpert(build(env_spec, plugins=plugins, where="sim"))


def _run(seed: int) -> Episode:
    started = time.perf_counter()
    episode = _expert.run(seed, noise=None, record_every=1_000_000, render=False)
    return Episode(EpisodeSpec(seed), episode.metrics.as_dict(), 0, 0, time.perf_counter() - started)
