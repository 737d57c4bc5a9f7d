"""What a simulator says of itself: the facts that a record of results must hold.

In: an environment, ours or anybody's. Out: a JSON-able dictionary with `protocol`, `scene_hash`, `max_replans` and
`image_px`, None for what is not known, and whatever else the environment tells.
"""

from __future__ import annotations

import math
from typing import Any

from vla_rl.errors import ConfigError

FACTS = ("protocol", "scene_hash", "max_replans", "image_px")


def describe(env: Any) -> dict[str, Any]:
    """The environment's own `describe()`, completed from attributes of the same names.

    `max_replans` also follows from the attributes `max_ticks` and `execute_ticks`.
    """
    told = dict(env.describe()) if callable(getattr(env, "describe", None)) else {}
    facts = {name: told.get(name, getattr(env, name, None)) for name in FACTS}
    if facts["max_replans"] is None:
        ticks, at_once = getattr(env, "max_ticks", None), getattr(env, "execute_ticks", None)
        facts["max_replans"] = math.ceil(ticks / at_once) if ticks and at_once else None
    return {**told, **facts}


def complete(description: dict[str, Any]) -> dict[str, Any]:
    """The description, which must say how long an episode can be.

    Raises:
        ConfigError: it does not.
    """
    if description["max_replans"] is None:
        raise ConfigError(
            "the simulator does not say how many predicts an episode can take",
            where="sim",
            remedy="give the environment describe() with max_replans, or an attribute max_replans",
        )
    return description
