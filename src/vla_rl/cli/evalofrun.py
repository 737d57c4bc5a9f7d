"""The configuration of an evaluation that plays a policy as a training run plays its own.

In: the resolved configuration of a run, a checkpoint, seeds. Out: the tree of `vla-rl eval`. Whoever registers another
head, protocol or look writes it into the tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_rl.config.compose import compose


def evaluation_tree(
    config: Mapping[str, Any], checkpoint: str, seeds: str | None, temperature: float | None, directory: Path
) -> dict[str, Any]:
    """Sampler, pool, scene and policy of a run; the defaults of `vla-rl eval` for the rest."""
    tree = compose("eval", ["policy=tiny"]).tree
    for section in ("sampler", "pool", "plugins"):
        tree[section] = config[section]
    tree["policy"] = {**config["policy"], "checkpoint": checkpoint}
    tree["sim"] = dict(config["sim"])
    tree["eval"] = {**tree["eval"], "seeds": seeds, "temperature": temperature, "slots": config["eval"]["slots"]}
    tree["run"] = {
        **tree["run"], **{key: config["run"][key] for key in ("seed", "device", "threads")}, "dir": str(directory),
        "resume": None,
    }  # fmt: skip
    return tree
