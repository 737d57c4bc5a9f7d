"""What a seat needs of the worker that sits on it, wherever that worker runs.

In: commands for slots. Out: a `SlotResult` each, `Lost` when the worker is of no use any more, or the error that no
other worker would be spared. Left out: how messages travel (`process_worker`, `ray_worker`), and who replaces a worker
that is lost (`seat`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from vla_rl import errors
from vla_rl.rollout.worker import SlotResult

# A first start may simplify meshes; a hang at this stage is rare, so it may take longer to show.
START_TIMEOUT_S = 300.0

Command = tuple[str, int, Any]  # "reset" with a seed or "step" with a chunk, and the slot between them


class Lost(Exception):
    """The worker is of no use any more; says why."""


class Worker(ABC):
    """Handle of one worker; its first message is the environment's description.

    Attributes:
        name: for messages.
        description: what the environment says of itself, once it has.
        slots: those in which an episode is under way here.
    """

    def __init__(self, index: int, generation: int) -> None:
        self.name = f"worker {index}" + (f" (replacement {generation})" if generation else "")
        self.description: dict[str, Any] | None = None
        self.slots: set[int] = set()
        self._refusal: errors.UsageError | None = None  # its first message, when it can never stand on this machine

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Its process on this machine, if it is here."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether it is not known to have died."""

    @abstractmethod
    def send(self, command: Command) -> None:
        """Hand over a command; one that cannot be delivered is missed by `receive`."""

    @abstractmethod
    def receive(self, timeout_s: float) -> tuple[Any, ...]:
        """The next message (`vla_rl.rollout.worker.answer`), or `Lost` if it died or said nothing in time."""

    @abstractmethod
    def unpack(self, message: tuple[Any, ...]) -> SlotResult:
        """The result of an "ok" message, with frames of its own."""

    @abstractmethod
    def kill(self) -> None:
        """End it now, whatever it does; whoever waits for its message wakes up."""

    @abstractmethod
    def end(self, *, kill: bool) -> None:
        """See it off, at once or when it is idle, and give back what it held."""

    def greet(self) -> dict[str, Any]:
        """The description, awaited if the worker has just been started.

        Raises:
            Lost: see `receive`, or its environment could not be built.
            UsageError: an error that no other worker would be spared.
        """
        if self._refusal:
            raise self._refusal
        if self.description is None:
            try:
                _, self.description = self._checked(self.receive(START_TIMEOUT_S))
            except errors.UsageError as error:
                self._refusal = error
                raise
        assert self.description is not None
        return self.description

    def perform(self, command: Command, timeout_s: float) -> SlotResult:
        """One command and its result.

        Raises:
            Lost, UsageError: see `greet`.
        """
        self.greet()
        self.send(command)
        result = self.unpack(self._checked(self.receive(timeout_s)))
        (self.slots.discard if result.done else self.slots.add)(command[1])
        return result

    def _checked(self, message: tuple[Any, ...]) -> tuple[Any, ...]:
        if message[0] == "user_error":
            name, what, where, remedy = message[1:]
            raise getattr(errors, name, errors.MachineError)(what, where=where, remedy=remedy)
        if message[0] == "crash":
            raise Lost(f"failed: {message[1].strip().splitlines()[-1]}\n{message[1]}")
        return message
