"""The processes that torchrun has started for one run: how they meet, are told what to do, and notice that one is gone.

In: torchrun's environment. Out: a process group, commands from the leader (rank 0) to the helpers, and the name of a
rank that has ended. Helpers wait for commands without a limit, as a wave may take hours, but not longer than their
launcher lives; inside a command nobody waits longer than `distributed.timeout_s`. Left out: what the commands are
(`sharedlearner`).
"""

from __future__ import annotations

import _thread
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from vla_rl.errors import EXIT_CRASH, LostRank
from vla_rl.prereg.process import Process

POLL_S = 0.01  # how often a helper looks for a command
WATCH_S = 1.0  # how often the leader looks whether the others live
LOOK_S = 3.0  # how long the leader looks for a rank that has ended, once something went wrong
GRACE_S = 20.0  # how long a leader that is stuck in a collective has to notice by itself
CONFIGURATION, END = "configuration", "end"
INTERRUPTED = "interrupted"


class Team:
    """This process's place among them.

    Attributes:
        rank, size: which of how many.
        control: a group for small things in the host's memory.
    """

    control: dist.ProcessGroup

    def __init__(self) -> None:
        store, self.rank, self.size = next(iter(rendezvous("env://", timeout=timedelta(minutes=5))))
        self._store: Any = PrefixStore("vla_rl", store)
        self._parent, self._commands = os.getppid(), 0
        self._processes: list[Process] = []
        self._told_to_end, self._over = False, threading.Event()

    # ------------------------------------------------------------------------------------------------ how they meet
    def publish(self, tree: dict[str, Any], device: str, timeout_s: float) -> None:
        """The leader has a configuration that helpers build their part of."""
        self._store.set(CONFIGURATION, json.dumps([tree, device, timeout_s]))

    def published(self) -> tuple[dict[str, Any], str, float] | None:
        """What the leader has published, as soon as it has; None if there is no leader any more."""
        body = self._wait(CONFIGURATION)
        return None if body is None else tuple(json.loads(body))

    def connect(self, device: str, timeout_s: float) -> None:
        """Make the groups; every rank calls this."""
        limit = timedelta(seconds=timeout_s)
        self._store.set(f"process/{self.rank}", json.dumps(Process.own().body()))
        if device == "cuda":
            torch.cuda.set_device(local_rank())
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            store=PrefixStore("group", self._store), rank=self.rank, world_size=self.size, timeout=limit,
        )  # fmt: skip
        group = dist.new_group(backend="gloo", timeout=limit)
        assert isinstance(group, dist.ProcessGroup)
        self.control = group
        bodies = [self._store.get(f"process/{rank}") for rank in range(self.size)]
        self._processes = [Process.of_body(json.loads(body)) for body in bodies]

    # --------------------------------------------------------------------------------------------------- its commands
    def send(self, name: str, **given: Any) -> None:
        """Have every helper do something; all of them take part in what follows."""
        self._store.set(self._key(), pickle.dumps((name, given)))
        self._commands += 1

    def receive(self) -> tuple[str, dict[str, Any]]:
        """The next command; the last one is `END`, also if the leader is gone."""
        body = self._wait(self._key())
        self._commands += 1
        return (END, {}) if body is None else pickle.loads(body)

    def _key(self) -> str:
        return f"command/{self._commands}"

    def _wait(self, key: str) -> bytes | None:
        # Waiting in the store would write a warning at every limit.
        while os.getppid() == self._parent:
            try:
                if self._store.check([key]):
                    return self._store.get(key)
            except dist.DistError:  # whoever kept the store has ended
                return None
            time.sleep(POLL_S)
        return None

    # ------------------------------------------------------------------------------------------------ one that is gone
    def leave(self, why: str) -> None:
        """A helper says why it ends before it is told to."""
        self._store.set(f"left/{self.rank}", why)

    @contextmanager
    def led(self) -> Iterator[None]:
        """A block in which the leader works; when it ends, so do the helpers.

        Raises:
            LostRank: a rank has ended, whatever that looked like from here.
        """
        before = signal.signal(signal.SIGTERM, self._on_sigterm)
        watch = threading.Thread(target=self._watch, name="team", daemon=True)
        watch.start()
        clean = False
        try:
            yield
            clean = True
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, KeyboardInterrupt) as error:  # a collective without one of its ranks: RuntimeError
            if isinstance(error, KeyboardInterrupt) and not self._told_to_end:
                raise
            self._over.set()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others; it waits 30 s for them
            if (lost := self._look(LOOK_S)) is not None:
                raise lost from error
            if "timed out" in str(error).lower():
                raise LostRank(
                    "the processes that share the update have not heard of each other for distributed.timeout_s",
                    where=str(error).splitlines()[0],
                    remedy="see whether one hangs; the run goes on from its last checkpoint with run.resume",
                ) from error
            raise
        finally:
            self._over.set()
            watch.join()
            with suppress(dist.DistError):  # whoever kept the store may have ended before
                self.send(END)
            if clean:
                signal.signal(signal.SIGTERM, before)
                dist.destroy_process_group()

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """What torchrun sends when another rank has ended, or when it is told to end itself."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._told_to_end = True
        raise KeyboardInterrupt

    def _watch(self) -> None:
        """Wake the leader when a rank is gone; one that is stuck in a collective on a GPU does not wake up."""
        while not self._over.wait(WATCH_S):
            if self._gone():
                self._told_to_end = True
                _thread.interrupt_main()
                if not self._over.wait(GRACE_S):
                    print(f"vla-rl train: {self._look(LOOK_S)}", file=sys.stderr, flush=True)
                    os._exit(EXIT_CRASH)
                return

    def _gone(self) -> list[int]:
        """Ranks on this machine whose process has ended."""
        return [rank for rank, process in enumerate(self._processes) if process.alive() is False]

    def _look(self, patience_s: float) -> LostRank | None:
        """The rank that has ended before it was told to, if one does within so many seconds."""
        until = time.monotonic() + patience_s
        while True:
            for rank in self._gone():
                why = self._left(rank)
                if why != INTERRUPTED:
                    return LostRank(
                        f"rank {rank} (process {self._processes[rank].pid}) of the {self.size} that share the update "
                        + (f"has ended: {why}" if why else "has ended without a word: killed, or out of memory"),
                        where="distributed=fsdp2",
                        remedy="nothing of the step under way is lost but its update: start the same torchrun command "
                        "again with run.resume=<the run's directory>, on as many processes as you like",
                    )
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)

    def _left(self, rank: int) -> str | None:
        key = f"left/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else None


def local_rank() -> int:
    """Which GPU of its machine a process of a team has."""
    return int(os.environ["LOCAL_RANK"])
