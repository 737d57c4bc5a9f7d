"""AdamW whose moments lie in the host's memory.

In: what `torch.optim.AdamW` takes. Out: the same steps by torch's own arithmetic on the parameters' device, bit for
bit; one tensor's moments are there at a time. Of a release that spares 27 of 59 GiB, for as many bytes each way over
the bus once an update, which takes minutes. Moments in 8 bits would stay on the device in 7 GiB and are other numbers;
an optimiser that steps on the host keeps a copy of the weights there as well, and rounds otherwise.

On CUDA the host's memory is pinned, so that it is copied at the bus's speed; torch hands it out in powers of two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

DEVICE, HOST = MOMENTS = ("device", "host")
_FIELDS = ("exp_avg", "exp_avg_sq")


class HostAdamW(torch.optim.AdamW):
    """See the module; neither fused nor over several tensors at once."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step of every parameter that has a gradient.

        Raises:
            ValueError: a closure, which nothing here uses.
        """
        if closure is not None:
            raise ValueError("moments in the host's memory go with a plain step")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)

    def _step(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state.update({field: kept(torch.zeros_like(parameter, device="cpu"), parameter) for field in _FIELDS})
        there = {field: state[field].to(parameter.device) for field in _FIELDS}
        adamw(
            [parameter], [gradient], [there["exp_avg"]], [there["exp_avg_sq"]], [], [state["step"]],
            foreach=False, fused=False, amsgrad=False, maximize=False, beta1=group["betas"][0], beta2=group["betas"][1],
            lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
        )  # fmt: skip
        for field, value in there.items():
            if value is not state[field]:  # on a CPU they have been there all the time
                state[field].copy_(value)


def kept(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """A moment of a parameter in the host's memory, pinned if the parameter lies on CUDA."""
    return value.pin_memory() if parameter.is_cuda else value


def placed(value: Tensor, parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> Tensor:
    """A moment of a parameter, from the host, where the optimiser keeps it."""
    return kept(value, parameter) if isinstance(optimizer, HostAdamW) else value.to(parameter.device)
