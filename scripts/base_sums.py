"""Writes `src/vla_rl/bases.sha256`: the digests of what the bundled policies are loaded from.

Run with `python scripts/base_sums.py` after a base was made anew. `vla-rl doctor` holds an installation against it, and
so does `sha256sum -c bases.sha256` in the package's directory. Cards and records of how a base was made are left out.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "vla_rl"
SUMS = PACKAGE / "bases.sha256"
RECORDS = {"README.md", "evaluation.json", "probe.json", "rebuilt.json", "sft.jsonl"}


def sums() -> str:
    """A line a file: digest, two blanks, path below the package."""
    files = sorted(path for path in (PACKAGE / "bases").rglob("*") if path.is_file() and path.name not in RECORDS)
    lines = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(PACKAGE).as_posix()}" for path in files
    )
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    SUMS.write_text(sums())
