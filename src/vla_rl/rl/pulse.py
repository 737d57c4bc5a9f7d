"""What `heartbeat.json` says of a run: where it is, how far that part has come, how long it has held its device.

In: steps and phases as the trainer enters them, and events. Out: the file, replaced at most once a second unless a
phase is told at once. Left out: what a run does about its time (`trainer`).
"""

from __future__ import annotations

from typing import Any

from vla_rl.rl.account import Account
from vla_rl.rl.events import RowsScored, UpdateProgress
from vla_rl.rl.rundir import RunDir
from vla_rl.rollout.events import Event, PredictRound


class Pulse:
    """The heartbeat of one run.

    Args:
        run_dir: whose file it is.
        steps: of the whole run.
        account: knows the device seconds.
    """

    def __init__(self, run_dir: RunDir, steps: int, account: Account) -> None:
        self._run_dir, self._steps, self._account = run_dir, steps, account
        self._step, self._phase = 0, "starting"

    def enter(self, step: int, phase: str, *, beat: bool = False, **told: Any) -> None:
        """What the heartbeat says from now on.

        Args:
            beat: at once.
            told: what this one beat says besides.
        """
        self._step, self._phase = step, phase
        if beat:
            self._run_dir.heartbeat({**self._state(), **told}, force=True)

    def beat(self, event: Event) -> None:
        """Progress of whatever is under way."""
        progress = {}
        if isinstance(event, PredictRound | RowsScored | UpdateProgress):
            progress = {"done": event.done, "total": event.total}
        self._run_dir.heartbeat({**self._state(), **progress})

    def _state(self) -> dict[str, Any]:
        device_s = self._account.device_s()
        return {"step": self._step, "steps": self._steps, "phase": self._phase, "device_s": device_s}
