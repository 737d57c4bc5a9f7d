"""A policy as a complete checkpoint in the layout of the one it came from, with a receipt.

In: a policy in memory and the checkpoint that it was read from. Out: a directory in which every tensor of the origin is
there again: those that training changed with their new numbers under their stored names (fused projections, embedding
split where the base vocabulary ends), all others byte for byte, the rotary buffers and a flow-matching expert that
nobody asked for included; one that was loaded counts as trained like the rest. A release keeps the shards that it came
in; a twin is split anew (`shardfiles`). Tables, tokenizer, codec, processor files and configuration are copied. The
directory appears whole or not at all, and never over another one.

An expert that was not trained along read the old trunk: it is carried along, not kept valid, and the metadata say that
the flow head is stale.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vla_rl.errors import ConfigError, MachineError, UsageError
from vla_rl.files import fsync_path
from vla_rl.policy.expert_files import expert_config, expert_tensors
from vla_rl.policy.heads import AR, FLOW, Heads, HeadState, left_behind
from vla_rl.policy.hf_network import check_hf_weights
from vla_rl.policy.layout import EXPERT
from vla_rl.policy.lora import check_merged
from vla_rl.policy.metadata import write_metadata
from vla_rl.policy.receipt import Receipt, write_receipt
from vla_rl.policy.shardfiles import write_tensors
from vla_rl.policy.sources import CODEC_DIR, CONFIG, TRAINING_SCENE
from vla_rl.policy.weightfiles import FLOATS, INDEX, MODEL, WeightFiles

if TYPE_CHECKING:
    from vla_rl.policy.parts import Parts
    from vla_rl.policy.policy import VlaPolicy

# What belongs to the layout beside the weights. Model cards and evaluations speak of other weights and stay behind.
LAYOUT_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
    "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json", TRAINING_SCENE,
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
        CheckpointRefused: the weights of another model lie under names that only transformers' loader understands.
        ConfigError: the policy was not read from a checkpoint, or carries an adapter.
        MachineError: too little room on the disk.
    """
    if policy.origin is None:
        raise ConfigError("a fresh policy has no layout to be exported in", where="export", remedy="save it first")
    check_merged(policy, "export")
    if policy.origin.opened is None:
        check_hf_weights(policy.origin.directory)
    _check_room(policy, policy.origin, destination)
    with appearing(destination) as temporary:
        changed = write_layout(policy, policy.origin, temporary)
        write_metadata(temporary, replace(policy.metadata, heads=_heads(policy, policy.origin, changed)))
        receipt = Receipt.of(temporary, changed=changed, source={**source, "policy_digest": policy.digest()})
        write_receipt(temporary, receipt)
    return receipt


def write_layout(policy: VlaPolicy, origin: Parts, directory: Path) -> list[str]:
    """Write weights and layout files of a policy into an existing directory; returns the names of changed tensors.

    Numbers that equal the stored ones, after conversion to the network's format, stay as they were stored: a policy in
    bfloat16 does not round what it did not train. A changed tensor is stored in the wider of both formats.

    Args:
        origin: what the policy was read from; it stores every weight under the name that the adapter gives it.
    """
    files = WeightFiles.open(origin.directory)
    write = _write_shards if origin.opened is None or origin.opened.released else _write_twin
    changed = write(policy, origin, files, directory)
    _copy_layout(origin, directory)
    if policy.expert is not None and origin.opened and not origin.opened.expert:
        body = {**origin.opened.raw, **expert_config(policy)}
        (directory / CONFIG).write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
    return sorted(changed)


def _heads(policy: VlaPolicy, origin: Parts, changed: Sequence[str]) -> Heads:
    """What the checkpoint says of its heads. Supervised fine-tuning has told the policy itself; whatever else changed
    the trunk trained the token head, and left a flow head behind unless its expert changed too."""
    expert = [name for name in changed if EXPERT.match(name)]
    if policy.heads != origin.metadata.heads or len(expert) == len(changed):
        return policy.heads
    heads = {**policy.heads, AR: HeadState(trained_by="rl")}
    return left_behind(heads, FLOW) if origin.opened and origin.opened.expert and not expert else heads


def _write_shards(policy: VlaPolicy, origin: Parts, files: WeightFiles, directory: Path) -> list[str]:
    changed, where, size = [], {}, 0
    for shard, tensors, new in _shards(policy, origin, files):
        changed += new
        save_file(tensors, directory / shard, metadata=files.metadata(shard) or {"format": "pt"})
        where |= dict.fromkeys(tensors, shard)
        size += sum(t.numel() * t.element_size() for t in tensors.values())
    if (origin.directory / INDEX).is_file():
        stored = json.loads((origin.directory / INDEX).read_text())
        body = {**stored, "metadata": {**stored.get("metadata", {}), "total_size": size}, "weight_map": where}
        (directory / INDEX).write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
    return changed


def _write_twin(policy: VlaPolicy, origin: Parts, files: WeightFiles, directory: Path) -> list[str]:
    """A twin is small and moves between machines that cap the size of a file: it is split anew, as `save` does."""
    tensors, changed = {}, []
    for _, part, new in _shards(policy, origin, files):
        tensors |= part
        changed += new
    ordered = {name: tensors[name] for name in files.entries}
    added = {name: weight.to("cpu") for name, weight in expert_tensors(policy) if name not in files.entries}
    ordered, changed = ordered | added, [*changed, *added]
    write_tensors(ordered, directory, MODEL, metadata=files.metadata(files.shards[0]) or {"format": "pt"})
    return changed


def _shards(policy: VlaPolicy, origin: Parts, files: WeightFiles) -> Iterator[tuple[str, dict[str, Tensor], list[str]]]:
    """Every shard with its tensors and the names of those that differ from the origin's.

    The network is walked once, because it fuses its projections on the way. A shard comes as soon as the last of its
    weights was met: where shards follow the order of the layers, little more than one is held in memory.
    """
    names: dict[str, list[str]] = {}
    for entry in files.entries.values():
        names.setdefault(entry.file, []).append(entry.name)
    left, new = Counter(files.entries[name].file for name in _own(policy, origin, files)), {}
    loaded = expert_tensors(policy) if policy.expert is not None else ()

    def shard(file: str) -> tuple[str, dict[str, Tensor], list[str]]:
        changed = [name for name in names[file] if name in new]
        # A copy of each stored one: tensors of one file share memory, which a safetensors file cannot express.
        stored = {name: tensor.clone() for name, tensor in files.tensors(n for n in names[file] if n not in new)}
        return file, {name: stored[name] if name in stored else new.pop(name) for name in names[file]}, changed

    yield from (shard(file) for file in names if file not in left)
    for name, tensor in itertools.chain(policy.adapter.stored_tensors(policy.model), loaded):
        if name not in files.entries:  # of an expert that is new
            continue
        trained = _trained(files.tensor(name), tensor.detach().to("cpu").contiguous())
        if trained is not None:
            new[name] = trained
        file = files.entries[name].file
        left[file] -= 1
        if not left[file]:
            yield shard(file)


def _own(policy: VlaPolicy, origin: Parts, files: WeightFiles) -> list[str]:
    """Names of the stored tensors that are in memory: the network's, and the expert's if it was asked for."""
    if origin.opened is None:
        return list(files.entries)
    return origin.opened.network + (origin.opened.expert if policy.expert is not None else [])


def _trained(before: Tensor, now: Tensor) -> Tensor | None:
    """The network's numbers, but the stored ones where both agree, in the wider format; None where all agree."""
    same = _bits(before.to(now.dtype)) == _bits(now)
    if bool(same.all()):
        return None
    wide = torch.promote_types(before.dtype, now.dtype)
    return torch.where(same, before.to(wide), now.to(wide))


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: equality of numbers knows no sign of zero."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _copy_layout(origin: Parts, directory: Path) -> None:
    """Small files of the layout, links followed; the codec comes along also where it was kept apart."""
    for pattern in (*LAYOUT_FILES, origin.stats_file):
        for path in sorted(origin.directory.glob(pattern)):
            shutil.copyfile(path, directory / path.name)
    target = directory / CODEC_DIR
    target.mkdir(exist_ok=True)
    for path in sorted(p for p in origin.codec_directory.iterdir() if p.suffix in (".json", ".py") and p.is_file()):
        shutil.copyfile(path, target / path.name)


@contextmanager
def appearing(destination: Path) -> Iterator[Path]:
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


def _check_room(policy: VlaPolicy, origin: Parts, destination: Path) -> None:
    """What the origin takes, and what its weights take more of when all of them change to the network's format."""
    needed = sum(path.stat().st_size for path in origin.directory.rglob("*") if path.is_file())
    files, dtype = WeightFiles.open(origin.directory), policy.model.dtype
    expert = dict(expert_tensors(policy)) if policy.expert is not None else {}
    for entry in (files.entries[name] for name in _own(policy, origin, files)):
        if stored := FLOATS.get(entry.dtype):
            wide = torch.promote_types(stored, expert[entry.name].dtype if entry.name in expert else dtype)
            needed += math.prod(entry.shape) * (wide.itemsize - stored.itemsize)
    needed += sum(weight.nbytes for name, weight in expert.items() if name not in files.entries)
    existing = next(path for path in [destination, *destination.absolute().parents] if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise MachineError(
            f"the export needs {needed / 2**30:.2f} GiB and {free / 2**30:.2f} GiB are free",
            where=str(destination),
            remedy="free some space or choose another destination",
        )
