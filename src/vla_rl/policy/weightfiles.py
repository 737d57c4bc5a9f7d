"""The safetensors files of a directory, as one table of named tensors that are read only when asked for.

In: a directory with `model.safetensors`, or with shards and `model.safetensors.index.json`. Out: names, shapes and
number formats from the headers, tensors mapped from the files (no copy on the CPU), digests. Pickled weights are never
opened. What the names mean is `vla_rl.policy.layout`'s business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.refusals import DamagedFile, MissingWeights, UnexpectedWeights

MODEL = "model"
WEIGHTS, INDEX = f"{MODEL}.safetensors", f"{MODEL}.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: `dtype` in safetensors' own spelling (``F32``)."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightFiles:
    """All tensors of a directory.

    Attributes:
        directory: where the files are.
        entries: what is stored, by name, file by file.
    """

    directory: Path
    entries: dict[str, Stored]

    @classmethod
    def open(cls, directory: Path) -> WeightFiles:
        """Read the headers.

        Raises:
            ConfigError: there are no safetensors weights.
            DamagedFile: a file is cut short or unreadable, or there are two sets of weights.
            MissingWeights, UnexpectedWeights: shards and index disagree.
        """
        single, index = directory / WEIGHTS, directory / INDEX
        if single.is_file() and index.is_file():
            raise DamagedFile(
                f"{WEIGHTS} and {INDEX} are both there",
                where=str(directory),
                remedy="delete the one that is left over from another save",
            )
        if single.is_file():
            return cls(directory, {entry.name: entry for entry in _header(single)})
        if not index.is_file():
            pickled = sorted(p.name for p in directory.glob("*") if p.suffix in PICKLES)
            found = f"; {pickled[0]} is a pickle, which is never opened" if pickled else ""
            raise ConfigError(
                f"there are no safetensors weights{found}",
                where=str(directory),
                remedy=f"the directory needs {WEIGHTS}, or shards with {INDEX}",
            )
        return cls(directory, _sharded(directory, index))

    @property
    def shards(self) -> list[str]:
        """File names that hold weights, in order of first use."""
        return list(dict.fromkeys(entry.file for entry in self.entries.values()))

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Tensors by name, file by file, mapped from disk: reading one touches its own pages only."""
        by_file: dict[str, list[str]] = {}
        for name in names:
            by_file.setdefault(self.entries[name].file, []).append(name)
        for file, wanted in by_file.items():
            with safe_open(self.directory / file, framework="pt") as stored:
                for name in wanted:
                    yield name, stored.get_tensor(name)

    def tensor(self, name: str) -> Tensor:
        """One tensor, mapped from disk."""
        return next(self.tensors([name]))[1]

    def metadata(self, file: str) -> dict[str, str]:
        """The free-form metadata in a file's header."""
        with safe_open(self.directory / file, framework="pt") as stored:
            return dict(stored.metadata() or {})


def tensor_sha256(tensor: Tensor) -> str:
    """SHA-256 over the bytes of a tensor as safetensors stores them (row-major, little-endian)."""
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()


def check_finite(tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
    """Refuse nan and infinity, one tensor at a time and without a copy of it.

    Raises:
        DamagedFile: naming the first.
    """
    for name, tensor in tensors:
        if tensor.numel() and not all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor)):
            raise DamagedFile(
                f"{name} holds numbers that are not finite", where=where, remedy="fetch or export it again"
            )


def _header(path: Path) -> list[Stored]:
    try:
        with safe_open(path, framework="pt") as stored:
            slices = {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
            return [Stored(n, path.name, s.get_dtype(), tuple(s.get_shape())) for n, s in slices.items()]
    except (OSError, SafetensorError) as error:
        raise DamagedFile(
            f"{path.name} is cut short or no safetensors file: {error}",
            where=str(path),
            remedy="fetch or export it again",
        ) from error


def _sharded(directory: Path, index: Path) -> dict[str, Stored]:
    try:
        claimed = {str(name): str(file) for name, file in json.loads(index.read_text())["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"the index cannot be read: {error}", where=str(index)) from error
    entries: dict[str, Stored] = {}
    for file in dict.fromkeys(claimed.values()):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise DamagedFile(f"the index names {file!r}, which is no shard of this directory", where=str(index))
        for entry in _header(directory / file):
            if claimed.get(entry.name) != file:
                raise UnexpectedWeights(f"{file} holds {entry.name}, the index says otherwise", where=str(index))
            entries[entry.name] = entry
    absent = sorted(claimed.keys() - entries.keys())
    if absent:
        raise MissingWeights(f"{len(absent)} weights of the index are in no shard, first {absent[0]}", where=str(index))
    return entries
