"""What an evaluation keeps of the episodes that pass by, in a world of microseconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny_policy import tiny_policy, tiny_sampler
from toy_world import PX, spec

from vla_rl.evals.blind import view
from vla_rl.evals.heldout import evaluate
from vla_rl.evals.looks import LOOK_PX, EpisodeWatcher, Looks, small
from vla_rl.rl.reward import documented_reward
from vla_rl.rollout.pool import SerialPool

SEEDS = (300, 301, 302, 303)


class LosingPool(SerialPool):
    """Loses the episode in one slot once, as when its worker dies."""

    def __init__(self, lose_at_step: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.left = lose_at_step

    def step(self, requests: Any) -> Any:
        self.left -= 1
        results = super().step(requests)
        if self.left == 0:
            results[0] = replace(results[0], observation=None, done=False, metrics=None, lost="gone", at_fault=False)
        return results


def watch(pool: SerialPool, record: tuple[int, ...] = (301,), *, blind: bool = False) -> tuple[EpisodeWatcher, Any]:
    sampler: Any = tiny_sampler(tiny_policy())
    watcher = EpisodeWatcher(record)
    result = evaluate(
        sampler=view("foreign" if blind else "own", sampler),
        pool=pool,
        reward=documented_reward(),
        seeds=SEEDS,
        temperature=1.0,
        slots=2,
        scene={"protocol": "toy", "scene_hash": "0"},
        watcher=watcher,
    )
    return watcher, result


def toy_pool() -> SerialPool:
    return SerialPool(env_spec=spec(), plugins=("toy_world",))


def test_every_episode_is_seen_at_its_start_middle_and_end() -> None:
    watcher, result = watch(toy_pool())
    assert sorted(watcher.looks) == list(SEEDS) and result.summary["protocol"] == "toy"
    for looks in watcher.looks.values():
        pictures = (looks.start, looks.middle, looks.end)
        assert all(p.shape == (LOOK_PX, LOOK_PX, 3) and p.dtype == np.uint8 and p.max() == 255 for p in pictures)


def test_only_the_chosen_episodes_are_recorded_with_every_chunk() -> None:
    watcher, result = watch(toy_pool())
    episode = next(e for e in result.episodes if e.spec.seed == 301)
    recording = watcher.recording(301, episode.metrics)
    assert len(recording.chunks_deg) == episode.replans and recording.metrics == episode.metrics
    with pytest.raises(KeyError):
        watcher.recording(777, {})
    assert not watcher._chunks_deg[300]


def test_watching_changes_nothing() -> None:
    _, result = watch(toy_pool())
    plain = evaluate(
        sampler=tiny_sampler(tiny_policy()),
        pool=toy_pool(),
        reward=documented_reward(),
        seeds=SEEDS,
        temperature=1.0,
        slots=2,
        scene=None,
    )
    assert [e.metrics for e in plain.episodes] == [e.metrics for e in result.episodes]


@pytest.mark.parametrize("lose_at_step", [2, 3, 4])
def test_an_episode_that_is_redone_is_recorded_once(lose_at_step: int) -> None:
    undisturbed, result = watch(toy_pool(), SEEDS)
    disturbed, again = watch(LosingPool(lose_at_step, env_spec=spec(), plugins=("toy_world",)), SEEDS)
    assert [e.metrics for e in again.episodes] == [e.metrics for e in result.episodes]
    for seed in SEEDS:
        first, second = (side.recording(seed, {}).chunks_deg for side in (undisturbed, disturbed))
        assert len(first) == len(second) and all(map(np.array_equal, first, second))


def test_a_blind_policy_is_shown_as_it_acted_and_not_as_it_saw() -> None:
    own, _ = watch(toy_pool())
    blind, _ = watch(toy_pool(), blind=True)
    assert all(np.array_equal(own.looks[seed].start, blind.looks[seed].start) for seed in SEEDS)


def test_the_middle_look_is_in_the_middle() -> None:
    pictures = [np.full((2, 2, 3), i, np.uint8) for i in range(5)]
    assert [p[0, 0, 0] for p in vars(Looks.of(pictures)).values()] == [0, 2, 4]
    assert [p[0, 0, 0] for p in vars(Looks.of(pictures[:2])).values()] == [0, 0, 1]
    assert [p[0, 0, 0] for p in vars(Looks.of(pictures[:1])).values()] == [0, 0, 0]


def test_a_small_picture_is_a_copy() -> None:
    frame = np.zeros((PX, PX, 3), np.uint8)
    copy = small(frame)
    frame[:] = 200
    assert copy.max() == 0 and small(np.zeros((LOOK_PX, LOOK_PX, 3), np.uint8)).base is not frame
