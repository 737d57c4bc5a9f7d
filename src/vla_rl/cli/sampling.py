"""The sampler of a head: what draws a policy's actions, for every command that evaluates one."""

from __future__ import annotations

from typing import Any

from vla_rl.config.build import build
from vla_rl.config.reader import ConfigReader
from vla_rl.config.schema import SamplerConfig
from vla_rl.policy.heads import FLOW, LEROBOT

STAND_INS = {
    FLOW: "vla_rl.policy.flow_sampler.FlowSampler",
    LEROBOT: "vla_rl.policy.lerobot.LeRobotSampler",
}


def sampler_of(reader: ConfigReader, policy: Any, head: str | None, run_seed: int) -> Any:
    """The sampler of one head. Our own token sampler stands for all of them; another one is built as it is named.

    Args:
        head: ``ar``, ``flow`` or ``lerobot``; None for a policy that has no choice of heads.
        run_seed: enters every sampling key.
    """
    node = reader.component_spec("sampler")
    if head in STAND_INS and node["_target_"] == SamplerConfig._target_:
        node["_target_"] = STAND_INS[head]
    return build(node, {"policy": policy, "run_seed": run_seed}, plugins=reader.plugins, where="sampler")
