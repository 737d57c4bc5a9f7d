"""How a Molmo2 network lies in a checkpoint: which names, which shapes, which configuration.

In: the `config.json` of a release (`molmoact2`) or of a twin (`molmo2`), or a native network. Out: the configuration
that transformers' own classes take, and the network's tensors under their released names (fused projections, two
embedding tables). Two traps are met here: with ``model_type`` other than ``molmo2`` transformers renames nothing and
leaves weights random; and its own writer splits the embedding into equal halves instead of where the base vocabulary
ends. No file is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vla_rl.policy.refusals import UnsupportedFeature
from vla_rl.policy.sources import RELEASED

NATIVE = "molmo2"
HEAD = "lm_head.weight"
EXPERT = re.compile(r"^(?:model\.)?action_expert(?:_depth_gate)?\.")
ROTARY = re.compile(r"^(?:model\.)?transformer\.rotary_embs?\.(?:\w+\.)?inv_freq$")
_EMBEDDING = "model.language_model.embed_tokens.weight"
_BASE_TABLE, _EXTRA_TABLE = "model.transformer.wte.embedding", "model.transformer.wte.new_embedding"
_LAYER = re.compile(r"^(.*?\.layers\.\d+)\.")
# Of no meaning to the native classes, or of the wrong one.
_FOREIGN = {"model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"}
_FOREIGN_PART = {"model_type", "attn_implementation", "_attn_implementation", "use_qk_norm", "float32_attention"}


def native_config(raw: dict[str, Any]) -> Any:
    """The transformers configuration of a checkpoint; the ids of action and state tokens stay on it as attributes.

    Raises:
        UnsupportedFeature: another kind of model, a feature that the native classes do not have, or a value of a kind
            that they cannot take.
    """
    from transformers import Molmo2Config

    kind = raw.get("model_type")
    if kind not in (NATIVE, RELEASED):
        raise UnsupportedFeature(f"model_type is {kind!r}, not {RELEASED!r} or {NATIVE!r}", where="config.json")
    try:
        return Molmo2Config(**(raw if kind == NATIVE else _native_arguments(raw)))
    except UnsupportedFeature:
        raise
    except Exception as error:  # the strict dataclasses of huggingface_hub raise their own types
        raise UnsupportedFeature(f"the configuration is not Molmo2's: {error}", where="config.json") from error


def _native_arguments(raw: dict[str, Any]) -> dict[str, Any]:
    """A release's configuration without what native classes would take for something else."""
    parts = {name: dict(raw.get(name) or {}) for name in ("text_config", "vit_config", "adapter_config")}
    _check_adapter(parts["adapter_config"], parts["vit_config"])
    for part in parts.values():
        for name in _FOREIGN_PART & part.keys():
            part.pop(name)
    kept = {k: v for k, v in raw.items() if k not in _FOREIGN | {"action_expert_config"}}
    return {"tie_word_embeddings": False, **kept, **parts}


def stored_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a network under its released name, in the network's own number format.

    Layers come one by one, so that no more than one layer's fused projections exist at a time. Works on the meta
    device too.
    """
    from transformers.core_model_loading import revert_weight_conversion

    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        layer = _LAYER.match(name)
        groups.setdefault(layer.group(1) if layer else "", {})[name] = tensor.detach()
    whole = groups[""].pop(_EMBEDDING)
    base = model.config.text_config.vocab_size
    yield _BASE_TABLE, whole[:base]
    yield _EXTRA_TABLE, whole[base:]
    for group in groups.values():
        yield from revert_weight_conversion(model, group).items()


def expected_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Released name -> shape of every weight that a network of this configuration has.

    Raises:
        UnsupportedFeature: there can be no such network (sizes that do not divide, an unknown activation).
    """
    from transformers import Molmo2ForConditionalGeneration

    try:
        with torch.device("meta"):
            model = Molmo2ForConditionalGeneration(config)
    except Exception as error:  # whatever torch and transformers make of impossible sizes
        raise UnsupportedFeature(f"no network has this configuration: {error!r}", where="config.json") from error
    return {name: tuple(tensor.shape) for name, tensor in stored_tensors(model)}


def _check_adapter(adapter: dict[str, Any], vit: dict[str, Any]) -> None:
    """The native adapter always masks the padding of an odd patch grid; a release may say that it did not."""
    sides = [px // vit.get("image_patch_size", 14) for px in vit.get("image_default_input_size", (378, 378))]
    if adapter.get("pooling_attention_mask") is False and any(side % 2 for side in sides):
        raise UnsupportedFeature(
            f"pictures of {sides[0]}x{sides[1]} patches were pooled without a mask over their padding",
            where="config.json, adapter_config.pooling_attention_mask",
        )
