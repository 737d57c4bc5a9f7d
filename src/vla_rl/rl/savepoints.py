"""Checkpoints of a run: on a cadence, in place of those that they make superfluous, and back from the newest.

In: a run directory, what moves, the state that has to come along. Out: files, and the state again. Left out: how one
checkpoint is written and read (`checkpoint`), and what the state means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vla_rl.config.schema import CheckpointConfig
from vla_rl.rl import checkpoint as ckpt
from vla_rl.rl import guards, rundir
from vla_rl.rl.learner import Learner
from vla_rl.rl.rundir import RunDir
from vla_rl.rollout import store
from vla_rl.rollout.jsonl import read_jsonl


def refuse_ended(run: Path) -> None:
    """Refuse to go on with a run that one of its own wires has ended, by its files alone.

    Raises:
        StoppedRun: naming the step and the wire.
        IntegrityError: the newest checkpoint does not say what its step was like.
    """
    newest = ckpt.checkpoints(run / rundir.CHECKPOINTS)[-1:]  # a kill may have kept its row from the file
    rows = [*read_jsonl(run / rundir.TRAIN), *read_jsonl(run / rundir.EVAL)]
    guards.refuse_tripped([*rows, *(ckpt.stored_state(path)["row"] for path in newest)], str(run))


class SavePoints:
    """The checkpoints of one run.

    Args:
        run_dir: where they lie, beside the waves of the steps under way.
        learner: has what is saved and restored.
        settings: cadence, and what is kept.

    Attributes:
        waves: how many waves lie on the disk at a time, of a run of `steps`.
        digest: of the policy that was saved last; whoever may change them resets it to None.
    """

    def __init__(
        self,
        run_dir: RunDir,
        learner: Learner,
        settings: CheckpointConfig,
        steps: int,
    ) -> None:
        self._run_dir, self._learner, self._steps = run_dir, learner, steps
        self._every, self.keep, self._keep_rows = settings.every, settings.keep, settings.keep_rows
        self.waves = steps if self._keep_rows else self._every
        self.digest: str | None = None

    def due(self, step: int) -> bool:
        """Whether the cadence has a checkpoint after this step."""
        return step % self._every == 0 or step == self._steps

    def restore(self) -> ckpt.Checkpoint | None:
        """Go back to the newest checkpoint, and drop what was recorded after it."""
        found = ckpt.checkpoints(self._run_dir.checkpoints)
        loaded = ckpt.load_checkpoint(found[-1]) if found else None
        done = loaded.step if loaded else 0
        self._run_dir.rewind(done)
        if loaded:
            ckpt.restore(loaded, self._learner.parameters, self._learner.optimizer)
            self._learner.spread()
            if all(row["step"] != done for row in self._run_dir.rows(rundir.TRAIN)):
                self._run_dir.append(rundir.TRAIN, [loaded.state["row"]])
        self._clean_up(done)
        return loaded

    def save(self, step: int, row: dict[str, Any], state: dict[str, Any], *, keep_wave: bool = False) -> Any:
        """Write the checkpoint after a step, then delete what it makes superfluous; returns its path.

        Args:
            row: of the step, which may not be in its file yet.
            state: what has to come along, JSON-able; `policy_digest` among it.
            keep_wave: leave the rows of this step where they are.
        """
        learner = self._learner
        learner.gather()
        path = ckpt.save_checkpoint(
            self._run_dir.checkpoints, step, learner.parameters, learner.optimizer, {**state, "row": row}
        )
        learner.saved()
        self._clean_up(step, keep_last=keep_wave)
        self.digest = state["policy_digest"]
        return path

    def missing(self, step: int) -> bool:
        """Whether the cadence has left out the checkpoint of a recorded step."""
        return step > 0 and not ckpt.step_path(self._run_dir.checkpoints, step).exists()

    def _clean_up(self, step: int, *, keep_last: bool = False) -> None:
        ckpt.prune(self._run_dir.checkpoints, self.keep)
        if not self._keep_rows:
            for past in range(max(1, step - self._every + 1), step + (not keep_last)):
                store.delete_wave(store.wave_dir(self._run_dir.path, past))
