"""The network that learns, sharded over processes with PyTorch's FSDP2, and its optimiser.

In: a policy, the same on every rank, and what of it may move. Out: a policy whose log-probabilities and gradients are
those of the whole network, while each rank keeps a share of every tensor, of its gradient and of its moments. Whole
tensors go in and come out one at a time. Every method is called on all ranks, in the same order. Left out: who calls
them (`sharedlearner`), and which rows a rank reads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from vla_rl.policy import rowgradients
from vla_rl.rl.anchor import Anchor
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.snapshot import Snapshot
from vla_rl.rl.surfaces import NamedParameters, Surface
from vla_rl.rl.update import build_optimizer

LEADER = 0
STEP = "step"  # the only field of AdamW's state that is a number and no tensor of the parameter's shape
Moments = Mapping[str, Mapping[str, Tensor]]


class _Whole(nn.Module):
    """The network as one module whose call is the policy's forward pass: FSDP brings together what a call needs."""

    def __init__(self, policy: Any, logits: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self._logits = policy.model, logits

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._logits(*inputs)


class Student:
    """This rank's share.

    Args:
        policy: its network is sharded in place and belongs to the student from now on.
        names: of the parameters that may move; the others are frozen already.
        surface: says which rows of them may.
        optim: an `OptimConfig` (vla_rl.config.schema).
        settings: constants of an update.

    Attributes:
        policy: scores rows with the sharded network.
        parameters, optimizer: of this rank, as `Learner` has them of the whole.
        anchor: the policy as it is now, if the objective needs it.
    """

    def __init__(
        self, policy: Any, names: Sequence[str], surface: Surface, optim: Any, settings: UpdateSettings
    ) -> None:
        rowgradients.detach(policy.model)  # shares are of whole tables
        rows = surface.moving_rows(policy)
        self.policy = copy.copy(policy)
        self.policy.logits = _sharded(policy)
        found = dict(policy.model.named_parameters())
        self.parameters: NamedParameters = [(name, found[name]) for name in names]
        if rows is not None:
            for _, parameter in self.parameters:
                _mask_rows(parameter, rows)
        self.optimizer = build_optimizer(self.parameters, optim, surface)
        self.anchor = Anchor.of(self.policy, self.parameters) if settings.objective.kl_beta else None

    def snapshot(self) -> Snapshot:
        """This rank's weights and moments of now."""
        return Snapshot(self.parameters, self.optimizer)

    @torch.no_grad()
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter whole, in order, on every rank."""
        for name, parameter in self.parameters:
            yield name, _whole(parameter)

    @torch.no_grad()
    def moments(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """What the optimiser knows of every parameter, whole and in the host's memory; nothing before a step."""
        for name, parameter in self.parameters:
            state = self.optimizer.state.get(parameter)
            if state:
                yield name, {field: _whole(value).cpu() for field, value in state.items()}

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor] | None, moments: Moments | None, fields: Mapping[str, Any]) -> None:
        """Go on from whole weights and moments.

        Args:
            weights, moments: by name, on the leader; None elsewhere.
            fields: by name: the optimiser's steps, for the parameters that it knows something of; on every rank.
        """
        self.optimizer.state.clear()
        for name, parameter in self.parameters:
            _local(parameter).copy_(_share(parameter, None if weights is None else weights[name]))
            if name in fields:
                state: dict[str, Any] = {STEP: torch.tensor(fields[name], dtype=torch.float32)}
                for field in ("exp_avg", "exp_avg_sq"):
                    whole = None if moments is None else moments[name][field]
                    state[field] = torch.zeros_like(parameter)
                    _local(state[field]).copy_(_share(parameter, whole))
                self.optimizer.state[parameter] = state


def _sharded(policy: Any) -> nn.Module:
    """Shard a policy's network: every layer of its stacks by itself, so that one layer at a time is whole, and the rest
    together.

    Gradients are summed over the ranks, not averaged: the loss of a rank's rows is divided by the whole wave's
    normaliser already.
    """
    root = _Whole(policy, policy.logits)
    mesh = init_device_mesh(torch.device(policy.device).type, (dist.get_world_size(),))
    stacks = [module for module in policy.model.modules() if isinstance(module, nn.ModuleList)]
    layers = [layer for stack in reversed(stacks) for layer in stack if next(layer.parameters(), None) is not None]
    for module in (*layers, root):  # the root, too, is put away after a pass: weights may change before the next one
        sharded: FSDPModule = fully_shard(module, mesh=mesh, reshard_after_forward=True)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # a plain sum on every backend; gloo knows no scaled one
    return root


def _mask_rows(parameter: nn.Parameter, rows: slice) -> None:
    """Zero the gradient of this rank outside the rows whenever some has arrived; see `surfaces`."""
    start, length = _rows(parameter)
    keep = torch.zeros(length, dtype=torch.bool, device=_local(parameter).device)
    keep[max(0, rows.start - start) : max(0, rows.stop - start)] = True

    def mask(held: Tensor) -> None:
        assert held.grad is not None
        _local(held.grad)[~keep] = 0

    parameter.register_post_accumulate_grad_hook(mask)


def _share(parameter: Tensor, whole: Tensor | None) -> Tensor:
    """This rank's rows of a whole tensor of a parameter's shape that the leader has."""
    local = _local(parameter)
    if whole is None:
        whole = torch.empty(parameter.shape, dtype=local.dtype, device=local.device)
    else:
        whole = whole.to(device=local.device, dtype=local.dtype).contiguous()
    dist.broadcast(whole, LEADER)
    start, length = _rows(parameter)
    return whole[start : start + length]


def _rows(parameter: Any) -> tuple[int, int]:
    """First row of this rank's share of a tensor, and how many it has; shares are of whole rows."""
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return offset[0], shape[0]


def _local(tensor: Any) -> Tensor:
    return tensor.to_local()


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
