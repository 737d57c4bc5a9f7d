"""What a run was made from: code, configuration and package versions, as a manifest records them.

In: the checkout and the installed packages. Out: JSON-able facts. A commit alone does not say what ran, because edits
that were never committed are invisible to it; the tree digests are taken over the bytes on disk.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from vla_rl import paths

PACKAGES = (
    "gymnasium",
    "hydra-core",
    "mujoco",
    "numpy",
    "omegaconf",
    "safetensors",
    "so101-nexus",
    "tokenizers",
    "torch",
    "transformers",
    "vla-rl",
)
VARIABLES = (  # that decide how the same code runs
    "MUJOCO_GL",
    "OMP_NUM_THREADS",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE",
    "LD_PRELOAD",
)


def tree_digest(root: Path, pattern: str = "*") -> str:
    """SHA-256 over the sorted relative names and bytes of the files below `root`, caches and dot files left out."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob(pattern)):
        relative = path.relative_to(root)
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in relative.parts):
            data = path.read_bytes()
            digest.update(f"{relative.as_posix()}\0{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()


def git_facts(root: Path | None = None) -> dict[str, str | bool | None]:
    """Commit and whether files differ from it; nulls outside a checkout or without git."""
    root = root or paths.repo_root()
    if root is None:
        return {"commit": None, "dirty": None}

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    status = git("status", "--porcelain")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def package_versions() -> dict[str, str | None]:
    """Installed version of every package whose change may change a number; null if it is not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def variables() -> dict[str, str | None]:
    """Environment variables as they are in force; null if one is not set."""
    return {name: os.environ.get(name) for name in VARIABLES}


def identity() -> dict[str, object]:
    """Everything above for the running process: code and conf digests, git facts, versions, variables, host and command
    line."""
    return {
        "src_digest": tree_digest(paths.PACKAGE, "*.py"),
        "conf_digest": tree_digest(paths.conf_dir(), "*.yaml"),
        "git": git_facts(),
        "packages": package_versions(),
        "variables": variables(),
        "host": {"machine": platform.machine(), "system": platform.system(), "node": platform.node()},
        "argv": sys.argv[1:],
    }
