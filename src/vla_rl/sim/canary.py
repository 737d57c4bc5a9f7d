"""Render canary in a process of its own: ``python -m vla_rl.sim.canary`` exits 0 if this machine renders, else 2.

In: nothing. Out: the backend's name, or one error with its remedy as JSON. A driver may crash or hang instead of
failing, and a software rasteriser and torch's compiler each bring an LLVM that must be loaded in the right order; a
child process keeps both away from the policy.
"""

from __future__ import annotations

import json
import subprocess
import sys

from vla_rl.errors import EXIT_OK, EXIT_USAGE, MachineError

TIMEOUT_S = 120.0


def require_rendering(timeout_s: float = TIMEOUT_S) -> str:
    """Run the canary and return the GL backend in use.

    Raises:
        MachineError: no GL library, a broken driver, or no answer in time; names the package to install.
    """
    command = [sys.executable, "-m", "vla_rl.sim.canary", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        what = f"rendering did not answer within {timeout_s:.0f} s"
        raise MachineError(what, where="rendering", remedy="try MUJOCO_GL=osmesa") from None
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        what = f"the render canary died with code {done.returncode}: {done.stderr.strip()[-300:]}"
        raise MachineError(what, where="rendering", remedy="try MUJOCO_GL=osmesa") from None
    if "backend" in answer:
        return answer["backend"]
    raise MachineError(answer["what"], where=answer["where"], remedy=answer["remedy"])


def main() -> int:
    """Render here and report; for people without ``--json``."""
    as_json = "--json" in sys.argv
    try:
        from vla_rl.sim.gl import check_rendering

        backend = check_rendering()
    except MachineError as error:
        answer = {"what": error.what, "where": error.where, "remedy": error.remedy}
        print(json.dumps(answer) if as_json else error, file=sys.stdout if as_json else sys.stderr)
        return EXIT_USAGE
    if as_json:
        print(json.dumps({"backend": backend}))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
