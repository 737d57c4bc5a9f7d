"""Who acts in a recorded episode: the scripted expert on a seed, or the stored actions of a rollout.

In: a recipe. Out: a source whose `record(job)` gives one `RecordedEpisode`, a function of recipe and job alone. Runs in
the recording processes, so nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from vla_rl.config.build import build
from vla_rl.policy.chunks import ChunkCodec
from vla_rl.rollout.jsonl import dump_json
from vla_rl.rollout.store import read_episode
from vla_rl.sft.recipe import DemoRecipe
from vla_rl.sft.recording import RecordedEpisode, TickRecorder

NOT_SUCCESSFUL = "the rollout did not succeed"
OTHER_EPISODE = "the replay is another episode"


class Source(Protocol):
    """What a recording process needs."""

    def record(self, job: Any) -> RecordedEpisode: ...


def open_source(recipe: DemoRecipe) -> Source:
    """The source of a recipe, with an environment of its own."""
    env = TickRecorder(build(recipe.env, plugins=recipe.plugins, where="sim"))
    return ExpertSource(env, recipe) if recipe.rollouts is None else RolloutSource(env, recipe)


class ExpertSource:
    """The scripted expert; a job is a seed. Each seed decides for itself whether it is noisy and whether it misses."""

    def __init__(self, env: TickRecorder, recipe: DemoRecipe) -> None:
        from vla_rl.sim.expert import DemoNoise, ScriptedExpert

        assert recipe.expert is not None
        settings = recipe.expert
        low, high = settings.noise_deg
        self._env, self._expert = env, ScriptedExpert(cast(Any, env))
        self._noise = DemoNoise(
            noisy_share=settings.noise_share,
            noise_deg=(low, high),
            start_jitter_deg=settings.start_jitter_deg,
            miss_share=settings.miss_share,
        )
        self._misread_deg = np.array(settings.calibration_error_deg)

    def record(self, job: int) -> RecordedEpisode:
        """Kept are the episodes that pass the strict test and leave the boat in its place; a deliberate miss is
        recorded but not taught, the recovery from it is. Angles are stored as a wrongly calibrated arm reports them:
        what happens is not changed by it."""
        # The recorder takes the pictures, also of ticks that are not taught; the expert itself takes none.
        episode = self._expert.run(job, noise=self._noise, record_every=1, render=False)
        recorded = self._env.recorded(
            targets_deg=episode.targets_deg,
            taught_T=episode.trainable_T & episode.ok,
            seed=job,
            draw=0,
            step=0,
            noisy=episode.noisy,
            missed=episode.missed,
            failure=episode.fail,
        )
        return replace(
            recorded,
            state_deg=recorded.state_deg + self._misread_deg,
            targets_deg=recorded.targets_deg + self._misread_deg,
        )


class RolloutSource:
    """Rollouts of a training run, decoded from their stored tokens and played again; a job names a stored episode.

    The simulator is deterministic: a replay whose metrics are not the stored ones is another episode (another machine,
    other code), and is refused.
    """

    def __init__(self, env: TickRecorder, recipe: DemoRecipe) -> None:
        assert recipe.rollouts is not None
        self._env, self._success_only = env, recipe.success_only
        self._codec = ChunkCodec.of_policy(recipe.rollouts.policy)
        self._waves = Path(recipe.rollouts.run) / "waves"

    def record(self, job: str) -> RecordedEpisode:
        """Taught is every tick of a successful rollout.

        Raises:
            IntegrityError: the stored episode is damaged.
        """
        stored, rows = read_episode(self._waves / f"{job}.npz")
        facts = {
            "seed": stored.spec.seed, "draw": stored.spec.draw, "step": int(job[len("step_") : job.index("/")]),
            "noisy": False, "missed": False,
        }  # fmt: skip
        succeeded = bool(stored.metrics["success"])
        if not succeeded and self._success_only:
            return _nothing(NOT_SUCCESSFUL, stored.metrics, facts)
        self._replay(stored.spec.seed, [row.bins for row in rows])
        if not same_metrics(stored.metrics, self._env.metrics().as_dict()):
            return _nothing(OTHER_EPISODE, stored.metrics, facts)
        return self._env.recorded(
            taught_T=np.full(self._env.ticks, succeeded),
            failure=None if succeeded else NOT_SUCCESSFUL,
            **facts,
        )

    def _replay(self, seed: int, streams: list[np.ndarray]) -> None:
        """Execute the stored chunks as the pool did: the first ticks of each, until the episode ends."""
        self._env.begin(seed)
        execute = self._env.action_space.shape[0]
        for stream in streams:
            for target_deg in self._codec.decode(stream)[:execute]:
                if self._env.tick(target_deg):
                    return


def same_metrics(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """Whether every stored metric came out again, bit for bit; metrics that were not stored yet do not count."""
    now = json.loads(dump_json(dict(replayed)))
    return all(name in now and now[name] == value for name, value in json.loads(dump_json(dict(stored))).items())


def _nothing(failure: str, metrics: Mapping[str, Any], facts: dict[str, Any]) -> RecordedEpisode:
    """An attempt without rows."""
    return RecordedEpisode(
        pictures={}, histograms=np.zeros(0), state_deg=np.zeros((0, 6)), targets_deg=np.zeros((0, 6)),
        taught_T=np.zeros(0, bool), trace=[], metrics=metrics, failure=failure, **facts,
    )  # fmt: skip
