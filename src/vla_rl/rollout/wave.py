"""One wave: episodes run in lockstep rounds, a batched predict in this process and one chunk in every environment a
round.

In: a sampler, a pool, the episodes to run, the temperature and the number of slots. Out: a `Wave` with episodes and
rows in the order of the specs. Freed slots are refilled in order. An episode depends on its own key only, so slots,
workers, companions and restarts change nothing. Left out: storing (`store`), rewards and learning (`rl`).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from vla_rl.errors import RolloutError
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import DecodeCounts, Prediction, PredictRequest
from vla_rl.rollout.events import EpisodeDone, EpisodeRestarted, OnEvent, PredictRound, ignore
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.records import Episode, EpisodeSpec, Row
from vla_rl.rollout.worker import SlotResult

MAX_FAULTS = 3  # of one episode; what repeats this often is no accident

OnEpisode = Callable[[Episode, tuple[Row, ...]], None]


class Sampler(Protocol):
    """What a wave needs of a sampler: an answer to every request, in order."""

    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]: ...


@dataclass(frozen=True)
class Wave:
    """Finished episodes and their rows.

    Attributes:
        episodes: in the order of the specs.
        rows: by episode, then replan; empty when rows were not kept.
        wall_s: wall time of the wave.
        predict_rounds: lockstep rounds that the wave takes with its number of slots.
        mean_predict_batch: predicts a round; None for an empty wave.
    """

    episodes: tuple[Episode, ...]
    rows: tuple[Row, ...]
    wall_s: float
    predict_rounds: int
    mean_predict_batch: float | None


@dataclass
class _Playing:
    """An episode under way in a slot."""

    spec: EpisodeSpec
    faults: int = 0
    observation: Observation | None = None
    replan: int = 0
    tokens: int = 0
    wall_s: float = 0.0
    rows: list[Row] = field(default_factory=list)
    counts: DecodeCounts = DecodeCounts()

    def request(self) -> PredictRequest:
        assert self.observation is not None
        return PredictRequest(
            observation=self.observation, seed=self.spec.seed, draw=self.spec.draw, replan=self.replan
        )

    def record(self, prediction: Prediction, policy_digest: str, keep_row: bool) -> None:
        assert self.observation is not None
        if keep_row:
            self.rows.append(
                Row(
                    spec=self.spec,
                    replan=self.replan,
                    frames=self.observation.frames,
                    state_deg=self.observation.state_deg,
                    bins=prediction.bins,
                    logp=prediction.logp,
                    legal_packed=prediction.legal_packed,
                    rng_key=prediction.rng_key,
                    policy_digest=policy_digest,
                )
            )
        self.replan += 1
        self.tokens += len(prediction.bins)
        self.counts += prediction.counts


def run_wave(
    *,
    sampler: Sampler,
    pool: Pool,
    specs: Sequence[EpisodeSpec],
    temperature: float,
    slots: int,
    policy_digest: str = "",
    keep_rows: bool = True,
    on_event: OnEvent = ignore,
    on_episode: OnEpisode = lambda episode, rows: None,
) -> Wave:
    """Run every spec to its end.

    Args:
        sampler: answers a list of `PredictRequest` with `Prediction`.
        pool: environments, see `vla_rl.rollout.pool`.
        specs: the episodes; no two alike.
        temperature: sampling temperature, 0 = greedy.
        slots: how many episodes play at the same time.
        policy_digest: written into each row.
        keep_rows: False drops frames at once (evaluations need only the metrics).
        on_event: told of rounds, endings and restarts.
        on_episode: given each episode and its rows as soon as it has ended, e.g. to store them.

    Raises:
        RolloutError: an episode was lost `MAX_FAULTS` times; names it and the last worker's fault.
    """
    if len(set(specs)) < len(specs):
        raise RolloutError("an episode is listed twice in one wave", where="specs")
    started = time.perf_counter()
    queue = list(reversed(specs))
    playing: dict[int, _Playing] = {}
    finished: dict[EpisodeSpec, tuple[Episode, tuple[Row, ...]]] = {}
    rounds = 0
    _fill(pool, playing, queue, range(slots), on_event)
    while playing:
        order = sorted(playing)
        predictions = sampler.sample([playing[slot].request() for slot in order], temperature)
        for slot, prediction in zip(order, predictions, strict=True):
            playing[slot].record(prediction, policy_digest, keep_rows)
        results = pool.step([(slot, p.chunk_deg) for slot, p in zip(order, predictions, strict=True)])
        for result in results:
            if _advance(playing[result.slot], result):
                game = playing.pop(result.slot)
                finished[game.spec] = _finish(game, result.metrics or {}, on_event, on_episode)
        rounds += 1
        _redo_lost(pool, playing, results, on_event)
        _fill(pool, playing, queue, (slot for slot in range(slots) if slot not in playing), on_event)
        on_event(PredictRound(rounds, live=len(order), done=len(finished), total=len(specs)))
    results_in_order = [finished[spec] for spec in specs]
    episodes = tuple(episode for episode, _ in results_in_order)
    rows = tuple(row for _, rows in results_in_order for row in rows)
    return assemble(episodes, rows, slots, time.perf_counter() - started)


def assemble(episodes: tuple[Episode, ...], rows: tuple[Row, ...], slots: int, wall_s: float) -> Wave:
    """A `Wave` from its parts, which may come from an attempt that was killed and from the one that finished it."""
    rounds = lockstep_rounds([episode.replans for episode in episodes], slots)
    predicts = sum(episode.replans for episode in episodes)
    return Wave(episodes, rows, wall_s, rounds, predicts / rounds if rounds else None)


def lockstep_rounds(replans: Iterable[int], slots: int) -> int:
    """Rounds of an undisturbed wave: each episode takes the slot that frees first, and one round a replan.

    Derived rather than counted, so that a resumed wave reports the numbers of one that was never killed.
    """
    free_at = [0] * slots
    for count in replans:
        heapq.heapreplace(free_at, free_at[0] + count)
    return max(free_at)


def _advance(game: _Playing, result: SlotResult) -> bool:
    """Take a slot's answer into its episode; True when the episode has ended."""
    if result.lost is not None:
        return False
    game.observation = result.observation
    game.wall_s += result.wall_s
    return result.done


def _finish(
    game: _Playing, metrics: Mapping[str, Any], on_event: OnEvent, on_episode: OnEpisode
) -> tuple[Episode, tuple[Row, ...]]:
    counts = asdict(game.counts)
    episode = Episode(game.spec, dict(metrics), replans=game.replan, tokens=game.tokens, wall_s=game.wall_s, **counts)
    rows = tuple(game.rows)
    on_episode(episode, rows)
    on_event(EpisodeDone(game.spec.episode_id, bool(metrics["success"]), game.replan))
    return episode, rows


def _fill(
    pool: Pool, playing: dict[int, _Playing], queue: list[EpisodeSpec], free: Iterable[int], on_event: OnEvent
) -> None:
    """Start queued episodes in the free slots, lowest slot first."""
    fresh = [slot for slot, _ in zip(free, range(len(queue)), strict=False)]
    for slot in fresh:
        playing[slot] = _Playing(queue.pop())
    _reset(pool, playing, fresh, on_event)


def _redo_lost(pool: Pool, playing: dict[int, _Playing], results: list[SlotResult], on_event: OnEvent) -> None:
    """Start lost episodes again from replan 0; the same keys give the same episode."""
    lost = [result for result in results if result.lost is not None]
    for result in lost:
        game = playing[result.slot]
        faults = game.faults + result.at_fault
        if faults >= MAX_FAULTS:
            raise RolloutError(
                f"episode {game.spec.episode_id} was lost {faults} times; the last time: {result.lost}",
                where=f"slot {result.slot}",
                remedy="finished episodes are saved; look for the fault above, or use pool=serial to see it raised",
            )
        on_event(EpisodeRestarted(game.spec.episode_id, faults, result.lost or ""))
        playing[result.slot] = _Playing(game.spec, faults)
    _reset(pool, playing, [result.slot for result in lost], on_event)


def _reset(pool: Pool, playing: dict[int, _Playing], slots: Sequence[int], on_event: OnEvent) -> None:
    if not slots:
        return
    results = pool.reset([(slot, playing[slot].spec.seed) for slot in slots])
    for result in results:
        _advance(playing[result.slot], result)
    _redo_lost(pool, playing, results, on_event)
