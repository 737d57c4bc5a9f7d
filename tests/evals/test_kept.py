"""A stopped evaluation: finished episodes are kept, the others are played, and the result is the undisturbed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_policy import tiny_policy, tiny_sampler
from toy_world import spec

from vla_rl.errors import IntegrityError
from vla_rl.evals.heldout import EvalResult, evaluate
from vla_rl.evals.kept import FOLDER, Deadline, Kept, KeptEpisodes, OutOfTime, count_kept, discard_kept
from vla_rl.evals.looks import EpisodeWatcher
from vla_rl.rl.reward import documented_reward
from vla_rl.rollout.events import EpisodeDone, Event, PredictRound
from vla_rl.rollout.pool import SerialPool
from vla_rl.rollout.records import Episode

SEEDS = (100, 101, 102, 103)
UNDER = {"policy_digest": "d", "scene_hash": "s"}


@pytest.fixture(scope="module")
def sampler() -> Any:
    torch.set_num_threads(1)
    return tiny_sampler(tiny_policy())


def launch(sampler: Any, folder: Path, rounds: int | None = None) -> tuple[EvalResult, dict[int, Kept], list[Event]]:
    """One launch, which stops after so many rounds."""
    kept, watcher, told = KeptEpisodes(folder, UNDER), EpisodeWatcher(SEEDS), []

    def keep(episode: Episode) -> None:
        seed = episode.spec.seed
        chunks_deg = watcher.recording(seed, episode.metrics).chunks_deg
        kept.keep(Kept(episode, UNDER, watcher.looks[seed], chunks_deg))

    def on_event(event: Event) -> None:
        told.append(event)
        if rounds is not None and len(told) >= rounds:
            raise OutOfTime

    with SerialPool(env_spec=spec(), plugins=("toy_world",)) as pool:
        result = evaluate(
            sampler=sampler, pool=pool, reward=documented_reward(), seeds=SEEDS, temperature=1.0, slots=2, scene=None,
            on_event=on_event, watcher=watcher, finished=kept.episodes, on_episode=keep,
        )  # fmt: skip
    return result, {each.spec.seed: kept.by_spec[each.spec] for each in result.episodes}, told


def same(a: Kept, b: Kept) -> bool:
    looks = [(side.looks.start, side.looks.middle, side.looks.end) for side in (a, b) if side.looks]
    arrays = zip((*looks[0], *a.chunks_deg), (*looks[1], *b.chunks_deg), strict=True)
    return a.episode.metrics == b.episode.metrics and all(np.array_equal(x, y) for x, y in arrays)


def facts(result: EvalResult) -> tuple[Any, ...]:
    told = {k: v for k, v in result.summary.items() if k != "predict_latency_s"}
    return told, result.rewards, [(e.spec, e.metrics, e.replans, e.tokens, e.nll) for e in result.episodes]


def test_a_stopped_evaluation_goes_on_to_the_undisturbed_result(sampler: Any, tmp_path: Path) -> None:
    whole, whole_kept, _ = launch(sampler, tmp_path / "whole" / FOLDER)
    folder, launches = tmp_path / "parts" / FOLDER, 0
    while True:
        try:
            result, kept, told = launch(sampler, folder, rounds=6)
            break
        except OutOfTime:
            launches += 1
            assert launches <= count_kept(tmp_path / "parts") <= len(SEEDS)
    assert launches == 1 and facts(result) == facts(whole)
    assert all(same(kept[seed], whole_kept[seed]) for seed in SEEDS)
    rounds = [event for event in told if isinstance(event, PredictRound)]
    assert rounds[0].done == 2 and rounds[-1].done == rounds[-1].total == len(SEEDS)
    assert not any(isinstance(event, EpisodeDone) for event in told)  # no outcome is told
    assert whole.summary["nll_mean"] == pytest.approx(sum(e.nll for e in whole.episodes) / whole.summary["tokens"])


def test_nothing_is_played_when_everything_is_kept(sampler: Any, tmp_path: Path) -> None:
    first, _, _ = launch(sampler, tmp_path / FOLDER)
    again, _, told = launch(None, tmp_path / FOLDER)
    assert facts(again) == facts(first) and told == []
    discard_kept(tmp_path)
    assert count_kept(tmp_path) == 0 and not (tmp_path / FOLDER).exists()


def test_what_is_kept_is_small_and_comes_back_bit_for_bit(sampler: Any, tmp_path: Path) -> None:
    _, kept, _ = launch(sampler, tmp_path / FOLDER)
    back = KeptEpisodes(tmp_path / FOLDER, UNDER)
    assert all(same(back.by_spec[each.episode.spec], each) for each in kept.values())
    assert all(back.episodes[each.episode.spec] == each.episode for each in kept.values())
    assert max(file.stat().st_size for file in (tmp_path / FOLDER).iterdir()) < 2**17
    recording = back.by_spec[kept[100].episode.spec].recording
    assert recording.seed == 100 and len(recording.chunks_deg) == kept[100].episode.replans


def test_an_episode_without_pictures_is_kept_too(tmp_path: Path, sampler: Any) -> None:
    _, kept, _ = launch(sampler, tmp_path / "a")
    bare = Kept(kept[101].episode, UNDER)
    KeptEpisodes(tmp_path / "b", UNDER).keep(bare)
    assert KeptEpisodes(tmp_path / "b", UNDER).by_spec == {bare.episode.spec: bare}


def test_other_weights_or_another_scene_are_refused(sampler: Any, tmp_path: Path) -> None:
    _, kept, _ = launch(sampler, tmp_path / FOLDER)
    with pytest.raises(IntegrityError, match="another policy_digest"):
        KeptEpisodes(tmp_path / FOLDER, UNDER | {"policy_digest": "e"})
    mixed = KeptEpisodes(tmp_path / FOLDER, None)  # known only from the first episode on
    mixed.keep(Kept(kept[100].episode, UNDER | {"scene_hash": "other"}))
    with pytest.raises(IntegrityError, match="another scene_hash"):
        mixed.check_alike()


def test_a_damaged_file_is_named(sampler: Any, tmp_path: Path) -> None:
    launch(sampler, tmp_path / FOLDER)
    file = tmp_path / FOLDER / "seed000102_draw00.npz"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(IntegrityError, match="seed000102_draw00"):
        KeptEpisodes(tmp_path / FOLDER, UNDER)


def test_a_deadline_stops_between_rounds_unless_all_is_done() -> None:
    told: list[Event] = []
    Deadline(None).check()
    on_event = Deadline(0.0).watching(told.append)
    on_event(PredictRound(1, live=1, done=2, total=2))
    with pytest.raises(OutOfTime):
        on_event(PredictRound(2, live=1, done=1, total=2))
    assert len(told) == 2
