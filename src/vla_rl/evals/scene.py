"""Which scene a policy was trained in, and which one it is run in.

In: what a checkpoint and a simulator say of themselves. Out: whether they match, or an error. Another scene is allowed
only when asked for, and every result then says so; a checkpoint that does not know its scene is run and recorded as
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_rl.errors import ConfigError

SAME, UNKNOWN, ALLOWED = "same", "unknown", "mismatch allowed"


def scene_of(simulator: Any) -> dict[str, Any]:
    """What a pool or an environment says of its scene (`describe()`); empty if it says nothing."""
    describe = getattr(simulator, "describe", None)
    return dict(describe()) if describe else {}


def scene_facts(policy: Any, simulator: Any) -> dict[str, Any]:
    """What goes into a summary about the scene: the simulator's description and `training_scene_match`.

    Args:
        policy: with `training_scene` and `allow_scene_mismatch`; a policy without them does not know its scene.
        simulator: a pool or an environment.

    Raises:
        ConfigError: see `check_scene`.
    """
    scene = scene_of(simulator)
    trained, allow = getattr(policy, "training_scene", None), getattr(policy, "allow_scene_mismatch", False)
    return {**scene, "training_scene_match": check_scene(trained, scene, allow)}


def check_scene(training_scene: Mapping[str, Any] | None, scene: Mapping[str, Any] | None, allow: bool) -> str:
    """Compare the scene that a policy was trained in with the one that it is about to act in.

    Args:
        training_scene: `protocol`, `scene_hash` and `look` from the checkpoint, or None.
        scene: the simulator's description, with `protocol` and `scene_hash`.
        allow: `policy.allow_scene_mismatch`.

    Returns:
        ``same``, ``unknown`` (one of the two does not say), or ``mismatch allowed``; goes into the records.

    Raises:
        ConfigError: they differ, and that was not allowed.
    """
    trained, here = training_scene or {}, scene or {}
    known = [key for key in ("scene_hash", "protocol") if trained.get(key) is not None and here.get(key) is not None]
    if not known:
        return UNKNOWN
    if trained[known[0]] == here[known[0]]:
        return SAME
    if allow:
        return ALLOWED
    raise ConfigError(
        f"the policy was trained in {_name(trained)} and would act in {_name(here)}",
        where="policy.checkpoint and sim",
        remedy="choose the sim options that it was trained with, or set policy.allow_scene_mismatch=true; every result "
        "then says so",
    )


def _name(scene: Mapping[str, Any]) -> str:
    look = f", look {scene['look']}" if isinstance(scene.get("look"), str) else ""
    return f"{scene.get('protocol') or 'an unnamed protocol'}{look} (scene {str(scene.get('scene_hash'))[:12]})"
