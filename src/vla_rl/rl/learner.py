"""Who computes the updates of a run: here, the process that runs it.

In: a policy, its surface and the constants of an update. Out: the policy after an update, in place. `GrpoTrainer` calls
nothing else that moves weights, so that another learner can share the work out (`sharedlearner`). Left out: rollouts,
measurements and files, which are the trainer's in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from vla_rl.policy.prompt import Observation
from vla_rl.rl import preflight
from vla_rl.rl.anchor import Anchor
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.snapshot import Snapshot
from vla_rl.rl.surfaces import NamedParameters, Surface
from vla_rl.rl.update import build_optimizer, gradient_passes, grpo_update
from vla_rl.rl.updated import UpdateResult
from vla_rl.rollout.records import EpisodeSpec, Row


class Undo(Protocol):
    """Weights and moments of a moment."""

    def put_back(self) -> None:
        """Restore them bit for bit."""
        ...


class Learner:
    """One process.

    Args:
        policy: as the run begins.
        parameters: what may move, as `surface` has it.
        optim: an `OptimConfig` (vla_rl.config.schema).
        settings: constants of an update.

    Attributes:
        parameters, optimizer: what a checkpoint is of.
        gpus: how many devices an update holds, if it holds any.
    """

    gpus = 1

    def __init__(
        self, *, policy: Any, parameters: NamedParameters, surface: Surface, optim: Any, settings: UpdateSettings
    ) -> None:
        self.policy, self.parameters, self.settings = policy, parameters, settings
        self.optimizer = build_optimizer(parameters, optim, surface)

    def dry_update(self, temperature: float, observation: Observation) -> int:
        """See `preflight.dry_update`."""
        return preflight.dry_update(
            self.policy, self.parameters, self.optimizer, self.settings, temperature, observation
        )

    def update(
        self,
        rows: Sequence[Row],
        advantages: Mapping[EpisodeSpec, float | tuple[float, ...]],
        *,
        temperature: float,
        step: int,
        anchor: Anchor | None,
        progress: Callable[[int, int], None],
    ) -> UpdateResult:
        """See `grpo_update`."""
        return grpo_update(
            policy=self.policy, parameters=self.parameters, optimizer=self.optimizer, rows=rows, advantages=advantages,
            settings=self.settings, temperature=temperature, step=step, anchor=anchor, progress=progress,
            passes=self.passes,
        )  # fmt: skip

    def passes(self, **given: Any) -> Any:
        """See `gradient_passes`."""
        return gradient_passes(**given)

    def snapshot(self) -> Undo:
        """What undoes the update that follows."""
        return Snapshot(self.parameters, self.optimizer)

    def gather(self) -> None:
        """Before a checkpoint: what the optimiser knows is in `optimizer`."""

    def spread(self) -> None:
        """After a checkpoint has been put into `parameters` and `optimizer`: updates go on from there."""

    def saved(self) -> None:
        """After a checkpoint: `optimizer` need not hold what it was given for it."""

    def forget(self) -> None:
        """After an update that was not finished: no gradient of it is left."""
        self.optimizer.zero_grad(set_to_none=True)
