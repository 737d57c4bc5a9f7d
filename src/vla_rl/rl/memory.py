"""What a run holds in memory: every part by name, in bytes, with the formula that it is counted by.

In: a policy with its surface, optimiser and sampler, and what the run keeps to go back to. Out: `Line`s. Activations
are measured by a forward and backward pass over a micro-batch of the longest possible rows, everything else is counted,
so that it needs no device of that size. Left out, because only a device can tell: its context (half a GiB), the
allocator's waste, workspaces of products, the activations of a prefill, which are freed layer by layer, and with
`optim.recompute` what the one layer keeps that is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vla_rl.policy.prompt import Observation
from vla_rl.policy.rowgradients import leaf_of
from vla_rl.rl.hostmoments import DEVICE, HOST, HostAdamW
from vla_rl.rl.lessons import Lesson
from vla_rl.rl.preflight import longest_row
from vla_rl.rl.settings import RECORDED, UpdateSettings
from vla_rl.rl.snapshot import Snapshot
from vla_rl.rl.surfaces import NamedParameters
from vla_rl.rl.update import Fixed, accumulate_gradient

STEP_COUNT = 4  # bytes that AdamW counts the steps of a tensor in


@dataclass(frozen=True)
class Line:
    """One part.

    Attributes:
        name: of the part, or of a sum of parts: `rollout`, `update`, `step`, the largest of them (`planned`), `copies`.
        where: ``device``, the policy's, or ``host``.
        bytes: None if it is not known.
        formula: in words, with names of other parts in it.
    """

    name: str
    where: str
    bytes: int | None
    formula: str


@dataclass(frozen=True)
class Kept:
    """What a run keeps of its surface to go back to.

    Attributes:
        anchored: the weights of step 0.
        undoable: weights and moments before an update, which can be taken back.
    """

    anchored: bool
    undoable: bool


def memory_lines(
    policy: Any,
    parameters: NamedParameters,
    optimizer: torch.optim.Optimizer,
    sampler: Any,
    kept: Kept,
    *,
    activations: int | None,
    peak: int | None,
) -> list[Line]:
    """All parts and their sums.

    Args:
        optimizer: over them; says where its moments lie.
        sampler: `held_bytes` of it, if it has some, are counted.
        activations, peak: see `measured`.
    """
    leaves = [leaf_of(parameter) for _, parameter in parameters]
    surface, gradients = sum(p.nbytes for _, p in parameters), sum(leaf.nbytes for leaf in leaves)
    moments, largest = 2 * gradients + STEP_COUNT * len(leaves), max(leaf.nbytes for leaf in leaves)
    hosted = isinstance(optimizer, HostAdamW)
    rows = sum(leaf.nbytes for leaf, (_, p) in zip(leaves, parameters, strict=True) if leaf is not p)
    sampling: Mapping[str, int | None] = getattr(sampler, "held_bytes", dict)()
    parts = [
        Line("weights", DEVICE, sum(p.nbytes for p in policy.model.parameters()), "every parameter x its bytes"),
        Line("rows", DEVICE, rows, "rows of token tables that a pass reaches x width x bytes"),
        Line("gradients", DEVICE, gradients, "every parameter that moves x its bytes; of token tables `rows`"),
        Line("moments", DEVICE, moments * (not hosted), f"2 x gradients + {STEP_COUNT} bytes a tensor"),
        Line("visiting", DEVICE, 2 * largest * hosted, "moments of the largest of the gradients, in a step"),
        Line("host_moments", HOST, moments * hosted, "moments with optim.moments=host"),
        Line("temporaries", DEVICE, 2 * largest, "2 x the largest of the gradients: root and quotient of a step"),
        Line("activations", DEVICE, activations, "measured: what the graph of a micro-batch of longest rows keeps"),
        Line("cache", DEVICE, sampling.get("cache"), "2 x layers x rows of a batch x kv heads x tokens x head x bytes"),
        Line("cache_kept", DEVICE, sampling.get("cache_kept"), "cache, if the sampler keeps it during an update"),
        Line("short_copy", DEVICE, sampling.get("short_copy"), "every parameter x bytes of sampler.dtype, if another"),
        Line(
            "anchor",
            HOST,
            surface * kept.anchored,
            "surface, as it was at step 0; as it is, while that stands in its place",
        ),
        Line("undo", HOST, (surface + moments) * kept.undoable, "surface + moments before an update"),
    ]
    sums = [
        _sum("rollout", parts, ("weights", "rows", "moments", "cache", "short_copy")),
        _sum("update", parts, ("weights", "rows", "gradients", "moments", "cache_kept", "activations")),
        _sum("step", parts, ("weights", "rows", "gradients", "moments", "visiting", "cache_kept", "temporaries")),
    ]
    most = max(line.bytes or 0 for line in sums)
    return [
        *parts,
        *sums,
        Line("planned", DEVICE, most, "the largest of rollout, update and step"),
        Line("peak", DEVICE, peak, "measured by the device, of an update"),
        _sum("copies", parts, ("anchor", "undo")),
    ]


def measured(
    policy: Any,
    parameters: NamedParameters,
    optimizer: torch.optim.Optimizer,
    settings: UpdateSettings,
    temperature: float,
    observation: Observation,
) -> tuple[int, int | None]:
    """Bytes that the graph of a micro-batch of longest rows keeps for its backward pass, and the device's peak in an
    update with it (None on a CPU).

    Weights, moments and gradients are as before afterwards. Call it while the optimiser has no state.
    """
    row = longest_row(policy, observation)
    lessons = [Lesson(row, 1.0, 1.0)] * settings.limits.rows
    fixed = [torch.from_numpy(row.logp)] * len(lessons)
    needs_anchor, cuda = bool(settings.objective.kl_beta), str(policy.device).startswith("cuda")
    before, graph = Snapshot(parameters, optimizer), _Graph(policy.model)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    with torch.autograd.graph.saved_tensors_hooks(graph.save, lambda saved: saved):
        accumulate_gradient(
            policy, lessons, float(len(lessons) * len(row.bins)), settings, temperature,
            Fixed(fixed if settings.old_logp == RECORDED else None, fixed if needs_anchor else None), graph.passed,
        )  # fmt: skip
    optimizer.step()
    peak = torch.cuda.max_memory_allocated() if cuda else None
    optimizer.zero_grad(set_to_none=True)
    before.put_back()
    return graph.most, peak


def _sum(name: str, parts: Iterable[Line], names: tuple[str, ...]) -> Line:
    found = {line.name: line for line in parts}
    where = found[names[0]].where
    return Line(name, where, sum(found[part].bytes or 0 for part in names), " + ".join(names))


class _Graph:
    """Counts the bytes that a graph keeps for its backward pass, parameters left out, and the most of any graph."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._sizes: dict[int, int] = {}
        self.most = 0

    def save(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._sizes[storage.data_ptr()] = storage.nbytes()
        self.most = max(self.most, sum(self._sizes.values()))
        return tensor

    def passed(self, done: int, total: int) -> None:
        """A graph has been through its backward pass and is gone."""
        self._sizes.clear()
