"""Image-text-to-text models of transformers that can carry action tokens: which families, and how they are read.

In: a directory with `config.json` and safetensors weights. Out: a native network in evaluation mode, of which every
weight came from the directory. `trust_remote_code` is never set and pickles are never opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.native import own_memory, quiet_transformers
from vla_rl.policy.refusals import MismatchedWeights, MissingWeights, UnexpectedWeights, UnsupportedFeature
from vla_rl.policy.sources import read_config
from vla_rl.policy.weightfiles import WeightFiles, check_finite


@dataclass(frozen=True)
class Family:
    """What the configuration of a model does not say about its pictures: see `HfAdapter`."""

    before: str = ""
    after: str = ""
    nested: bool = False


_IDEFICS = Family("<fake_token_around_image><global-img>", "<fake_token_around_image>", nested=True)
FAMILIES = {"smolvlm": _IDEFICS, "idefics3": _IDEFICS, "llava": Family()}
"""By `model_type`. A new entry serves any model whose picture features replace one placeholder token each."""


def check_family(directory: Path) -> None:
    """Refuse models that are not known here.

    Raises:
        ConfigError: another family.
        UnsupportedFeature: the directory is an adapter on top of another model.
    """
    kind = read_config(directory).get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(
            f"models of type {kind!r} cannot be given action tokens",
            where=str(directory / "config.json"),
            remedy=f"known: molmo2, molmoact2, {', '.join(FAMILIES)}; docs/policies.md says how to add a family",
        )
    if (directory / "adapter_config.json").exists():
        raise UnsupportedFeature("it holds adapters of another model; merge them first", where=str(directory))


def load_hf_network(directory: Path, dtype: torch.dtype) -> Any:
    """A model of one of the `FAMILIES` in evaluation mode; every weight comes from the directory.

    Names are compared by transformers, which knows those that older files have.

    Raises:
        ConfigError: another family.
        CheckpointRefused: weights are missing, unexpected or not finite, or transformers cannot read the directory.
    """
    from transformers import AutoModelForImageTextToText

    check_family(directory)
    WeightFiles.open(directory)  # a damaged or pickled file is named before transformers sees the directory
    with quiet_transformers(), _refused(directory):
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            str(directory), dtype=dtype, use_safetensors=True, local_files_only=True, trust_remote_code=False,
            output_loading_info=True,
        )  # fmt: skip
    model, report = loaded
    for kind, error in (("missing_keys", MissingWeights), ("unexpected_keys", UnexpectedWeights)):
        if keys := sorted(report[kind]):
            raise error(f"{len(keys)} weights, first {keys[0]}", where=str(directory))
    check_finite(((n, p.detach()) for n, p in model.named_parameters()), where=str(directory))
    own_memory(model)
    return model.eval()


def stored_hf_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a network under the name that its files have; a tied head comes once, as the embedding."""
    from transformers.core_model_loading import revert_weight_conversion

    once = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    state = {name: tensor.detach() for name, tensor in model.state_dict().items() if name in once}
    yield from revert_weight_conversion(model, state).items()


def check_hf_weights(directory: Path) -> None:
    """Compare what a policy's directory stores with what its network needs, by the headers alone.

    Raises:
        MissingWeights, UnexpectedWeights, MismatchedWeights: with the number of weights and the first.
        UnsupportedFeature: transformers makes no network of its configuration.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText

    with _refused(directory), torch.device("meta"):
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        model: Any = AutoModelForImageTextToText.from_config(config, trust_remote_code=False)
    expected = {name: tuple(tensor.shape) for name, tensor in stored_hf_tensors(model)}
    stored = {name: entry.shape for name, entry in WeightFiles.open(directory).entries.items()}
    for error, names, what in (
        (MissingWeights, sorted(expected.keys() - stored.keys()), "are not stored"),
        (UnexpectedWeights, sorted(stored.keys() - expected.keys()), "belong to no part"),
        (MismatchedWeights, sorted(n for n in expected if stored.get(n) != expected[n]), "have another shape"),
    ):
        if names:
            raise error(f"{len(names)} weights {what}, first {names[0]}", where=str(directory))


@contextmanager
def _refused(directory: Path) -> Iterator[None]:
    """Name what transformers raises, which has no common base, as a refusal."""
    try:
        yield
    except Exception as error:
        raise UnsupportedFeature(f"transformers cannot read it: {error}", where=str(directory)) from error
