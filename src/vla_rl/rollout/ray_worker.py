"""A worker that is a Ray actor on some node: commands and frames travel as Ray's messages.

In: what it is started with. Out: a `handle.Worker`. Ray restarts and retries nothing by itself: a lost actor is
replaced by its seat, as a lost process is. Left out: on which node (`placement`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from vla_rl import errors, paths
from vla_rl.policy.prompt import Observation
from vla_rl.prereg.identity import package_versions, tree_digest
from vla_rl.rollout.handle import Command, Lost, Worker
from vla_rl.rollout.placement import Placer
from vla_rl.rollout.worker import EnvSlots, Message, SlotResult, answer
from vla_rl.sim.backend import VARIABLE
from vla_rl.sim.canary import WORKER_VARIABLES

SEEK_EVERY_S = 1.0
PLACE_TIMEOUT_S = 60.0  # while no node has room
_PLAYS = ("python", "mujoco", "numpy", "gymnasium", "so101-nexus")  # packages that an episode's physics depends on


def software() -> dict[str, str | None]:
    """What must be the same on every node for an episode to be the same there."""
    versions = package_versions()
    return {"vla_rl's files": tree_digest(paths.PACKAGE, "*.py")[:12], **{name: versions[name] for name in _PLAYS}}


class EnvActor:
    """The actor: slots of environments that answer as those of a worker process do."""

    def __init__(self, env_spec: Mapping[str, Any], plugins: Sequence[str], search: Sequence[str]) -> None:
        sys.path.extend(path for path in search if path not in sys.path)  # as a spawned process gets it
        self._slots = EnvSlots(env_spec, plugins)

    def hello(self, first_slot: int, expected: Mapping[str, str | None], node: str) -> tuple[Message, int]:
        """The first message, and the process id."""

        def ready() -> Message:
            _check_software(expected, node)
            return ("ready", self._slots.describe(first_slot))

        return answer(ready), os.getpid()

    def serve(self, name: str, slot: int, data: Any) -> Message:
        commands = {"reset": self._slots.reset, "step": self._slots.step}
        return answer(lambda: ("ok", commands[name](slot, data)))


def _check_software(expected: Mapping[str, str | None], node: str) -> None:
    here = software()
    differing = [f"{name} is {here[name]}, not {expected[name]}" for name in expected if here[name] != expected[name]]
    if differing:
        raise errors.MachineError(
            f"{node} would play other episodes than this machine: {'; '.join(differing)}",
            where="pool=ray",
            remedy="install the same version of this package and of its dependencies on every node",
        )


@dataclass(frozen=True)
class RayStart:
    """What every actor is started with.

    Attributes:
        ray: the package, connected.
        env_spec, plugins: the environment and the packages that it may come from.
        placer: finds it a node.
        software: what its node must have installed.
    """

    ray: Any
    env_spec: dict[str, Any]
    plugins: tuple[str, ...]
    placer: Placer
    software: dict[str, str | None]


class RayWorker(Worker):
    """Handle of one actor; it may have to wait for a node with room."""

    def __init__(self, index: int, generation: int, start: RayStart) -> None:
        super().__init__(index, generation)
        self._index, self._start = index, start
        self._called = self.name
        self._placing, self._ended = Lock(), False
        self._node = self._actor = self._pending = self._pid = None
        self.placed()

    @property
    def pid(self) -> int | None:
        here = self._node and self._node.address == self._start.ray.util.get_node_ip_address()
        return self._pid if here else None

    def placed(self) -> bool:
        """Whether it has a node; looks for one if it has none."""
        with self._placing:
            if self._actor is None and not self._ended:
                self._node = self._start.placer.take()
                if self._node is not None:
                    self.name = f"{self._called} on {self._node}"
                    self._launch(self._node.id)
            return self._actor is not None

    def greets(self) -> bool:
        """Whether its first message is there to be read. One that was to start on a node which has gone by now looks
        for another, and nobody has to wait for it meanwhile."""
        ray = self._start.ray
        if not self.placed() or not ray.wait([self._pending], timeout=0)[0]:
            return False
        try:
            ray.get(self._pending)
        except ray.exceptions.RayError as error:
            if _node_gone(error):
                self._leave_node(gone=True)
                return False
        return True

    def alive(self) -> bool:
        return True  # Ray tells when it is asked for a result

    def send(self, command: Command) -> None:
        assert self._actor is not None
        self._pending = self._actor.serve.remote(*command)

    def receive(self, timeout_s: float) -> tuple[Any, ...]:
        deadline, ray = time.monotonic() + timeout_s, self._start.ray
        while True:
            self._await_place()
            try:
                message = ray.get(self._pending, timeout=max(0.0, deadline - time.monotonic()))
                break
            except ray.exceptions.GetTimeoutError:
                busy = "" if self._pid else "; its node may be full of other jobs"
                raise Lost(f"gave no answer for {timeout_s:g} s{busy}") from None
            except ray.exceptions.RayError as error:
                self._leave_node(gone=_node_gone(error))
                if self._pid or not _node_gone(error):
                    raise Lost(f"died ({_cause(error)})") from None
        if self._pid is None:
            message, self._pid = message
        return message

    def unpack(self, message: tuple[Any, ...]) -> SlotResult:
        result: SlotResult = message[1]
        seen = result.observation
        assert seen is not None
        # What arrives is a read-only view of Ray's memory.
        return replace(result, observation=Observation(seen.frames.copy(), seen.state_deg.copy()))

    def kill(self) -> None:
        if self._actor is not None:
            self._start.ray.kill(self._actor)

    def end(self, *, kill: bool) -> None:
        with self._placing:
            self._ended = True
        self.kill()  # there is nothing that an idle actor would have to finish
        self._leave_node()

    def _await_place(self) -> None:
        deadline = time.monotonic() + PLACE_TIMEOUT_S
        while not self.placed():
            if self._ended or time.monotonic() > deadline:
                raise Lost(f"found no node with room for {self._start.placer.wanted()} within {PLACE_TIMEOUT_S:g} s")
            time.sleep(SEEK_EVERY_S)

    def _leave_node(self, *, gone: bool = False) -> None:
        """Give the place back; a node that has `gone` is not gone back to, though the cluster may not know it yet."""
        with self._placing:
            if self._node is not None:
                self._start.placer.give_back(self._node, gone=gone)
            self._node = self._actor = None

    def _launch(self, node_id: str) -> None:
        start = self._start
        want = dict(start.placer.want)
        variables = {**WORKER_VARIABLES, **{name: os.environ[name] for name in (VARIABLE,) if name in os.environ}}
        there = start.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        actor = start.ray.remote(EnvActor).options(
            num_cpus=want.pop("CPU"),
            resources=want,
            scheduling_strategy=there,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": variables},
        )
        self._actor = actor.remote(start.env_spec, start.plugins, sys.path)
        self._pending = self._actor.hello.remote(self._index, start.software, str(self._node))


def _node_gone(error: Exception) -> bool:
    return type(error).__name__ == "ActorUnschedulableError" or "node has died" in str(error)


def _cause(error: Exception) -> str:
    """Ray's message without the list of ids in its middle and the advice at its end."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("class_name:", "actor_id:", "pid:", "namespace:"))]
    return " ".join(line for line in told if not line.startswith("ip:")).partition(" Some common causes")[0]
