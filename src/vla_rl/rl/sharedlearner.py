"""Updates that all processes of a team compute together; the leader runs the run, the helpers do nothing else.

In: on the leader what `Learner` gets, on a helper the same policy and constants. Out: the leader's policy after an
update, as if it had computed it alone up to rounding.

The leader keeps the whole network beside its share of the student: it samples, measures and is what digests and
checkpoints are of. An update goes in four steps: the leader deals the wave's lessons to the ranks, row by row in order
of length, with the divisor of the whole wave; every rank takes its passes, in which FSDP adds the gradients up; every
rank moves its share of the weights; the leader's network gets the new weights. Rewards and advantages exist before
anything is dealt, so that no group is ever split between ranks.

A command is a method of `Work` that every rank calls with the same arguments. What `distributed=fsdp2` does not do is
to try a pass again in smaller micro-batches: a rank that runs out of memory leaves the others behind.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vla_rl.errors import IntegrityError, StoppedRun
from vla_rl.policy import rowgradients
from vla_rl.policy.logprob import score_rows
from vla_rl.policy.prompt import Observation
from vla_rl.rl import preflight
from vla_rl.rl.learner import Learner, Undo
from vla_rl.rl.lessons import Lesson
from vla_rl.rl.ranks import Sums
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.student import LEADER, STEP, Moments, Student
from vla_rl.rl.surfaces import NamedParameters, Surface
from vla_rl.rl.team import END, Team
from vla_rl.rl.update import Passes, gradient_passes
from vla_rl.rollout.records import Row


class _Halted(Exception):
    """The leader has stopped the update that is under way."""


class Together:
    """The ranks of one command; see `ranks.Ranks`.

    Args:
        team, policy: of this rank.
        row: what a rank reads while others have micro-batches left.
        temperature: at which rows are scored.

    Attributes:
        halt: what the leader raises, after every rank has come to the same place.
    """

    alone = False
    halt: BaseException | None = None

    def __init__(self, team: Team, policy: Any, row: Row, temperature: float) -> None:
        self._team, self._policy, self._row, self._temperature = team, policy, row, temperature

    def rounds(self, parts: Iterable[slice]) -> Iterator[slice]:
        own = list(parts)
        most = torch.tensor(len(own))
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self._team.control)
        yield from own
        for _ in range(int(most) - len(own)):
            scores = score_rows(
                self._policy, [Observation(self._row.frames, self._row.state_deg)], [self._row.bins], self._temperature
            )
            if torch.is_grad_enabled():
                (scores.logp_RT.sum() * 0.0).backward()
                if not self.go_on(True):
                    return

    def go_on(self, fine: bool) -> bool:
        told = torch.tensor([fine, self.halt is None], dtype=torch.uint8)
        dist.all_reduce(told, dist.ReduceOp.MIN, group=self._team.control)
        if not told[1]:
            raise self.halt or _Halted
        return bool(told[0])

    def total(self, sums: Sums) -> Sums:
        self.go_on(True)
        found: list[Any] = [None] * self._team.size
        dist.all_gather_object(found, sums, group=self._team.control)
        return functools.reduce(operator.add, found)

    def whole(self, value: Tensor) -> Tensor:
        return value.full_tensor()  # type: ignore[attr-defined]

    def watched(self, progress: Callable[[int, int], None], share: float) -> Callable[[int, int], None]:
        """The leader's progress, of all rows; what it raises stops all ranks after their next backward pass.

        Args:
            share: of the rows that the leader has.
        """

        def told(done: int, total: int) -> None:
            try:
                progress(round(done / share), round(total / share))
            except BaseException as error:
                self.halt = error

        return told


class Work:
    """What a rank does of every command.

    Args:
        team: of this rank.
        student: its share of the network.
        settings: constants of an update.
    """

    def __init__(self, team: Team, student: Student, settings: UpdateSettings) -> None:
        self._team, self.student, self._settings = team, student, settings
        self._before: Undo | None = None

    def dry_update(self, temperature: float, observation: Observation) -> int:
        """See `preflight.dry_update`."""
        student, row = self.student, preflight.longest_row(self.student.policy, observation)
        ranks = Together(self._team, student.policy, row, temperature)
        return preflight.dry_update(
            student.policy, student.parameters, student.optimizer, self._settings, temperature, observation, ranks
        )

    def passes(
        self,
        divisor: float,
        temperature: float,
        step: int,
        lessons: Sequence[Lesson] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Passes:
        """See `gradient_passes`; the leader deals its `lessons` out and is the one that tells of progress."""
        student, size = self.student, self._team.size
        dealt = [(lessons[rank::size], lessons[0].row) for rank in range(size)] if lessons else [None] * size
        own: list[Any] = [None]
        dist.scatter_object_list(own, dealt, src=LEADER, group=self._team.control)
        mine, row = own[0]
        ranks = Together(self._team, student.policy, row, temperature)
        told = {} if progress is None else {"progress": ranks.watched(progress, len(mine) / len(lessons))}
        try:
            return gradient_passes(
                policy=student.policy, parameters=student.parameters, optimizer=student.optimizer, lessons=mine,
                divisor=divisor, settings=self._settings, temperature=temperature, step=step, anchor=student.anchor,
                ranks=ranks, **told,
            )  # fmt: skip
        finally:
            student.optimizer.zero_grad(set_to_none=True)

    def remember(self) -> None:
        """Keep weights and moments of now."""
        self._before = self.student.snapshot()

    def put_back(self) -> None:
        """Go back to what was remembered."""
        assert self._before is not None
        self._before.put_back()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The whole weights, for the leader."""
        return self.student.weights()

    def moments(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """What the optimiser knows, whole, for the leader."""
        return self.student.moments()

    def take(
        self, fields: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None, moments: Moments | None = None
    ) -> None:
        """Go on from weights and moments of the leader."""
        self.student.take(weights, moments, fields)


class SharedLearner(Learner):
    """The leader's side; see `Learner` for the arguments.

    Args:
        team: the processes that take part.
    """

    def __init__(self, team: Team, *, policy: Any, parameters: NamedParameters, surface: Surface, **more: Any) -> None:
        rowgradients.detach(policy.model)  # as the student has it
        super().__init__(policy=policy, parameters=parameters, surface=surface, **more)
        self._team = team
        self.gpus = team.size if str(policy.device).startswith("cuda") else 1
        team.send("begin", digest=policy.digest())
        own = copy.copy(policy)
        own.model = copy.deepcopy(policy.model)
        student = Student(own, [name for name, _ in parameters], surface, more["optim"], self.settings)
        self._work = Work(team, student, self.settings)

    def dry_update(self, temperature: float, observation: Observation) -> int:
        return self._do("dry_update", temperature=temperature, observation=observation)

    def passes(self, *, divisor: float, temperature: float, step: int, **given: Any) -> Passes:
        shared = {"divisor": divisor, "temperature": temperature, "step": step}
        done = self._do("passes", own={name: given[name] for name in ("lessons", "progress")}, **shared)
        if done.steps:
            self._fetch_weights()
        return done

    def snapshot(self) -> Undo:
        self._do("remember")
        return _Undo(self._put_back)

    def gather(self) -> None:
        found = dict(self._do("moments"))
        self.optimizer.state.update({p: found[name] for name, p in self.parameters if name in found})

    def saved(self) -> None:
        self.optimizer.state.clear()

    def spread(self) -> None:
        state = self.optimizer.state
        moments = {name: state[parameter] for name, parameter in self.parameters if parameter in state}
        fields = {name: float(known[STEP]) for name, known in moments.items()}
        self._do("take", own={"weights": dict(self.parameters), "moments": moments}, fields=fields)
        self.saved()

    def _do(self, name: str, *, own: Mapping[str, Any] | None = None, **given: Any) -> Any:
        """Have all ranks do something, this one too; `own` are further arguments of this one."""
        self._team.send(name, **given)
        return getattr(self._work, name)(**given, **(own or {}))

    def _put_back(self) -> None:
        self._do("put_back")
        self._fetch_weights()

    @torch.no_grad()
    def _fetch_weights(self) -> None:
        for (_, parameter), (_, weight) in zip(self.parameters, self._do("weights"), strict=True):
            parameter.copy_(weight)


class _Undo:
    def __init__(self, put_back: Callable[[], None]) -> None:
        self.put_back = put_back


def help_out(team: Team, policy: Any, surface: Surface, optim: Any, settings: UpdateSettings) -> None:
    """A helper's life: its share of whatever the leader asks for, until it asks for no more.

    Args:
        policy: the base of the leader's run; it is used up.

    Raises:
        IntegrityError: it is another one.
    """
    preflight.set_passes(policy, optim)
    names = [name for name, _ in surface.trainable(policy)]
    name, given = team.receive()
    if name == END:
        return
    if (digest := policy.digest()) != given["digest"]:
        raise IntegrityError(
            f"this process has read another base policy ({digest[:12]}) than the leader ({given['digest'][:12]})",
            where="policy",
            remedy="every machine must have the same files",
        )
    work = Work(team, Student(policy, names, surface, optim, settings), settings)
    while (command := team.receive())[0] != END:
        try:
            done = getattr(work, command[0])(**command[1])
            if isinstance(done, Iterator):
                for _ in done:
                    pass
        except (_Halted, StoppedRun):  # on every rank alike; the leader says why
            pass
