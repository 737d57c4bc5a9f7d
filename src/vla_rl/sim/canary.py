"""Render canary in a process of its own: ``python -m vla_rl.sim.canary`` exits 0 if this machine renders, else 2.

In: nothing. Out: the backend's name, or one error with its remedy as JSON. A driver may crash or hang instead of
failing, and a software rasteriser and torch's compiler each bring an LLVM that must be loaded in the right order; a
child process keeps both away from the policy. The child is started as a worker is: the same interpreter, directory and
variables.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

from vla_rl.errors import EXIT_OK, EXIT_USAGE, MachineError
from vla_rl.sim.backend import DISABLE, VARIABLE, candidates, rendering_error

_log = logging.getLogger(__name__)

TIMEOUT_S = 120.0
# A worker does its own work on one thread: the cores are shared out among workers.
WORKER_VARIABLES = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def require_rendering(timeout_s: float = TIMEOUT_S) -> str:
    """Find the first backend that renders, and name it in ``MUJOCO_GL`` for this process and those that it starts.

    Args:
        timeout_s: patience with each backend.

    Raises:
        MachineError: no GL library, broken drivers, or no answer in time; names the package to install. With several
            backends at hand it is about the preferred one.
    """
    failures: list[MachineError] = []
    for backend in candidates():
        failure = _try(backend, timeout_s)
        if failure is None:
            if failures:
                _log.warning("rendering with %s, because %s", backend, failures[0].what)
            os.environ[VARIABLE] = backend
            return backend
        failures.append(failure)
    raise failures[0]


def _try(backend: str, timeout_s: float) -> MachineError | None:
    """Run the canary with a backend; None if it renders."""
    command = [sys.executable, "-m", "vla_rl.sim.canary", "--json"]
    variables = {**os.environ, **WORKER_VARIABLES}
    if backend != DISABLE:  # otherwise the child finds out by itself that there is no library
        variables[VARIABLE] = backend
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=variables)
    except subprocess.TimeoutExpired:
        return rendering_error(backend, f"no answer within {timeout_s:.0f} s")
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last_words = done.stderr.strip()[-300:]
        return rendering_error(backend, f"the render canary died with code {done.returncode}: {last_words}")
    if "backend" in answer:
        return None
    return MachineError(answer["what"], where=answer["where"], remedy=answer["remedy"])


def main() -> int:
    """For people: find a backend as a command would. With ``--json``: render in this very process and report."""
    try:
        if "--json" not in sys.argv:
            require_rendering()
            return EXIT_OK
        from vla_rl.sim.gl import check_rendering

        answer = {"backend": check_rendering()}
    except MachineError as error:
        if "--json" not in sys.argv:
            print(error, file=sys.stderr)
            return EXIT_USAGE
        answer = {"what": error.what, "where": error.where, "remedy": error.remedy}
    print(json.dumps(answer))
    return EXIT_OK if "backend" in answer else EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
