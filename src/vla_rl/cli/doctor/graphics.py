"""Checks of what may crash or hang: MuJoCo, rendering, torch and the GPU. Each in processes of their own.

In: the patience with them. Out: findings.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from vla_rl.cli.doctor.children import ask, ask_python
from vla_rl.cli.doctor.findings import FAILURE, OK, WARNING, Finding
from vla_rl.cli.doctor.imports import failures
from vla_rl.cli.doctor.project import repair

GIB = 2**30
GPU_CROWDED = 0.1  # share of its memory below which a GPU counts as taken by others
HIDE = "CUDA_VISIBLE_DEVICES= vla-rl … hides the GPU from torch; then look at the driver (nvidia-smi)"


def rendering(patience_s: float) -> Iterator[Finding]:
    """Physics without pictures, then one picture, with the backend that a command would take."""
    reason = failures(["mujoco"], patience_s / 2, {"MUJOCO_GL": "disable"})["mujoco"]
    if reason is not None:
        yield Finding("mujoco", FAILURE, f"mujoco cannot be imported: {reason}", repair("mujoco"))
        yield Finding(
            "rendering",
            FAILURE,
            "no picture was tried: mujoco cannot be imported",
            "repair mujoco first, then ask again",
        )
        return
    yield Finding("mujoco", OK, "the physics engine can be imported")
    from vla_rl.sim.backend import candidates
    from vla_rl.sim.canary import require_rendering

    tried = candidates()
    backend = require_rendering(patience_s / 2 / len(tried))
    others = f"; {tried[0]} does not" if backend != tried[0] else ""
    yield Finding("rendering", OK, f"{backend} renders off-screen{others}")


def gpu(patience_s: float) -> Iterator[Finding]:
    """torch, the GPUs that it sees, and whether they compute; without any it is the CPU that works."""
    patience_s *= 0.75  # the rest is for the driver's own tool
    answer = ask_python("vla_rl.cli.doctor.torch_facts", patience_s=patience_s)
    facts: dict[str, Any] = {name: value for fact in answer.facts for name, value in fact.items()}
    if "torch" not in facts:
        reason = facts.get("broken") or answer.how(patience_s)
        yield Finding("torch", FAILURE, f"torch cannot be imported: {reason}", repair("torch"))
        return
    yield Finding("torch", OK, f"torch {facts['torch']}, {_built_for(facts['cuda'])}")
    if "gpus" not in facts:
        how = answer.how(patience_s)
        yield Finding("gpu", FAILURE, f"torch does not come back from asking for GPUs ({how})", HIDE)
        return
    driver = _driver(patience_s / 3)
    for index, one in enumerate(facts["gpus"]):
        yield _told(index, one, driver)
    if facts["gpus"]:
        return
    if driver:
        remedy = (
            "install a torch build for this driver's CUDA version, or update the driver; runs use the CPU till then"
        )
        yield Finding("gpu", WARNING, f"there is a GPU ({driver}), and torch does not see it", remedy)
        return
    yield Finding("gpu", OK, "no GPU: runs use the CPU")


def _built_for(cuda: str | None) -> str:
    return f"built for CUDA {cuda}" if cuda else "built without CUDA"


def _driver(patience_s: float) -> str | None:
    """Name and driver version of every GPU, as the driver's own tool tells; None without that tool or any GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    answer = ask(command, patience_s)
    lines = sorted({line.strip().replace(", ", ", driver ") for line in answer.out.splitlines() if line.strip()})
    return "; ".join(lines) if answer.code == 0 and lines else None


def _told(index: int, one: dict[str, Any], driver: str | None) -> Finding:
    name = f"cuda:{index} {one['name']}"
    if one["broken"]:
        remedy = "run.device=cpu works without it; a torch build for this GPU and its driver makes it usable"
        return Finding("gpu", FAILURE, f"{name} does not compute: {one['broken']}", remedy)
    version = f", {driver.partition(', ')[2]}" if driver and ";" not in driver else ""
    what = f"{name} computes, {one['free'] / GIB:.1f} of {one['total'] / GIB:.1f} GiB free{version}"
    if one["free"] < GPU_CROWDED * one["total"]:
        return Finding("gpu", WARNING, what, "others hold its memory (nvidia-smi names them); wait, or run.device=cpu")
    return Finding("gpu", OK, what)
