"""The parts of a wave that know nothing of episodes: groups of slots, threads to play them in, one round, their number.

In: slots, a pool, a sampler, and what each slot needs. Out: the answers of a round. A round resets the slots that start
an episode, predicts all of its group in one call and moves them. It is made of blocking calls; the rounds of several
groups overlap because each runs in a thread of its own. Left out: what the answers mean (`wave`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from vla_rl.policy.prompt import Observation
from vla_rl.policy.sampler import Prediction, PredictRequest
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.worker import SlotResult


class Sampler(Protocol):
    """What a wave needs of a sampler: an answer to every request, in order.

    A sampler whose answers do not depend on the order of its calls may also have `lanes(count)`, a context manager that
    gives 1 to `count` samplers which answer alike and may be asked at the same time. Without it slots form one group.
    """

    def sample(self, requests: Sequence[PredictRequest], temperature: float) -> list[Prediction]: ...


Ask = Callable[[Sequence[PredictRequest]], list[Prediction]]


@dataclass(frozen=True)
class Round:
    """The answers of one round.

    Attributes:
        seen: of the slots that were reset. If one of them was lost, the round went no further.
        predictions: by slot.
        moves: of all slots that were predicted, in slot order.
    """

    seen: list[SlotResult]
    predictions: dict[int, Prediction] = field(default_factory=dict)
    moves: list[SlotResult] = field(default_factory=list)


def play_round(
    pool: Pool, ask: Ask, starts: Sequence[tuple[int, int]], requests: Mapping[int, Callable[..., PredictRequest]]
) -> Round:
    """Reset, predict, move.

    Args:
        pool: the environments.
        ask: the sampler at the wave's temperature.
        starts: (slot, seed) of the slots that start an episode.
        requests: for every slot of the round what makes its request, from the first observation if it starts.
    """
    seen = pool.reset(starts) if starts else []
    if any(result.lost is not None for result in seen):
        return Round(seen)
    first: dict[int, Observation | None] = {result.slot: result.observation for result in seen}
    order = sorted(requests)
    answers = ask([requests[slot](first[slot]) if slot in first else requests[slot]() for slot in order])
    predictions = dict(zip(order, answers, strict=True))
    return Round(seen, predictions, pool.step([(slot, p.chunk_deg) for slot, p in predictions.items()]))


def slot_groups(slots: int, groups: int) -> list[range]:
    """Slots 0 .. `slots` - 1 in at most `groups` parts of about the same size, none of them empty."""
    groups = min(groups, slots)
    return [range(i * slots // groups, (i + 1) * slots // groups) for i in range(groups)]


def planned_rounds(replans: Iterable[int], slots: int, groups: int) -> int:
    """Rounds of all groups together in an undisturbed wave of episodes with these numbers of replans.

    Derived rather than counted, so that a resumed wave reports the numbers of one that was never killed.
    """
    queue, rounds = deque(replans), 0
    teams = [[0] * len(group) for group in slot_groups(slots, groups)]  # replans left by slot
    while queue or any(map(any, teams)):
        for team in teams:
            team[:] = [left or (queue.popleft() if queue else 0) for left in team]
            rounds += any(team)
            team[:] = [max(0, left - 1) for left in team]
    return rounds


@contextmanager
def ways_to_ask(sampler: Sampler, temperature: float, groups: int) -> Iterator[list[Ask]]:
    """How each group asks the sampler: at the same time if it allows that, else one after the other. One way for a
    sampler that plays in lockstep only."""
    lanes: Any = getattr(sampler, "lanes", None)
    if groups == 1 or lanes is None:
        yield [lambda requests: sampler.sample(requests, temperature)]
        return
    with lanes(groups) as samplers:
        asking = [_one_at_a_time(each, temperature) for each in samplers]
        yield [asking[i % len(asking)] for i in range(groups)]


def _one_at_a_time(sampler: Sampler, temperature: float) -> Ask:
    lock = Lock()

    def ask(requests: Sequence[PredictRequest]) -> list[Prediction]:
        with lock:
            return sampler.sample(requests, temperature)

    return ask


@contextmanager
def crew(size: int) -> Iterator[Executor]:
    """Threads for as many groups; a single group is played here and now.

    When an error ends the wave, the rounds under way are awaited, or they would disturb the next wave on this pool; not
    so after ctrl-C, since a worker may hang.
    """
    if size == 1:
        yield _HereAndNow()
        return
    threads = ThreadPoolExecutor(size, "vla-rl-group")
    try:
        yield threads
    except Exception:
        threads.shutdown(wait=True, cancel_futures=True)
        raise
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()


class _HereAndNow(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
