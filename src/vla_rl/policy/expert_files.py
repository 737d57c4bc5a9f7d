"""The action expert of a checkpoint: found, checked, loaded, made anew, and named for writing.

In: a policy and what its checkpoint stores. Out: the expert on the policy, in float32 whatever the trunk is in (its
sums run over ten steps, and the release keeps it so), or a refusal. Nothing here runs unless somebody asks for the
expert: a policy that serves tokens leaves it in its files, from where `save` and `export` copy it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vla_rl.errors import ConfigError
from vla_rl.policy.expert import ActionExpert, fresh_weights
from vla_rl.policy.flow_config import EXPERT_CONFIG, ExpertSizes, FlowConfig
from vla_rl.policy.layout import EXPERT
from vla_rl.policy.refusals import MismatchedWeights, MissingWeights, OneHead, UnexpectedWeights, UnsupportedFeature
from vla_rl.policy.sources import CONFIG
from vla_rl.policy.weightfiles import check_finite

if TYPE_CHECKING:
    from vla_rl.policy.parts import Parts
    from vla_rl.policy.policy import VlaPolicy
    from vla_rl.policy.released import Opened

PREFIX = "model.action_expert."


def load_expert(policy: VlaPolicy) -> ActionExpert:
    """Put the expert that the policy's checkpoint stores onto the policy, and return it; one that is there stays.

    Raises:
        ConfigError: there is none.
        CheckpointRefused: it is not built here, was not trained, or a weight is missing or of another shape.
    """
    if policy.expert is not None:
        return policy.expert
    opened, config = check_expert(policy.origin)
    stored, where = _stored(opened), str(opened.directory)
    with torch.device("meta"):
        expert = ActionExpert(config, _key_width(opened.config))
    expected = {name: tuple(weight.shape) for name, weight in expert.state_dict().items()}
    if missing := [name for name in expected if name not in stored]:
        raise MissingWeights(
            f"{len(missing)} weights of the action expert are not stored, first {PREFIX}{missing[0]}",
            where=where,
            remedy="fetch all shards",
        )
    if unexpected := [name for name in stored if name not in expected]:
        raise UnexpectedWeights(
            f"{len(unexpected)} weights belong to no part of the action expert, first {stored[unexpected[0]]}",
            where=where,
        )
    for name, shape in expected.items():
        entry = opened.files.entries[stored[name]]
        if entry.shape != shape:
            raise MismatchedWeights(f"{entry.name} is {list(entry.shape)}, not {list(shape)}", where=where)
    own = {full: name for name, full in stored.items()}
    # A copy of its own: a file cut short under a mapping kills its reader, and its alignment decides how sums round.
    weights = {own[full]: tensor.to(torch.float32, copy=True) for full, tensor in opened.files.tensors(own)}
    check_finite(((PREFIX + name, weight) for name, weight in weights.items()), where=where)
    expert.load_state_dict(weights, assign=True)
    return _put(policy, expert)


def new_expert(policy: VlaPolicy, sizes: ExpertSizes, seed: int) -> ActionExpert:
    """Give a twin an expert that has learned nothing: its velocity is 0 everywhere (`fresh_weights`).

    Args:
        policy: of the Molmo2 layout, without an expert; a release keeps the layout that it came in.
        sizes: see `ExpertSizes`.
        seed: the weights depend on it and on the sizes alone.

    Raises:
        ConfigError: the policy has an expert, or no place for one.
        UnsupportedFeature: sizes that make no expert, or a chunk longer than one may be.
    """
    opened = policy.origin.opened if policy.origin else None
    if has_expert(policy):
        raise ConfigError(
            "the policy has an action expert already", where="new_expert", remedy="train that one (load_expert)"
        )
    if policy.adapter.parameters() is not None or (opened and opened.released):  # None says Molmo2
        raise ConfigError(
            "a new action expert has a place in a twin only", where="new_expert", remedy="start from a twin"
        )
    config = FlowConfig(sizes, policy.model.config.text_config.num_hidden_layers).checked()
    _check_chunk(config, policy.horizon, policy.dim, where="new_expert")
    expert = ActionExpert(config, _key_width(policy.model.config))
    fresh_weights(expert, seed=seed)
    return _put(policy, expert)


def check_expert(origin: Parts | None) -> tuple[Opened, FlowConfig]:
    """What can be said of a checkpoint's expert without reading a weight.

    Raises:
        ConfigError: there is none.
        OneHead: there is one that was not trained.
        UnsupportedFeature: one that is not built here.
    """
    opened = origin.opened if origin else None
    if origin is None or opened is None or not opened.expert:
        raise ConfigError(
            "the policy has no action expert, so there is no flow head",
            where="policy.serve_head",
            remedy="use policy.serve_head=ar, or a checkpoint that stores model.action_expert.* weights",
        )
    where = str(opened.directory / CONFIG)
    if opened.raw.get("action_mode", "both" if opened.released else "discrete") != "both":
        raise OneHead(
            "its action expert was not trained along: action_mode is discrete",
            where=where,
            remedy="use policy.serve_head=ar, or a checkpoint whose action_mode is both",
        )
    config = FlowConfig.of(opened.raw)
    if config.layers != (layers := opened.config.text_config.num_hidden_layers):
        raise UnsupportedFeature(
            f"the action expert has {config.layers} blocks for a trunk of {layers} layers",
            where=f"{where}, {EXPERT_CONFIG}.num_layers",
        )
    _check_chunk(config, origin.tables.stats.horizon, len(origin.tables.stats.action.low_deg), where=where)
    return opened, config


def has_expert(policy: VlaPolicy) -> bool:
    """Whether a checkpoint of the policy holds an action expert: a loaded one, or one that is carried along."""
    opened = policy.origin.opened if policy.origin else None
    return policy.expert is not None or bool(opened and opened.expert)


def expert_tensors(policy: VlaPolicy) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a policy's expert under its stored name: the loaded one's, else what the checkpoint holds."""
    opened = policy.origin.opened if policy.origin else None
    if policy.expert is None:
        yield from opened.files.tensors(opened.expert) if opened else ()
        return
    stored = _stored(opened) if opened else {}
    for name, weight in policy.expert.state_dict().items():
        yield stored.get(name, PREFIX + name), weight.detach()


def expert_config(policy: VlaPolicy) -> dict[str, Any]:
    """What `config.json` has to say of a loaded expert; nothing without one."""
    return policy.expert.config.body() if policy.expert is not None else {}


def _put(policy: VlaPolicy, expert: ActionExpert) -> ActionExpert:
    policy.expert = expert.to(policy.device).eval()
    return policy.expert


def _stored(opened: Opened) -> dict[str, str]:
    """Name in the expert -> name in the files."""
    return {EXPERT.sub("", name): name for name in opened.expert}


def _key_width(config: Any) -> int:
    text = config.text_config
    return text.num_key_value_heads * text.head_dim


def _check_chunk(config: FlowConfig, horizon: int, dim: int, *, where: str) -> None:
    if horizon > config.max_horizon or dim > config.max_dim:
        raise UnsupportedFeature(
            f"chunks of {horizon} ticks and {dim} joints do not fit an expert for {config.max_horizon} and "
            f"{config.max_dim}",
            where=where,
        )
