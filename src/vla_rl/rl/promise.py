"""What a surface promises, held against what updates did.

In: a policy and its trainable parameters, before the first update and after each. Out: nothing, or the weight that
breaks the promise: one outside the surface that is no longer what it was, bit for bit, or a tensor of an adapter that
has stayed where it was for two updates (B moves in the first; A has no gradient while B is zero). Weights of a network
may move or not: some are in no forward pass. Left out: rows inside a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vla_rl.errors import IntegrityError
from vla_rl.policy.lora import pairs
from vla_rl.policy.weightfiles import tensor_sha256
from vla_rl.rl.surfaces import NamedParameters

_UPDATES = 2


class Promise:
    """The surface of a run.

    Args:
        policy: as it is now.
        parameters: what may move.
    """

    def __init__(self, policy: Any, parameters: NamedParameters) -> None:
        declared = {id(parameter) for _, parameter in parameters}
        state: dict[str, Tensor] = policy.model.state_dict(keep_vars=True)
        self._frozen = {name: tensor for name, tensor in state.items() if id(tensor) not in declared}
        self._added = {
            name: half for pair in pairs(policy.model) for name, half in pair.named() if id(half) in declared
        }
        self._before, self._still = _digests(self._frozen), _digests(self._added)
        self._updates = 0

    def check(self, *, stepped: bool) -> None:
        """After an update.

        Args:
            stepped: the optimiser did step.

        Raises:
            IntegrityError: naming the first weight that should not have moved, or should have.
        """
        moved = [name for name, digest in _digests(self._frozen).items() if digest != self._before[name]]
        if moved:
            raise IntegrityError(
                f"{len(moved)} weights outside the surface have changed, first {moved[0]}",
                where="surface",
                remedy="nothing of this step was saved; a surface or loss of your own may write to them",
            )
        self._updates += stepped
        if stepped and self._updates == _UPDATES:
            now = _digests(self._added)
            still = [name for name, digest in self._still.items() if now[name] == digest]
            if still:
                raise IntegrityError(
                    f"{len(still)} tensors of the adapter have not moved in {_UPDATES} updates, first {still[0]}",
                    where="surface.targets",
                    remedy="leave out projections that the policy's forward pass does not use",
                )


def _digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: tensor_sha256(tensor.detach().cpu()) for name, tensor in tensors.items()}
