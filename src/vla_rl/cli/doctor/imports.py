"""Whether packages can be imported: ``python -m vla_rl.cli.doctor.imports numpy scipy …``, in a process of its own.

In: names of modules. Out: for each of them why it cannot be imported, or None. A package that kills its process, or
hangs, is found out and left behind; the ones after it are asked about in another process.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping, Sequence

from vla_rl.cli.doctor.children import ask_python, tell


def failures(
    modules: Sequence[str], patience_s: float, variables: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """Why a module cannot be imported, or None, by module.

    Args:
        patience_s: with all of them together.
    """
    deadline = time.monotonic() + patience_s
    told: dict[str, str | None] = {}
    while rest := [name for name in modules if name not in told]:
        left_s = max(0.0, deadline - time.monotonic())
        answer = ask_python(__name__, *rest, patience_s=left_s, variables=variables)
        told |= {name: reason for name, reason in answer.facts if name in rest}
        if silent := next((name for name in rest if name not in told), None):
            told[silent] = answer.how(patience_s)
    return told


def main() -> None:
    """Import what is named, one after the other, and tell at once how each went."""
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except Exception as error:
            tell([name, f"{type(error).__name__}: {error}"])
        else:
            tell([name, None])


if __name__ == "__main__":
    main()
