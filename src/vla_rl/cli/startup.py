"""How every command starts: device, threads, determinism, run directory name."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from vla_rl.errors import ConfigError, UsageError


def new_run_dir(name: str) -> Path:
    """``outputs/<name>/<UTC time>-<random>``: two runs started in the same second still differ. Not created here."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("outputs") / name / f"{stamp}-{secrets.token_hex(2)}"


def check_unused(path: Path) -> None:
    """Refuse an output directory with something in it; the final word is its exclusive creation.

    Raises:
        UsageError: it is not empty.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            "the run directory exists and is not empty",
            where=str(path),
            remedy=f"name another run.dir, or continue what is there with run.resume={path}",
        )


def claim_directory(path: Path) -> Path:
    """Create an output directory, or take an empty one: before anything is computed for it.

    Raises:
        UsageError: it is not empty, or it cannot be created.
    """
    check_unused(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the run directory cannot be created: {error.strerror}", where=str(path), remedy="name another run.dir"
        ) from None
    return path


def prepare_torch(device: str, threads: int, seed: int) -> str:
    """Set threads, determinism and the global seed, and resolve the device.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: intra-op threads; a different number may round differently.
        seed: run seed; sampling does not use torch's generator, initialisation of fresh weights does.

    Returns:
        ``"cpu"`` or ``"cuda"``.

    Raises:
        ConfigError: cuda on a machine without a GPU.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch sees no GPU", where="run.device", remedy="run.device=cpu, or check the driver")
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # On a GPU repeatability is a stated tolerance, and deterministic kernels cost a multiple.
    torch.use_deterministic_algorithms(device == "cpu")
    return device
