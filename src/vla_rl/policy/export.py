"""A policy as a complete checkpoint in the layout of the one it came from, with a receipt.

In: a policy in memory and the checkpoint that it was read from. Out: a directory in which every tensor of the origin is
there again: those that training changed with their new numbers under their stored names (fused projections, embedding
split where the base vocabulary ends), all others byte for byte, the flow-matching expert and the rotary buffers
included. A release keeps the shards that it came in; a twin is split anew (`shardfiles`). Tables, tokenizer, codec,
processor files and configuration are copied. The directory appears whole or not at all, and never over another one.

The expert was trained beside the old trunk: it is carried along, not kept valid.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vla_rl.errors import ConfigError, MachineError, UsageError
from vla_rl.paths import fsync_path
from vla_rl.policy.metadata import write_metadata
from vla_rl.policy.receipt import Receipt, write_receipt
from vla_rl.policy.shardfiles import write_tensors
from vla_rl.policy.weightfiles import INDEX, MODEL, WeightFiles

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy

# What belongs to the layout beside the weights. Model cards and evaluations speak of other weights and stay behind.
LAYOUT_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
    "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json", "training_scene.json",
    "LICENSE*", "*.py",
)  # fmt: skip


def export_policy(policy: VlaPolicy, destination: Path, *, source: Mapping[str, Any]) -> Receipt:
    """Write `destination`, which must not exist.

    Args:
        policy: read by `load_policy`; its weights may have been changed since.
        destination: the new directory.
        source: JSON-able facts about where the weights come from, kept in the receipt.

    Raises:
        UsageError: the destination exists, or cannot be made.
        ConfigError: the policy was not read from a checkpoint.
        MachineError: too little room on the disk.
    """
    if policy.origin is None:
        raise ConfigError("a fresh policy has no layout to be exported in", where="export", remedy="save it first")
    origin = policy.origin.directory
    _check_room(origin, destination)
    with _appearing(destination) as temporary:
        changed = write_layout(policy, origin, temporary)
        write_metadata(temporary, policy.metadata)
        receipt = Receipt.of(temporary, changed=changed, source={**source, "policy_digest": policy.weights_digest()})
        write_receipt(temporary, receipt)
    return receipt


def write_layout(policy: VlaPolicy, origin: Path, directory: Path) -> list[str]:
    """Write weights and layout files of a policy into an existing directory; returns the names of changed tensors.

    Numbers that equal the stored ones, after conversion to the network's format, stay as they were stored: a policy in
    bfloat16 does not round what it did not train. A changed tensor is stored in the wider of both formats.
    """
    files, changed, where, size = WeightFiles.open(origin), [], {}, 0
    if policy.origin and policy.origin.opened and not policy.origin.opened.released:
        return _write_twin(policy, files, directory)
    for shard in files.shards:
        tensors, new = _shard(policy, files, shard)
        changed += new
        save_file(tensors, directory / shard, metadata=files.metadata(shard) or {"format": "pt"})
        where |= dict.fromkeys(tensors, shard)
        size += sum(t.numel() * t.element_size() for t in tensors.values())
    if (origin / INDEX).is_file():
        stored = json.loads((origin / INDEX).read_text())
        body = {**stored, "metadata": {**stored.get("metadata", {}), "total_size": size}, "weight_map": where}
        (directory / INDEX).write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
    _copy_layout(policy, origin, directory)
    return sorted(changed)


def _write_twin(policy: VlaPolicy, files: WeightFiles, directory: Path) -> list[str]:
    """A twin is small and moves between machines that cap the size of a file: it is split anew, as `save` does."""
    tensors, changed = {}, []
    for shard in files.shards:
        part, new = _shard(policy, files, shard)
        tensors |= part
        changed += new
    write_tensors(tensors, directory, MODEL, metadata=files.metadata(files.shards[0]) or {"format": "pt"})
    _copy_layout(policy, files.directory, directory)
    return sorted(changed)


def _shard(policy: VlaPolicy, files: WeightFiles, shard: str) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of one shard, and the names of those that differ from the origin's."""
    tensors, changed = dict(files.tensors(n for n, entry in files.entries.items() if entry.file == shard)), []
    for name, tensor in policy.adapter.stored_tensors(policy.model):
        if name not in tensors:
            continue
        before, now = tensors[name], tensor.detach().to("cpu").contiguous()
        same = _bits(before.to(now.dtype)) == _bits(now)
        if not bool(same.all()):
            changed.append(name)
            wide = torch.promote_types(before.dtype, now.dtype)
            tensors[name] = torch.where(same, before.to(wide), now.to(wide))
    # A copy each: parts of one table share memory, which a safetensors file cannot express.
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, changed


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: equality of numbers knows no sign of zero."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _copy_layout(policy: VlaPolicy, origin: Path, directory: Path) -> None:
    """Small files of the layout, links followed; the codec comes along also where it was kept apart."""
    stats_name = policy.origin.stats_file if policy.origin else ""
    for pattern in (*LAYOUT_FILES, stats_name):
        for path in sorted(origin.glob(pattern)):
            shutil.copyfile(path, directory / path.name)
    codec = policy.origin.codec_directory if policy.origin else origin
    target = directory / "fast_tokenizer"
    target.mkdir(exist_ok=True)
    for path in sorted(p for p in codec.iterdir() if p.suffix in (".json", ".py") and p.is_file()):
        shutil.copyfile(path, target / path.name)


@contextmanager
def _appearing(destination: Path) -> Iterator[Path]:
    """A temporary directory beside the destination that takes its place, synced to disk, when the block ends well."""
    if os.path.lexists(destination):
        raise UsageError("the destination exists", where=str(destination), remedy="name a directory that is not there")
    temporary = destination.parent / f".{destination.name}.{os.getpid()}.tmp"
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"the destination cannot be written: {error.strerror}",
            where=str(destination),
            remedy="name a directory in a place that you may write to",
        ) from error
    try:
        yield temporary
        for path in [*temporary.rglob("*"), temporary]:
            fsync_path(path)
        os.rename(temporary, destination)  # fails if somebody has put files there meanwhile
        fsync_path(destination.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_room(origin: Path, destination: Path) -> None:
    needed = sum(path.stat().st_size for path in origin.rglob("*") if path.is_file())
    existing = next(path for path in [destination, *destination.absolute().parents] if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise MachineError(
            f"the export needs {needed / 2**30:.2f} GiB and {free / 2**30:.2f} GiB are free",
            where=str(destination),
            remedy="free some space or choose another destination",
        )
