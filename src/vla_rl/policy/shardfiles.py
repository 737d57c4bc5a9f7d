"""Named tensors as safetensors files of bounded size, the way that checkpoints on the hub are split.

In: tensors and a stem. Out: `STEM.safetensors` while they fit in one file, else `STEM-00001-of-00003.safetensors` … and
`STEM.safetensors.index.json`. Files stay below 15 MiB, so that policies and resume points can move between machines
that cap the size of a file. Left out: writing a directory as a whole (`rl.checkpoint`, `export`), and reading weights
of others with their checks (`weightfiles`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

FILE_BYTES = 15 * 2**20


def write_tensors(
    tensors: Mapping[str, Tensor],
    directory: Path,
    stem: str,
    *,
    metadata: Mapping[str, str] | None = None,
    limit: int = FILE_BYTES,
) -> list[str]:
    """Write tensors into an existing directory and return the names of the files, the index included.

    Args:
        tensors: on any device; order of the mapping is the order in the files.
        metadata: free-form header of every file.
        limit: bytes of tensors a file; a single larger tensor gets a file to itself.
    """
    groups = _groups(tensors, limit)
    count = len(groups)
    single = f"{stem}.safetensors"
    names = [single] if count == 1 else [f"{stem}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    for name, group in zip(names, groups, strict=True):
        save_file({key: _plain(tensors[key]) for key in group}, directory / name, metadata=dict(metadata or {}) or None)
    if count == 1:
        return names
    where = {key: name for name, group in zip(names, groups, strict=True) for key in group}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    body = {"metadata": {"total_size": size}, "weight_map": where}
    index = f"{single}.index.json"
    (directory / index).write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
    return [*names, index]


def read_tensors(directory: Path, stem: str) -> dict[str, Tensor]:
    """What `write_tensors` wrote, on the CPU.

    Raises:
        OSError, ValueError, KeyError, SafetensorError: a file is missing or damaged; callers name the remedy.
    """
    single, index = directory / f"{stem}.safetensors", directory / f"{stem}.safetensors.index.json"
    if not index.is_file():
        return load_file(single)
    where = json.loads(index.read_text())["weight_map"]
    found = {key: tensor for name in sorted(set(where.values())) for key, tensor in load_file(directory / name).items()}
    return {key: found[key] for key in where}


def _groups(tensors: Mapping[str, Tensor], limit: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if groups[-1] and used + size > limit:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += size
    return groups


def _plain(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, with memory of its own: safetensors refuses tensors that share some."""
    plain = tensor.detach().to("cpu").contiguous()
    return plain.clone() if plain.untyped_storage().nbytes() != plain.numel() * plain.element_size() else plain
