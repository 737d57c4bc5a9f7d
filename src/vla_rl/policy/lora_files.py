"""An adapter as files of its own, in peft's layout: the base is named, not copied.

In: a policy that carries an adapter. Out: a directory with `adapter_config.json` and `adapter_model.safetensors`, which
`peft.PeftModel.from_pretrained` puts beside the network of the base, and `source.json`, which says where it comes from
and which base it belongs to. The directory appears whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from vla_rl.errors import ConfigError
from vla_rl.policy.export import appearing
from vla_rl.policy.lora import ADAPTER, pairs, peft_config

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy

WEIGHTS, SOURCE = "adapter_model.safetensors", "source.json"


def export_adapter(policy: VlaPolicy, destination: Path, *, base: Mapping[str, Any], source: Mapping[str, Any]) -> int:
    """Write `destination`, which must not exist; returns the number of tensors.

    Args:
        policy: with the adapter.
        destination: the new directory.
        base: `checkpoint` and `revision` of the base policy.
        source: JSON-able facts about where the adapter comes from.

    Raises:
        ConfigError: the policy carries no adapter.
        UsageError: the destination exists, or cannot be made.
    """
    if policy.lora is None:
        raise ConfigError(
            "the policy carries no adapter", where="export", remedy="leave --adapter away: its weights are its own"
        )
    tensors = {
        f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": half.detach().cpu().contiguous()
        for pair in pairs(policy.model)
        for name, half in pair.named()
    }
    config = peft_config(
        policy, policy.lora, base_model_name_or_path=base["checkpoint"], revision=base.get("revision"),
        inference_mode=True,
    )  # fmt: skip
    with appearing(destination) as temporary:
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        config.save_pretrained(str(temporary))
        facts = {**source, "base": dict(base), "policy_digest": policy.digest()}
        (temporary / SOURCE).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    return len(tensors)
