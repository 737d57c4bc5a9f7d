"""One wave: episodes run in rounds, a batched predict in this process and one chunk in every environment a round.

In: a sampler, a pool, the episodes to run, the temperature and the number of slots. Out: a `Wave` with episodes and
rows in the order of the specs.

The slots form groups, and each group has its own rounds, so that one can be predicted while another moves. Which
episodes meet in a batch follows from the slots alone, never from timing: the ends of rounds are taken in turns, group
by group, and freed slots are refilled in that order. An episode depends on its own key only, so slots, groups, workers,
companions and restarts change nothing. Left out: storing (`store`), rewards and learning (`rl`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from vla_rl.errors import RolloutError
from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import DecodeCounts, Prediction, PredictRequest
from vla_rl.rollout.events import EpisodeDone, EpisodeRestarted, OnEvent, PredictRound, ignore
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.records import Episode, EpisodeSpec, Row, surprise
from vla_rl.rollout.rounds import Ask, Round, Sampler, crew, planned_rounds, play_round, slot_groups, ways_to_ask
from vla_rl.rollout.worker import SlotResult

MAX_FAULTS = 3  # of one episode; what repeats this often is no accident

OnEpisode = Callable[[Episode, tuple[Row, ...]], None]


class Watcher(Protocol):
    """Sees every episode of a wave and changes nothing. Called one call at a time; an episode that is redone starts
    again at replan 0."""

    def replanned(self, spec: EpisodeSpec, replan: int, observation: Observation, prediction: Prediction) -> None:
        """What was seen, and the chunk that answered it."""
        ...

    def ended(self, spec: EpisodeSpec, observation: Observation) -> None:
        """What is seen when the episode has ended."""
        ...


@dataclass(frozen=True)
class Wave:
    """Finished episodes and their rows.

    Attributes:
        episodes: in the order of the specs.
        rows: by episode, then replan; empty when rows were not kept.
        wall_s: wall time of the wave.
        groups: groups that its slots formed.
        predict_rounds: rounds of all groups that such a wave takes when nothing is lost.
        mean_predict_batch: predicts a round; None for an empty wave.
    """

    episodes: tuple[Episode, ...]
    rows: tuple[Row, ...]
    wall_s: float
    groups: int
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
    nll: float = 0.0
    wall_s: float = 0.0
    rows: list[Row] = field(default_factory=list)
    counts: DecodeCounts = DecodeCounts()

    def request(self, first: Observation | None = None) -> PredictRequest:
        """What to ask for now; `first` is the first observation of an episode that starts."""
        observation = first or self.observation
        assert observation is not None
        return PredictRequest(observation=observation, seed=self.spec.seed, draw=self.spec.draw, replan=self.replan)

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
        self.nll += surprise(prediction.logp)
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
    watcher: Watcher | None = None,
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
        watcher: told of every replan and of the end of every episode.

    Raises:
        RolloutError: an episode was lost `MAX_FAULTS` times; names it and the last worker's fault.
    """
    if len(set(specs)) < len(specs):
        raise RolloutError("an episode is listed twice in one wave", where="specs")
    started = time.perf_counter()
    queue = deque(specs)
    finished: dict[EpisodeSpec, tuple[Episode, tuple[Row, ...]]] = {}
    rounds = 0
    with ways_to_ask(sampler, temperature, pool.groups) as asks:
        groups = slot_groups(slots, len(asks))
        teams = [_Team(group, ask) for group, ask in zip(groups, asks, strict=False)]
        with crew(len(teams)) as threads:

            def start_round(team: _Team) -> None:
                team.fill(queue)
                work = (play_round, pool, team.ask, team.starts(), team.requests())
                team.round = threads.submit(*work) if team.games else None

            for team in teams:
                start_round(team)
            while any(team.round for team in teams):
                for team in teams:
                    if team.round is None:
                        continue
                    played = team.round.result()
                    live = len(team.games)
                    for game, result in team.take(played, policy_digest, keep_rows, on_event, watcher):
                        if watcher and game.observation:
                            watcher.ended(game.spec, game.observation)
                        finished[game.spec] = _finish(game, result, on_event, on_episode)
                    start_round(team)
                    if played.predictions:
                        rounds += 1
                        on_event(PredictRound(rounds, live=live, done=len(finished), total=len(specs)))
    in_order = [finished[spec] for spec in specs]
    episodes = tuple(episode for episode, _ in in_order)
    rows = tuple(row for _, rows in in_order for row in rows)
    return assemble(episodes, rows, time.perf_counter() - started, slots=slots, groups=len(teams))


def assemble(episodes: tuple[Episode, ...], rows: tuple[Row, ...], wall_s: float, *, slots: int, groups: int) -> Wave:
    """A `Wave` from its parts, which may come from an attempt that was killed and from the one that finished it."""
    rounds = planned_rounds([episode.replans for episode in episodes], slots, groups)
    predicts = sum(episode.replans for episode in episodes)
    return Wave(episodes, rows, wall_s, groups, rounds, predicts / rounds if rounds else None)


def joined(first: Wave, second: Wave) -> Wave:
    """Two waves that were played one after the other, as one."""
    rounds = first.predict_rounds + second.predict_rounds
    episodes = first.episodes + second.episodes
    mean = sum(episode.replans for episode in episodes) / rounds if rounds else None
    return Wave(episodes, first.rows + second.rows, first.wall_s + second.wall_s, first.groups, rounds, mean)


@dataclass
class _Team:
    """A group of slots, the episodes in them, and the round that is under way."""

    slots: range
    ask: Ask
    games: dict[int, _Playing] = field(default_factory=dict)
    round: Future[Round] | None = None

    def fill(self, queue: deque[EpisodeSpec]) -> None:
        """Give queued episodes to the free slots, lowest slot first."""
        for slot in self.slots:
            if slot not in self.games and queue:
                self.games[slot] = _Playing(queue.popleft())

    def starts(self) -> list[tuple[int, int]]:
        """Slot and seed of the episodes of which nothing has been seen."""
        return [(slot, game.spec.seed) for slot, game in sorted(self.games.items()) if game.observation is None]

    def requests(self) -> dict[int, Callable[..., PredictRequest]]:
        """What makes the next request of each slot."""
        return {slot: game.request for slot, game in self.games.items()}

    def take(
        self, played: Round, policy_digest: str, keep_rows: bool, on_event: OnEvent, watcher: Watcher | None
    ) -> list[tuple[_Playing, SlotResult]]:
        """Take a round's answers into the episodes; returns those that have ended, with the answer that ended them.

        Lost episodes start again from replan 0; the same keys give the same episode.
        """
        for result in played.seen:
            self._advance(result, on_event)
        for slot, prediction in played.predictions.items():
            game = self.games[slot]
            if watcher and game.observation:
                watcher.replanned(game.spec, game.replan, game.observation, prediction)
            game.record(prediction, policy_digest, keep_rows)
        for result in played.moves:
            self._advance(result, on_event)
        ended = [result for result in played.moves if result.done]
        return [(self.games.pop(result.slot), result) for result in ended]

    def _advance(self, result: SlotResult, on_event: OnEvent) -> None:
        game = self.games[result.slot]
        if result.lost is None:
            game.observation = result.observation
            game.wall_s += result.wall_s
            return
        faults = game.faults + result.at_fault
        if faults >= MAX_FAULTS:
            raise RolloutError(
                f"episode {game.spec.episode_id} was lost {faults} times; the last time: {result.lost}",
                where=f"slot {result.slot}",
                remedy="finished episodes are saved; look for the fault above, or use pool=serial to see it raised",
            )
        on_event(EpisodeRestarted(game.spec.episode_id, faults, result.lost))
        self.games[result.slot] = _Playing(game.spec, faults)


def _finish(
    game: _Playing, result: SlotResult, on_event: OnEvent, on_episode: OnEpisode
) -> tuple[Episode, tuple[Row, ...]]:
    counts = asdict(game.counts)
    metrics, rows = dict(result.metrics or {}), tuple(game.rows)
    told: dict[str, Any] = {"replans": game.replan, "tokens": game.tokens, "wall_s": game.wall_s, "nll": game.nll}
    episode = Episode(game.spec, metrics, **told, **counts, trace=result.trace if rows else None)
    on_episode(episode, rows)
    on_event(EpisodeDone(game.spec.episode_id, bool(metrics["success"]), game.replan))
    return episode, rows
