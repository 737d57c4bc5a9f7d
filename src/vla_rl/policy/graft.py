"""Action tokens for an image-text-to-text model that has none: how any such model becomes a policy to be fine-tuned.

In: a model directory of one of the known families, a codec and tables. Out: a `VlaPolicy` with the robot's token
families appended to tokenizer, embedding and head. Everything that was there keeps its ids and weights, bit for bit.
The new rows are drawn around the mean of the old ones: the model starts with no idea of what they mean, and supervised
fine-tuning has to give it one. Loading goes through transformers' own classes; no remote code, no pickle.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.fast import FastCodec
from vla_rl.policy.hf_adapter import HfAdapter
from vla_rl.policy.hf_network import FAMILIES, Family, load_hf_network
from vla_rl.policy.metadata import read_metadata
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy
from vla_rl.policy.released import read_tokenizer
from vla_rl.policy.sources import read_config
from vla_rl.policy.tokenizer import PAD, TURN_END, TURN_START, add_tokens, robot_families


def has_action_tokens(directory: Path) -> bool:
    """Whether a directory is a policy already, as opposed to a model that could be made one.

    Raises:
        ConfigError: it is no checkpoint.
    """
    return "num_action_tokens" in read_config(directory) or read_metadata(directory).adapter is not None


def give_action_tokens(
    directory: Path, *, codec: FastCodec, stats: NormStats, task: str, seed: int, dtype: torch.dtype
) -> VlaPolicy:
    """Read a model and make a policy of it, on the CPU.

    Args:
        directory: `config.json`, `tokenizer.json`, safetensors weights and the picture processor's file.
        codec, stats: of the demonstrations that it will be fine-tuned on.
        task: the task in words.
        seed: decides the new rows alone.
        dtype: number format of the network.

    Raises:
        ConfigError: a family that is not known, or a directory that does not say how pictures are scaled.
        CheckpointRefused: weights are missing, unexpected or not finite.
    """
    raw, tokenizer = read_config(directory), read_tokenizer(directory)
    model, family = load_hf_network(directory, dtype), FAMILIES[raw["model_type"]]
    rows_before = tokenizer.get_vocab_size()
    add_tokens(tokenizer, [PAD, TURN_START, TURN_END, *robot_families(codec.vocabulary)])
    _grow(model, rows_before, tokenizer.get_vocab_size(), seed)
    adapter = _adapter(model, tokenizer, family, *_scaling(directory))
    return VlaPolicy(
        model=model, tokenizer=tokenizer, codec=codec, stats=stats, task=task, device="cpu", adapter=adapter
    )


def _grow(model: Any, known: int, size: int, seed: int) -> None:
    """Rows for ids known..size-1 in embedding and head, drawn from N(mean, std) of the known rows, column by column."""
    before = [m.weight.detach()[:known].clone() for m in _tables(model)]
    if size > len(_tables(model)[0].weight):
        model.resize_token_embeddings(size, mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table, old in zip(_tables(model), before, strict=True):
            if not torch.equal(table.weight[:known], old):
                raise RuntimeError("resizing the token tables changed the rows that were there")
            noise = torch.randn((size - known, old.shape[1]), generator=generator)
            mean, spread = old.float().mean(0), old.float().std(0)
            table.weight[known:size] = (mean + spread * noise).to(table.weight.dtype)


def _tables(model: Any) -> list[Any]:
    """Embedding and head; one of them where they are tied."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    return [embedding] if head.weight is embedding.weight else [embedding, head]


def _adapter(model: Any, tokenizer: Any, family: Family, mean: list[float], std: list[float]) -> HfAdapter:
    """The adapter's parameters, read off the model; the features of one picture are counted on a grey one."""
    size = model.config.vision_config.image_size
    image_px = size[0] if isinstance(size, list | tuple) else size
    grey = torch.full((1, 3, image_px, image_px), 0.5, dtype=model.dtype)
    with torch.no_grad():
        pictures = grey[None] if family.nested else grey
        features: list[Tensor] = list(model.get_image_features(pixel_values=pictures).pooler_output)
    names = {id(module): name for name, module in model.named_modules()}
    tables = {id(p) for table in _tables(model) for p in table.parameters()}
    return HfAdapter(
        image_token=tokenizer.id_to_token(model.config.image_token_id),
        tokens_per_image=sum(len(f) for f in features),
        image_px=image_px,
        mean=mean,
        std=std,
        **asdict(family),
        text_parameters=(f"{names[id(model.get_decoder())]}.", f"{names[id(model.get_output_embeddings())]}."),
        token_tables=tuple(name for name, p in model.named_parameters() if id(p) in tables),
    )


def _scaling(directory: Path) -> tuple[list[float], list[float]]:
    """Mean and spread of pixel values, from the picture processor's file."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = directory / name
        if path.is_file():
            body = json.loads(path.read_text())
            body = body.get("image_processor", body)
            if "image_mean" in body and "image_std" in body:
                return list(body["image_mean"]), list(body["image_std"])
    raise ConfigError(
        "nothing says how its pictures are scaled (image_mean, image_std)",
        where=str(directory),
        remedy="a model directory needs its preprocessor_config.json or processor_config.json",
    )
