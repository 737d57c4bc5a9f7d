"""Low-rank adapters beside a policy's projections (LoRA, Hu et al., 2021, arXiv:2106.09685), by peft.

In: a policy, and which projections get a pair of which rank. Out: the same network, in place, whose projection W has
become W + scale B A with trainable A and B, while W itself never changes; or back again, merged or switched off for a
while. B is zero at first, so a fresh adapter leaves the policy what it was. peft is only imported when an adapter is
attached. Left out: which tensors an optimiser gets (`vla_rl.rl.surfaces`), files (`vla_rl.policy.lora_files`).

Adapters are kept apart while the policy samples: what peft's modules compute in the prompt and in the trainer's pass,
`Projection` computes in one-token steps, by the same operations. Merging before a rollout would round otherwise.

Shapes: R rank, D inputs and N outputs of a projection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from vla_rl.errors import ConfigError, MachineError
from vla_rl.seeds import stream

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy

ADAPTER = "default"  # peft's own name for the only adapter of a network
_INNER = ".base_layer."  # what peft puts into the name of a tensor that it wraps


@dataclass(frozen=True)
class LoraSettings:
    """What an adapter is.

    Attributes:
        rank: of every pair.
        alpha: the product B A counts alpha / rank times.
        targets: last names of the projections in the text stack that get a pair.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]

    @classmethod
    def stored(cls, body: Mapping[str, Any]) -> LoraSettings:
        """The inverse of `body`."""
        return cls(int(body["rank"]), float(body["alpha"]), tuple(body["targets"]))

    def body(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "targets": list(self.targets)}


@dataclass(frozen=True)
class Pair:
    """The adapter of one projection.

    Attributes:
        path: module path of the projection.
        down, up: A [R, D] and B [N, R].
        scale: of their product.
    """

    path: str
    down: nn.Parameter
    up: nn.Parameter
    scale: float

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Both with their names in the network."""
        yield f"{self.path}.lora_A.{ADAPTER}.weight", self.down
        yield f"{self.path}.lora_B.{ADAPTER}.weight", self.up


def require_peft(instead: str = "") -> Any:
    """The package.

    Args:
        instead: what else helps, for the message.

    Raises:
        MachineError: it is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise MachineError(
            "adapters need the package peft, which is not installed",
            where="surface=lora",
            remedy=f"pip install 'vla-rl[lora]'{instead}",
        ) from error
    return peft


def attach(policy: VlaPolicy, settings: LoraSettings, *, seed: int) -> None:
    """Put a fresh pair beside every chosen projection: A uniform within 1/sqrt(D), B zero, both float32.

    Args:
        seed: A depends on it and on the projections' names alone.

    Raises:
        ConfigError: the policy carries an adapter already, or the text stack has no projection of a name.
        MachineError: peft is not installed.
    """
    peft, model = require_peft(), policy.model
    if policy.lora is not None:
        raise ConfigError("the policy carries an adapter already", where="surface", remedy="merge it first")
    chosen = _projections(policy, settings.targets)
    peft.inject_adapter_in_model(peft_config(policy, settings), model, adapter_name=ADAPTER)
    model.eval()  # new modules come in training mode
    policy.lora = settings
    found = pairs(model)
    assert [pair.path for pair in found] == chosen, "peft has wrapped other modules than those chosen"
    rng = stream("lora", seed)
    for pair in found:
        for half in (pair.down, pair.up):
            half.data = half.data.float()
        width = pair.down.shape[1]
        drawn = rng.uniform(-1.0, 1.0, tuple(pair.down.shape)) / width**0.5
        pair.down.data.copy_(torch.from_numpy(drawn))
        pair.up.data.zero_()


def peft_config(policy: VlaPolicy, settings: LoraSettings, **more: Any) -> Any:
    """peft's description of an adapter: the targets in the text stack, and nowhere else."""
    places, names = ("|".join(map(re.escape, some)) for some in (policy.adapter.text_parameters, settings.targets))
    return require_peft().LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, lora_dropout=0.0, bias="none",
        target_modules=rf"(?:{places})(?:.*\.)?(?:{names})", **more,
    )  # fmt: skip


def pairs(model: nn.Module) -> list[Pair]:
    """The adapter's pairs, by path; none of a network without one."""
    wrapped = sorted((path, module) for path, module in model.named_modules() if _is_wrapped(module))
    return [Pair(path, *_halves(module)) for path, module in wrapped]


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The network's state without the adapter, under the names that it has without one."""
    own = {name for pair in pairs(model) for name, _ in pair.named()}
    return {name.replace(_INNER, "."): value for name, value in model.state_dict().items() if name not in own}


def acting_pairs(model: nn.Module) -> list[Pair]:
    """Those that make a difference: not switched off, and B is not zero."""
    return [pair for pair in pairs(model) if not _is_off(model.get_submodule(pair.path)) and bool(pair.up.any())]


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """The network without its adapter for as long as the block runs; nothing is copied. Pairs that were off before stay
    off, and those that were frozen stay frozen: peft would thaw them."""
    wrapped: list[Any] = [module for module in model.modules() if _is_wrapped(module) and not _is_off(module)]
    halves = [(half, half.requires_grad) for module in wrapped for half in _halves(module)[:2]]
    try:
        for module in wrapped:
            module.enable_adapters(False)
        yield
    finally:
        for module in wrapped:
            module.enable_adapters(True)
        for half, trained in halves:
            half.requires_grad_(trained)


@torch.no_grad()
def merge(policy: VlaPolicy) -> None:
    """Make the adapter part of the weights, W + scale B A in their own number format, and take it off."""
    for pair in pairs(policy.model):
        parent, _, name = pair.path.rpartition(".")
        wrapped: Any = policy.model.get_submodule(pair.path)
        base = wrapped.get_base_layer()
        base.weight.copy_(base.weight.to(pair.up.dtype) + pair.up @ pair.down * pair.scale)
        setattr(policy.model.get_submodule(parent), name, base)
    if policy.lora is not None:
        del policy.model.peft_config
    policy.lora = None


def check_merged(policy: VlaPolicy, where: str) -> None:
    """Refuse to write weights that would lack the adapter.

    Raises:
        ConfigError: there is one.
    """
    if policy.lora is not None:
        raise ConfigError(
            "the policy carries an adapter, which the layout of its weights has no place for",
            where=where,
            remedy="merge it first (vla_rl.policy.lora.merge)",
        )


@dataclass(frozen=True)
class Projection:
    """Projections of one input side by side, with what an adapter adds to each.

    The weights may be one matrix: a product rounds alike however many outputs it has. Those of rank 4 and 8 do not, so
    every pair has products of its own, and the result is that of the modules bit for bit on a CPU.

    Attributes:
        weight: [N, D], of all of them.
        adapters: outputs of each, with A, B and scale, or None where it has no pair; empty if none has.
    """

    weight: Tensor
    adapters: tuple[tuple[int, tuple[Tensor, Tensor, float] | None], ...]

    @classmethod
    def of(cls, *modules: Any) -> Projection:
        """As the modules are now."""
        weights = [module.weight for module in modules]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        halves = [_halves(module) if _is_wrapped(module) and not _is_off(module) else None for module in modules]
        if not any(halves):
            return cls(weight, ())
        return cls(weight, tuple((m.weight.shape[0], half) for m, half in zip(modules, halves, strict=True)))

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, D] -> [rows, N], in the number format of the weights."""
        out = linear(x, self.weight)
        if not self.adapters:
            return out
        parts = out.split([outputs for outputs, _ in self.adapters], dim=1)
        return torch.cat([_adapted(x, part, half) for part, (_, half) in zip(parts, self.adapters, strict=True)], dim=1)


def _adapted(x: Tensor, out: Tensor, half: tuple[Tensor, Tensor, float] | None) -> Tensor:
    if half is None:
        return out
    down, up, scale = half
    return (out + linear(linear(x.to(down.dtype), down), up) * scale).to(out.dtype)


def _projections(policy: VlaPolicy, targets: tuple[str, ...]) -> list[str]:
    """Paths of the linear layers that `targets` names in the text stack, sorted.

    The head is read by its weight, not called as a module: a pair beside it would do nothing. It cannot be named.
    """
    by_name: dict[str, list[str]] = {}
    for path, module in policy.model.named_modules():
        if isinstance(module, nn.Linear) and path.startswith(policy.adapter.text_parameters):
            by_name.setdefault(path.rpartition(".")[2], []).append(path)
    unknown = [name for name in targets if name not in by_name]
    if unknown or not targets:
        raise ConfigError(
            f"the text stack has no projection {unknown[0]!r}" if unknown else "no projection is named",
            where="surface.targets",
            remedy=f"it has {', '.join(sorted(by_name))}",
        )
    return sorted(path for name in set(targets) for path in by_name[name])


def _is_wrapped(module: nn.Module) -> bool:
    """Whether peft has put a pair beside this projection; asked without importing peft."""
    return hasattr(module, "lora_A") and hasattr(module, "base_layer")


def _is_off(module: Any) -> bool:
    return bool(module.disable_adapters)


def _halves(module: Any) -> tuple[nn.Parameter, nn.Parameter, float]:
    """A, B and scale of a wrapped projection."""
    return module.lora_A[ADAPTER].weight, module.lora_B[ADAPTER].weight, float(module.scaling[ADAPTER])
