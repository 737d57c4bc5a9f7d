"""How demonstrations are told from others: by the digest of their recipe, wherever they lie.

In: a directory of `vla-rl demos`, or the recipe that it holds. Out: SHA-256. A recipe (simulator, seeds, disturbances)
decides what happens in every episode, on every machine; the bytes of the pictures are those of a machine's renderer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vla_rl.config.reader import digest_tree

OWN_META = "meta/vla_rl.json"


def recipe_digest(recipe: dict[str, Any]) -> str:
    """The digest of a recipe, plain JSON types."""
    return digest_tree(recipe)


def recorded_digest(directory: Path) -> str | None:
    """The digest of the recipe that a complete dataset holds; None if there is none, or if it does not say."""
    try:
        return recipe_digest(json.loads((directory / OWN_META).read_text())["recipe"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
