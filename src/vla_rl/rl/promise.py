"""What a surface promises, held against what updates did.

In: a policy and its surface, before the first update and after each. Out: nothing, or the weight that breaks the
promise: one outside the surface, or a row outside the surface's rows, that is no longer what it was, bit for bit; or a
tensor of an adapter that has stayed where it was for two updates (B moves in the first; A has no gradient while B is
zero). Weights of a network may move or not: some are in no forward pass.

Nothing is copied: what must not move is hashed once, and again after every update, on all cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from vla_rl.errors import IntegrityError
from vla_rl.policy.hashing import fingerprints
from vla_rl.policy.lora import pairs
from vla_rl.rl.surfaces import NamedParameters, Surface

_UPDATES = 2


class Promise:
    """The surface of a run.

    Args:
        policy: as the run begins.
        parameters: what may move.
        surface: says which rows of them.
    """

    def __init__(self, policy: Any, parameters: NamedParameters, surface: Surface) -> None:
        declared = {id(parameter) for _, parameter in parameters}
        state: dict[str, Tensor] = policy.model.state_dict(keep_vars=True)
        self._frozen = {name: tensor for name, tensor in state.items() if id(tensor) not in declared}
        if (rows := surface.moving_rows(policy)) is not None:
            self._frozen |= dict(_outside(parameters, rows))
        self._added = {
            name: half for pair in pairs(policy.model) for name, half in pair.named() if id(half) in declared
        }
        self._before, self._fresh = fingerprints(self._frozen), fingerprints(self._added)

    def check_still(self) -> None:
        """After an update, also one that is undone later.

        Raises:
            IntegrityError: naming the first weight that should not have moved.
        """
        moved = [name for name, digest in fingerprints(self._frozen).items() if digest != self._before[name]]
        if moved:
            raise IntegrityError(
                f"{len(moved)} weights outside the surface have changed, first {moved[0]}",
                where="surface",
                remedy="nothing of this step was saved; a surface or loss of your own may write to them",
            )

    def check_moved(self, updates: int) -> None:
        """After an update that lasts.

        Args:
            updates: that the run has made with this one, in all of its launches.

        Raises:
            IntegrityError: naming the first tensor of the adapter that should have moved.
        """
        if updates != _UPDATES:
            return
        still = [name for name, digest in fingerprints(self._added).items() if digest == self._fresh[name]]
        if still:
            raise IntegrityError(
                f"{len(still)} tensors of the adapter have not moved in {_UPDATES} updates, first {still[0]}",
                where="surface.targets",
                remedy="leave out projections that the policy's forward pass does not use",
            )


def _outside(parameters: NamedParameters, rows: slice) -> Iterator[tuple[str, Tensor]]:
    """What lies above and below the rows, as views."""
    for name, parameter in parameters:
        yield f"{name}, rows before {rows.start}", parameter.detach()[: rows.start]
        yield f"{name}, rows from {rows.stop}", parameter.detach()[rows.stop :]
