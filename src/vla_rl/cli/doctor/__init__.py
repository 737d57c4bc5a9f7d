"""`vla-rl doctor`: checks this machine, and says of each thing that is wrong what to do about it.

In: this machine. Out: a line a finding, or JSON. Exit code 0 if a run on a laptop has what it needs, whatever the
warnings; 1 if not. Nothing is installed, changed or left behind. It works where packages are missing or broken.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from vla_rl import __version__
from vla_rl.cli.doctor import content, graphics, machine, packages
from vla_rl.cli.doctor.findings import FAILURE, WARNING, Check, Finding, findings
from vla_rl.cli.options import command_parser, print_json
from vla_rl.errors import EXIT_CRASH, EXIT_OK

EXAMPLES = ("vla-rl doctor", "vla-rl doctor --json", "MUJOCO_GL=osmesa vla-rl doctor --patience 20")
CHECKS = (
    Check("python", machine.python),
    Check("cores", machine.cores, needed=False),
    Check("memory", machine.memory, needed=False),
    Check("outputs", machine.outputs),
    Check("packages", packages.bounds),
    Check("imports", packages.imports),
    Check("rendering", graphics.rendering),
    Check("gpu", graphics.gpu),
    Check("configuration", content.configuration),
    Check("bases", content.bases),
    Check("robot", content.robot),
    Check("mesh cache", machine.mesh_cache, needed=False),
    Check("git", machine.git, needed=False),
    Check("extras", packages.extras, needed=False),
    Check("licences", content.licences, needed=False),
)
PATIENCE_S = 60.0


def run(argv: Sequence[str]) -> int:
    """Look at everything, and tell what was found."""
    parser = command_parser(
        "doctor",
        "What this machine has of what runs need, and what to do about the rest. Exit code 0: a run on a laptop has\n"
        "all it needs; 1: something of that is broken. Warnings change nothing about it.",
        EXAMPLES,
    )
    parser.add_argument(
        "--patience", type=_seconds, default=PATIENCE_S, metavar="SECONDS",
        help="time for each thing that may hang, such as a driver (default: %(default)g)",
    )  # fmt: skip
    options = parser.parse_args(list(argv))
    found = []
    for finding in findings(CHECKS, options.patience):
        found.append(finding)
        if not options.json:
            print(line(finding), flush=True)
    counts = Counter(finding.status for finding in found)
    code = EXIT_CRASH if counts[FAILURE] else EXIT_OK
    if options.json:
        print_json(
            {
                "vla_rl": __version__, "findings": [asdict(finding) for finding in found],
                "failures": counts[FAILURE], "warnings": counts[WARNING], "exit_code": code,
            }
        )  # fmt: skip
    else:
        print(closing(counts[FAILURE], counts[WARNING]))
    return code


def line(finding: Finding) -> str:
    """A finding as the terminal shows it; what is not fine is told apart by more than its place."""
    mark = {FAILURE: "FAILURE", WARNING: "warning"}.get(finding.status, finding.status)
    remedy = f"\n{'':<26}remedy: {finding.remedy}" if finding.remedy else ""
    return f"{mark:<8} {finding.check:<16} {finding.what}{remedy}"


def closing(failures: int, warnings: int) -> str:
    """The last line."""
    told = f", {warnings} warning{'s' * (warnings != 1)}" if warnings else ""
    if failures:
        return f"\n{failures} failure{'s' * (failures != 1)}{told}: repair them before anything is run on this machine"
    return f"\nnothing that a run on this machine needs is broken{told}"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value
