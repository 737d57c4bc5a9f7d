"""Low-rank adapters beside a policy's projections (LoRA, Hu et al., 2021, arXiv:2106.09685), by peft.

In: a policy, and which projections get a pair of which rank. Out: the same network, in place, whose projection W has
become W + scale B A with trainable A and B, while W itself never changes; or back again, merged or switched off for a
while. B is zero at first, so a fresh adapter leaves the policy what it was. peft is only imported when an adapter is
attached. Left out: which tensors an optimiser gets (`vla_rl.rl.surfaces`), files (`vla_rl.policy.lora_files`).

Adapters are kept apart while the policy samples: what peft's modules compute in the prompt and in the trainer's pass,
`vla_rl.policy.projection` computes in one-token steps, by the same operations. Merging before a rollout would round
otherwise.

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
        seed: A of a pair depends on it, on the projection's path and on its shape alone.

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
    for pair in found:
        for half in (pair.down, pair.up):
            half.data = half.data.float()
        width = pair.down.shape[1]
        drawn = stream(f"lora {pair.path}", seed).uniform(-1.0, 1.0, tuple(pair.down.shape)) / width**0.5
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
    wrapped = sorted((path, module) for path, module in model.named_modules() if is_wrapped(module))
    return [Pair(path, *halves(module)) for path, module in wrapped]


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The network's state without the adapter, under the names that it has without one."""
    own = {name for pair in pairs(model) for name, _ in pair.named()}
    return {name.replace(_INNER, "."): value for name, value in model.state_dict().items() if name not in own}


def is_wrapped(module: nn.Module) -> bool:
    """Whether peft has put a pair beside this projection; asked without importing peft."""
    return hasattr(module, "lora_A") and hasattr(module, "base_layer")


def is_off(module: Any) -> bool:
    """Whether a wrapped projection leaves its pair out for now."""
    return bool(module.disable_adapters)


def halves(module: Any) -> tuple[nn.Parameter, nn.Parameter, float]:
    """A, B and scale of a wrapped projection."""
    return module.lora_A[ADAPTER].weight, module.lora_B[ADAPTER].weight, float(module.scaling[ADAPTER])


def acting_pairs(model: nn.Module) -> list[Pair]:
    """Those that make a difference: not switched off, and B is not zero."""
    return [pair for pair in pairs(model) if not is_off(model.get_submodule(pair.path)) and bool(pair.up.any())]


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """The network without its adapter for as long as the block runs; nothing is copied. Pairs that were off before stay
    off, and those that were frozen stay frozen: peft would thaw them."""
    wrapped: list[Any] = [module for module in model.modules() if is_wrapped(module) and not is_off(module)]
    flags = [(half, half.requires_grad) for module in wrapped for half in halves(module)[:2]]
    try:
        for module in wrapped:
            module.enable_adapters(False)
        yield
    finally:
        for module in wrapped:
            module.enable_adapters(True)
        for half, trained in flags:
            half.requires_grad_(trained)


@torch.no_grad()
def merge(policy: VlaPolicy) -> float:
    """Make the adapter part of the weights, W + scale B A in their own number format, and take it off.

    Returns:
        Which share of scale B A survives the rounding to that format: 1 - |rounded - exact| / |scale B A|, norms over
        all pairs. bfloat16 keeps 8 bits of W and drops what is smaller.
    """
    lost = whole = 0.0
    for pair in pairs(policy.model):
        parent, _, name = pair.path.rpartition(".")
        wrapped: Any = policy.model.get_submodule(pair.path)
        base = wrapped.get_base_layer()
        product, before = pair.up @ pair.down * pair.scale, base.weight.double()
        base.weight.copy_(base.weight.to(pair.up.dtype) + product)
        lost += float((base.weight.double() - before - product).square().sum())
        whole += float(product.double().square().sum())
        setattr(policy.model.get_submodule(parent), name, base)
    if policy.lora is not None:
        del policy.model.peft_config
    policy.lora = None
    return 1.0 - (lost / whole) ** 0.5 if whole else 1.0


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
