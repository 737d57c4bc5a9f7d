"""Checkpoints of a run: its weights, the optimiser's moments and the counters, complete or absent.

In: named parameters, an optimiser, a JSON-able state. Out: `step_NNNN/` with `surface.safetensors`,
`optimizer.safetensors`, whatever else is named (`average.safetensors`), each in shards of at most 15 MiB, and
`state.json`, which holds the digests of the others and of itself. Written under a temporary name, fsynced, renamed.
Moments of a token table are those of the rows that have some, with the rows' numbers (`NAME.rows`); checkpoints from
before that (format 2) have them for every row, zeros elsewhere, and are read.
Hyper-parameters are not stored: they always come from the configuration. Left out: full policies for serving.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vla_rl.errors import IntegrityError
from vla_rl.files import fsync_path
from vla_rl.policy.hashing import file_digests
from vla_rl.policy.rowgradients import leaf_of, row_gradient
from vla_rl.policy.shardfiles import read_tensors, write_tensors
from vla_rl.rl.hostmoments import placed
from vla_rl.rl.surfaces import NamedParameters
from vla_rl.rollout.jsonl import dump_json

FORMAT, WHOLE_TABLES = 3, 2
SURFACE, OPTIMIZER, STATE = "surface", "optimizer", "state.json"  # the first two are stems of safetensors files
_ROWS = "rows"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes:
        weights: by parameter name; `moments`: by parameter name and field; `extra`: further tensors by stem and name.
        state: the run's own counters.
    """

    path: Path
    step: int
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    extra: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save_checkpoint(
    root: Path,
    step: int,
    parameters: NamedParameters,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    *,
    extra: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> Path:
    """Write `root/step_NNNN`; a checkpoint of that step that already exists is replaced only once the new one is
    whole.

    Args:
        extra: further tensors to keep, by stem of their files and name.
    """
    final, temporary = step_path(root, step), root / f".step_{step:04d}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    moments = {
        f"{name}.{field}": value
        for name, parameter in parameters
        for field, value in _moments(parameter, optimizer).items()
    }
    groups = {SURFACE: dict(parameters), OPTIMIZER: moments, **(extra or {})}
    files = [name for stem, tensors in groups.items() for name in write_tensors(tensors, temporary, stem)]
    digests = dict(zip(files, file_digests(temporary / name for name in files), strict=True))
    body = dump_json({"format": FORMAT, "step": step, "stems": list(groups), "files": digests, "state": dict(state)})
    own = hashlib.sha256(body.encode()).hexdigest()
    (temporary / STATE).write_text(dump_json({"sha256": own, "body": json.loads(body)}, indent=1))
    for name in (*files, STATE):
        fsync_path(temporary / name)
    fsync_path(temporary)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(temporary, final)
    fsync_path(root)
    return final


def step_path(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"step_{step:04d}"


def checkpoints(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first; what a crash left under a temporary name is not one."""
    return sorted(root.glob("step_[0-9]*"), key=lambda path: int(path.name.removeprefix("step_")))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and verify every digest.

    Raises:
        IntegrityError: a file is missing, changed or of another format.
    """
    body = _body(path)
    try:
        actual = dict(zip(body["files"], file_digests(path / name for name in body["files"]), strict=True))
    except OSError as error:
        raise _damaged(path, str(error)) from error
    for name, digest in body["files"].items():
        if actual[name] != digest:
            raise _damaged(path, f"{name} has another digest than the one recorded")
    extra = {stem: read_tensors(path, stem) for stem in body["stems"] if stem not in (SURFACE, OPTIMIZER)}
    weights, moments = read_tensors(path, SURFACE), read_tensors(path, OPTIMIZER)
    return Checkpoint(path, body["step"], weights, moments, extra, body["state"])


def stored_state(path: Path) -> dict[str, Any]:
    """The state of a checkpoint, verified, without its tensors.

    Raises:
        IntegrityError: it is missing, changed or of another format.
    """
    return _body(path)["state"]


@torch.no_grad()
def restore(checkpoint: Checkpoint, parameters: NamedParameters, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and moments back, bit for bit; learning rate and betas stay those of the optimiser given.

    Raises:
        IntegrityError: the checkpoint holds another set of parameters or shapes than the surface, or moments of other
            rows.
    """
    names = {name: tuple(parameter.shape) for name, parameter in parameters}
    stored = {name: tuple(weight.shape) for name, weight in checkpoint.weights.items()}
    if names != stored:
        differing = sorted(name for name in names.keys() | stored.keys() if names.get(name) != stored.get(name))
        raise IntegrityError(
            f"the checkpoint holds another surface; {len(differing)} weights differ, first {', '.join(differing[:3])}",
            where=str(checkpoint.path),
            remedy="resume with the surface and policy that the run was started with",
        )
    fields: dict[str, dict[str, Tensor]] = {}
    for key, value in checkpoint.moments.items():
        name, _, field = key.rpartition(".")
        fields.setdefault(name, {})[field] = value
    fused = optimizer.defaults.get("fused")
    for name, parameter in parameters:
        parameter.copy_(checkpoint.weights[name])
        if name in fields:  # AdamW keeps its moments beside the parameter, its step counter only if it is fused
            optimizer.state[leaf_of(parameter)] = {
                field: placed(value, parameter, optimizer) if fused or field != "step" else value.clone()
                for field, value in _of_leaf(fields[name], name, parameter, checkpoint.path).items()
            }


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` (at least 1) checkpoints and what crashes left behind."""
    for path in [*checkpoints(root)[:-keep], *root.glob(".step_*.tmp")]:
        shutil.rmtree(path, ignore_errors=True)


def _moments(parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimiser keeps of a parameter, and of a table's rows which they are."""
    fields, table = optimizer.state.get(leaf_of(parameter), {}), row_gradient(parameter)
    return {**fields, _ROWS: table.rows} if fields and table is not None else dict(fields)


def _of_leaf(fields: dict[str, Tensor], name: str, parameter: nn.Parameter, path: Path) -> dict[str, Tensor]:
    """Stored moments of a parameter for what the optimiser holds of it now.

    Raises:
        IntegrityError: they are of other rows.
    """
    table, stored = row_gradient(parameter), fields.get(_ROWS)
    fields = {field: value for field, value in fields.items() if field != _ROWS}
    if table is None:
        if stored is None:
            return fields
        # Updates that are shared have whole tables.
        whole = {field: value for field, value in fields.items() if value.dim()}
        made = {field: value.new_zeros(parameter.shape).index_copy_(0, stored, value) for field, value in whole.items()}
        return {**fields, **made}
    rows = table.rows.cpu()
    if stored is None:  # all rows, as format 2 and shared updates have them
        others = torch.ones(len(parameter), dtype=torch.bool).index_fill_(0, rows, False)
        whole = {field: value for field, value in fields.items() if value.shape == parameter.shape}
        if not any(bool(value[others].any()) for value in whole.values()):
            return {field: value[rows] if field in whole else value for field, value in fields.items()}
    elif torch.equal(rows, stored):
        return fields
    raise IntegrityError(
        f"the checkpoint holds moments of other rows of {name} than those that can move now",
        where=str(path),
        remedy="resume with the surface, policy and task that the run was started with",
    )


def _body(path: Path) -> dict[str, Any]:
    """What `state.json` holds, verified."""
    try:
        outer = json.loads((path / STATE).read_bytes())
        body, recorded = outer["body"], outer["sha256"]
        actual = hashlib.sha256(dump_json(body).encode()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, str(error)) from error
    if actual != recorded:
        raise _damaged(path, f"{STATE} has another digest than the one recorded")
    if body["format"] not in (FORMAT, WHOLE_TABLES):
        raise _damaged(path, f"format {body['format']}, not {FORMAT}")
    return body


def _damaged(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        f"the checkpoint is damaged: {problem}",
        where=str(path),
        remedy="delete this directory to go on from the checkpoint before it; nothing else is lost",
    )
