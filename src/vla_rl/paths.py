"""Where things are: the configuration tree, bundled bases and the user cache.

`conf/` and `experiments/` stand at the repository root. In a checkout (editable install) that copy is used; a wheel
carries `conf/` inside the package. Nothing here creates a directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from vla_rl.errors import MachineError

PACKAGE = Path(__file__).resolve().parent
BUNDLED = "bundled:"  # before the name of a base that ships with the package


def repo_root() -> Path | None:
    """The checkout that this package runs from, or None when it runs from a wheel."""
    root = PACKAGE.parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "conf").is_dir() else None


def conf_dir() -> Path:
    """The Hydra configuration tree in use: the checkout's if there is one, else the installed copy.

    Raises:
        MachineError: neither exists (a broken installation).
    """
    root = repo_root()
    for candidate in ([root / "conf"] if root else []) + [PACKAGE / "conf"]:
        if (candidate / "config.yaml").is_file():
            return candidate
    raise MachineError("the configuration tree conf/ is missing", where=str(PACKAGE), remedy="reinstall vla_rl")


def experiments_dir() -> Path:
    """Where registrations live: `$VLA_RL_EXPERIMENTS`, else `experiments/` of the checkout that this package runs from,
    else `experiments/` of the working directory. What they launch goes to `outputs/` beside it."""
    if override := os.environ.get("VLA_RL_EXPERIMENTS"):
        return Path(override).resolve()
    return (repo_root() or Path.cwd()) / "experiments"


def cache_dir() -> Path:
    """The user cache (simplified meshes): `$VLA_RL_CACHE`, else `$XDG_CACHE_HOME/vla_rl`, else `~/.cache/vla_rl`."""
    if override := os.environ.get("VLA_RL_CACHE"):
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vla_rl"


def packaged_meshes() -> Path:
    """Simplified meshes that an offline bundle puts into the package; absent in any other installation."""
    return PACKAGE / "meshes"


def bundled_base(name: str) -> Path:
    """The directory of a base policy that ships with the package, e.g. ``"tiny_start"``."""
    return PACKAGE / "bases" / name
