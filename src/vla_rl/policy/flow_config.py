"""What a checkpoint's `config.json` says about its flow-matching action expert.

In: `config.json` of a release or a twin. Out: `FlowConfig`, sizes of the expert and the constants of its flow, or a
refusal that names the key which asks for something that is not built here. The release writes only what differs from
its own defaults, so a key that is absent has the release's default. Weights are the business of `expert_files`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.policy.refusals import UnsupportedFeature

EXPERT_CONFIG = "action_expert_config"
# Keys of the expert that decide its shapes and the release's defaults, then switches and the one value that is built.
_SIZES: dict[str, float] = {
    "hidden_size": 1024, "num_layers": 32, "num_heads": 16, "mlp_ratio": 8 / 3, "ffn_multiple_of": 256,
    "timestep_embed_dim": 256, "qk_norm_eps": 1e-6,
}  # fmt: skip
_BUILT = {
    "context_layer_norm": True, "qk_norm": True, "rope": True, "causal_attn": False, "dropout": 0.0,
    "attn_dropout": 0.0,
}  # fmt: skip
# The same for the whole checkpoint.
_FLOW: dict[str, float] = {
    "max_action_dim": 32, "max_action_horizon": 30, "flow_matching_num_steps": 10, "flow_matching_cutoff": 1.0,
    "flow_matching_time_offset": 0.001, "flow_matching_time_scale": 0.999, "flow_matching_beta_alpha": 1.0,
    "flow_matching_beta_beta": 1.5,
}  # fmt: skip
_BUILT_FLOW = {
    "mask_action_dim_padding": True, "enable_depth_reasoning": False, "action_expert_depth_gate": False,
    "action_expert_depth_gate_per_layer": False,
}  # fmt: skip
_WHOLE = ("hidden_size", "num_layers", "num_heads", "ffn_multiple_of", "timestep_embed_dim")
_WHOLE_FLOW = ("max_action_dim", "max_action_horizon", "flow_matching_num_steps")
_DERIVED = ("max_action_dim", "max_action_horizon")  # may stand in the expert's own section too


@dataclass(frozen=True)
class TimeLaw:
    """How training draws the time of a noised chunk: ``low + (high - low) * Beta(alpha, beta)``; 0 is noise, 1 data."""

    low: float
    high: float
    alpha: float
    beta: float

    def draw(self, generator: np.random.Generator, rows: int) -> np.ndarray:
        """Times float32 [rows]."""
        drawn = generator.beta(self.alpha, self.beta, rows)
        return (self.low + (self.high - self.low) * drawn).astype(np.float32)


@dataclass(frozen=True)
class ExpertSizes:
    """What can be chosen about an expert; the trunk decides the rest.

    Attributes:
        width: of the action stream.
        heads: of its attention; they divide the width into parts of even size.
        mlp_ratio, mlp_multiple: the gated layers are ``width * mlp_ratio`` wide, rounded up to a multiple.
        time_features: sines and cosines that stand for the time, an even number.
        qk_norm_eps: of the norms over queries and keys.
    """

    width: int
    heads: int
    mlp_ratio: float
    mlp_multiple: int
    time_features: int
    qk_norm_eps: float = _SIZES["qk_norm_eps"]

    @property
    def mlp(self) -> int:
        """Width of the gated layers."""
        return math.ceil(int(self.width * self.mlp_ratio) / self.mlp_multiple) * self.mlp_multiple


@dataclass(frozen=True)
class FlowConfig:
    """An expert and its flow.

    Attributes:
        sizes: see `ExpertSizes`.
        layers: blocks, one a layer of the trunk.
        max_dim: width of an action; joints beyond the robot's are zero.
        max_horizon: most ticks of a chunk.
        steps: Euler steps of a sample.
        time: how training draws times.
    """

    sizes: ExpertSizes
    layers: int
    max_dim: int = int(_FLOW["max_action_dim"])
    max_horizon: int = int(_FLOW["max_action_horizon"])
    steps: int = int(_FLOW["flow_matching_num_steps"])
    time: TimeLaw = TimeLaw(0.001, 1.0, 1.0, 1.5)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> FlowConfig:
        """Read `config.json`.

        Raises:
            UnsupportedFeature: naming the key that asks for what is not built, or that is no number of its kind.
        """
        own = raw.get(EXPERT_CONFIG)
        if own is None:  # the release then makes an expert of default sizes, as deep as the trunk
            own = {"num_layers": (raw.get("text_config") or {}).get("num_hidden_layers")}
        if not isinstance(own, Mapping):
            raise UnsupportedFeature("the expert's configuration is no object", where=f"config.json, {EXPERT_CONFIG}")
        _check_built(own, _BUILT, prefix=f"{EXPERT_CONFIG}.")
        _check_built(raw, _BUILT_FLOW, prefix="")
        _check_known(own)
        size = _numbers(own, _SIZES, _WHOLE, prefix=f"{EXPERT_CONFIG}.")
        flow = _numbers(raw, _FLOW, _WHOLE_FLOW, prefix="")
        low, scale = flow["flow_matching_time_offset"], flow["flow_matching_time_scale"]
        high = min(flow["flow_matching_cutoff"], low + scale)
        law = TimeLaw(low, high, flow["flow_matching_beta_alpha"], flow["flow_matching_beta_beta"])
        sizes = ExpertSizes(
            int(size["hidden_size"]), int(size["num_heads"]), size["mlp_ratio"], int(size["ffn_multiple_of"]),
            int(size["timestep_embed_dim"]), size["qk_norm_eps"],
        )  # fmt: skip
        dim, horizon, steps = (int(flow[key]) for key in _WHOLE_FLOW)
        return cls(sizes, int(size["num_layers"]), dim, horizon, steps, law).checked()

    def checked(self) -> FlowConfig:
        """Itself.

        Raises:
            UnsupportedFeature: sizes that make no expert, or times outside 0 to 1.
        """
        sizes, where = self.sizes, f"config.json, {EXPERT_CONFIG}"
        if sizes.width % (2 * sizes.heads):
            raise UnsupportedFeature(
                f"{sizes.heads} heads do not divide {sizes.width} into even parts", where=f"{where}.num_heads"
            )
        if sizes.time_features % 2 or sizes.time_features < 4:
            raise UnsupportedFeature(
                f"{sizes.time_features} time features are not pairs of sine and cosine, two or more",
                where=f"{where}.timestep_embed_dim",
            )
        if sizes.mlp < 1:
            raise UnsupportedFeature("the gated layers have no width", where=f"{where}.mlp_ratio")
        if not 0.0 <= self.time.low < self.time.high <= 1.0:
            raise UnsupportedFeature(
                f"training times from {self.time.low:g} to {self.time.high:g} are not within 0 to 1",
                where="config.json, flow_matching_time_offset, flow_matching_time_scale, flow_matching_cutoff",
            )
        return self

    def body(self) -> dict[str, Any]:
        """The keys of `config.json` that `of` reads, for a checkpoint that has both heads."""
        sizes, time = self.sizes, self.time
        return {
            EXPERT_CONFIG: {
                "hidden_size": sizes.width, "num_layers": self.layers, "num_heads": sizes.heads,
                "mlp_ratio": sizes.mlp_ratio, "ffn_multiple_of": sizes.mlp_multiple,
                "timestep_embed_dim": sizes.time_features, "qk_norm_eps": sizes.qk_norm_eps, **_BUILT,
            },
            "add_action_expert": True,
            "action_mode": "both",
            "max_action_dim": self.max_dim,
            "max_action_horizon": self.max_horizon,
            "flow_matching_num_steps": self.steps,
            "flow_matching_cutoff": time.high,
            "flow_matching_time_offset": time.low,
            "flow_matching_time_scale": time.high - time.low,
            "flow_matching_beta_alpha": time.alpha,
            "flow_matching_beta_beta": time.beta,
        }  # fmt: skip


def _check_built(section: Mapping[str, Any], built: Mapping[str, Any], *, prefix: str) -> None:
    for key, value in built.items():
        if section.get(key, value) != value:
            raise UnsupportedFeature(
                f"{key} is {section[key]!r}, only {value!r} is built", where=f"config.json, {prefix}{key}"
            )


def _check_known(section: Mapping[str, Any]) -> None:
    """A key that nobody here knows may change the arithmetic, unless it is off or every configuration has it."""
    from transformers import PretrainedConfig

    known = {*_SIZES, *_BUILT, *_DERIVED, "model_type", "torch_dtype", *PretrainedConfig().to_dict()}
    for key, value in section.items():
        if key not in known and value not in (None, False, 0, "", [], {}):
            raise UnsupportedFeature(
                f"{key} is {value!r}, and nothing here knows what it does", where=f"config.json, {EXPERT_CONFIG}.{key}"
            )


def _numbers(
    section: Mapping[str, Any], defaults: Mapping[str, float], whole: tuple[str, ...], *, prefix: str
) -> dict[str, float]:
    """Positive numbers by key, those in `whole` integers."""
    found = {key: section.get(key, default) for key, default in defaults.items()}
    for key, value in found.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf or (key in whole and value != int(value)):
            kind = "whole number above 0" if key in whole else "number above 0"
            raise UnsupportedFeature(f"{key} is {value!r}, which is no {kind}", where=f"config.json, {prefix}{key}")
    return found
