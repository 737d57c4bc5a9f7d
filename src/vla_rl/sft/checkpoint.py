"""The resume state of a supervised run: named tensors in files of bounded size and a small JSON, swapped in as one.

In: weights, optimiser state and counters. Out: `checkpoint_NNNNNN/`, of which the newest complete one is kept. Files
stay below 15 MiB so that a run can move between machines that cap file sizes. Exporting a policy is `VlaPolicy.save`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vla_rl.errors import IntegrityError
from vla_rl.rollout.files import dump_json, fsync_dir

FILE_BYTES = 15 * 2**20
_PREFIX = "checkpoint_"


def save_checkpoint(run_dir: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> Path:
    """Write the checkpoint of `step` and remove older ones.

    Args:
        tensors: contiguous named tensors (any device).
        state: JSON-able counters.
    """
    final = run_dir / f"{_PREFIX}{step:06d}"
    temporary = run_dir / f".{final.name}.tmp"
    for stale in (temporary, final):
        shutil.rmtree(stale, ignore_errors=True)
    temporary.mkdir(parents=True)
    files = _split(tensors)
    for i, part in enumerate(files):
        path = temporary / f"tensors_{i:02d}.safetensors"
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in part.items()}, path)
        _fsync(path)
    (temporary / "state.json").write_text(dump_json({"step": step, "files": len(files), **state}))
    _fsync(temporary / "state.json")
    fsync_dir(temporary)
    os.replace(temporary, final)
    fsync_dir(run_dir)
    for other in checkpoints(run_dir):
        if other != final:
            shutil.rmtree(other)
    return final


def checkpoints(run_dir: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in run_dir.glob(f"{_PREFIX}[0-9]*") if path.is_dir())


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (on the CPU) and state of a checkpoint.

    Raises:
        IntegrityError: a file is missing or unreadable.
    """
    try:
        state = json.loads((path / "state.json").read_text())
        tensors: dict[str, Tensor] = {}
        for i in range(state["files"]):
            tensors.update(load_file(path / f"tensors_{i:02d}.safetensors"))
    except Exception as error:  # safetensors raises its own type for a damaged file
        what = f"the checkpoint cannot be read: {error}"
        raise IntegrityError(what, where=str(path), remedy="delete it to start over") from error
    return tensors, state


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> dict[str, Tensor]:
    """AdamW state as named tensors: `exp_avg/…`, `exp_avg_sq/…`, `step/…`."""
    return {f"{key}/{names[p]}": value for p, slots in optimizer.state.items() for key, value in slots.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, names: dict[Tensor, str], tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`; step counters stay where the optimiser keeps them."""
    for parameter, name in names.items():
        slots = {key: tensors[f"{key}/{name}"] for key in ("exp_avg", "exp_avg_sq") if f"{key}/{name}" in tensors}
        if not slots:
            continue
        fused = optimizer.defaults.get("fused")
        step = tensors[f"step/{name}"].to(parameter.device if fused else "cpu")
        optimizer.state[parameter] = {"step": step, **{key: value.to(parameter.device) for key, value in slots.items()}}


def _split(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    files: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if files[-1] and used + size > FILE_BYTES:
            files.append({})
            used = 0
        files[-1][name] = tensor
        used += size
    return files


def _fsync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
