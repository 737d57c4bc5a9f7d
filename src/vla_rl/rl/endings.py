"""How the steps of a run are kept and how a run ends: of itself, out of time, or stopped by a wire or its budget.

In: steps and their rows, firings. Out: checkpoints with all that has to come along, the last rows and the last
heartbeat, and the error or the `Outcome` that the run ends with. Whatever ends a run, the last step that was recorded
is in a checkpoint then. Left out: what fires (`guards`), which steps the cadence keeps (`savepoints`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vla_rl.errors import OutOfMemory, StoppedRun
from vla_rl.rl import events, guards, rundir
from vla_rl.rl.account import Account
from vla_rl.rl.guards import Guards
from vla_rl.rl.plan import Outcome
from vla_rl.rl.pulse import Pulse
from vla_rl.rl.rundir import RunDir
from vla_rl.rl.savepoints import SavePoints
from vla_rl.rl.summary import stopped_row
from vla_rl.rl.waves import StoppedWave
from vla_rl.rl.wires import Firing
from vla_rl.rollout.events import OnEvent


class Endings:
    """Keeps the steps of one run and ends it.

    Args:
        policy: what the checkpoints are of.
        run_dir, save_points: where they and the rows lie.
        guards, account: what has to come along.
        pulse: the heartbeat.
        tell: told of checkpoints, firings and the end.
    """

    def __init__(
        self,
        policy: Any,
        run_dir: RunDir,
        save_points: SavePoints,
        guards: Guards,
        account: Account,
        pulse: Pulse,
        tell: OnEvent,
    ) -> None:
        self._policy, self._run_dir, self._save_points = policy, run_dir, save_points
        self._guards, self._account, self._pulse, self._tell = guards, account, pulse, tell
        self._base_digest, self._remembered = "", guards.state()

    def begin(self, base_digest: str) -> None:
        """The launch goes on from what is restored now.

        Args:
            base_digest: of the policy that the run was started from.
        """
        self._base_digest = base_digest
        self.recorded()

    def recorded(self) -> None:
        """A step is on record: what the guards know now belongs to it, also when it is kept later."""
        self._remembered = self._guards.state()

    def save(
        self, step: int, row: dict[str, Any], *, keep_wave: bool = False, remembered: dict[str, Any] | None = None
    ) -> float:
        """Write the checkpoint of a step; returns seconds.

        Args:
            keep_wave: leave the rows of its wave where they are.
            remembered: the guards' memory after that step, if they have gone on since.
        """
        self._pulse.enter(step, "save")
        started = time.perf_counter()
        state = {
            "counters": asdict(self._account.counters),
            "policy_digest": self._policy.digest(),
            "base_digest": self._base_digest,
            "adapter": None if self._policy.lora is None else self._policy.lora.body(),
            "guards": remembered or self._guards.state(),
        }
        path = self._save_points.save(step, row, state, keep_wave=keep_wave)
        self._tell(events.CheckpointSaved(step, path))
        return time.perf_counter() - started

    def keep(self, step: int) -> None:
        """Write the checkpoint of the last recorded step, if the cadence left it out, before the run ends for whatever
        reason; the weights are still those after it."""
        if self._save_points.missing(step):
            self.save(step, self._run_dir.rows(rundir.TRAIN)[-1], remembered=self._remembered)

    def stopped_in_wave(self, step: int, stopped: StoppedWave) -> StoppedRun:
        """The error that ends a run inside a wave."""
        self.keep(step - 1)
        row = stopped_row(step, stopped.finished, self._account.costs(stopped.wall_s, 0.0))
        row["tripwires"] = [firing.row() for firing in stopped.firings]
        self._run_dir.append(rundir.TRAIN, [row])
        return self._stopped(step, stopped.firings, rundir.TRAIN)

    def stop_if(self, step: int, firings: Sequence[Firing], file: str) -> None:
        """Tell what fired, and end the run if a wire of it is armed.

        Args:
            file: where that is on record.

        Raises:
            StoppedRun: one is.
        """
        if guards.armed(firings):
            if file != rundir.TRAIN:  # between two steps
                self.keep(step)
            raise self._stopped(step, firings, file)
        if firings:
            self._tell(events.WiresFired(step, [firing.row() for firing in firings]))

    def end(self, step: int, *, finished: bool) -> Outcome:
        """The end after so many updates: all that were asked for, or out of time."""
        if not finished:
            self.keep(step)
        reason = "all steps done" if finished else "run.max_wall_s is reached"
        self._pulse.enter(step, "finished" if finished else "stopped", beat=True)
        self._tell(events.RunEnded(step, finished, reason))
        return Outcome(step, finished, reason, self._account.counters)

    def out_of_memory(self, what: str) -> OutOfMemory:
        """The error that ends a run whose device does not hold `what`."""
        return OutOfMemory(
            f"{what} does not fit into the device's memory, also in smaller micro-batches",
            where="optim.microbatch_rows, optim.microbatch_tokens",
            remedy=f"what was played is kept: go on with run.resume={self._run_dir.path} optim.microbatch_rows=1, or "
            "on a device with more memory",
        )

    def _stopped(self, step: int, firings: Sequence[Firing], file: str) -> StoppedRun:
        rows = [firing.row() for firing in firings]
        self._pulse.enter(step, "tripped", beat=True, tripwires=rows)
        self._tell(events.WiresFired(step, rows))
        return guards.stopped(step, firings, str(self._run_dir.path / file))
