"""`vla-rl status`: the runs that are under way, whether they live, and which of their limits they have crossed.

In: the list of runs in `outputs/watch`, and the runs' own files. Out: a table or JSON, and an exit code for scripts:
0 all is well, 1 a run is dead or stale, 3 one has crossed a limit (whether or not it lives).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vla_rl.cli.options import command_parser, print_json
from vla_rl.errors import EXIT_CRASH, EXIT_OK, EXIT_STOPPED, UsageError
from vla_rl.prereg import health, watch
from vla_rl.prereg.health import DEAD, LIVE, Health
from vla_rl.report import status
from vla_rl.report.progress import ProgressView

EXAMPLES = (
    "vla-rl status",
    "vla-rl status 20261130T101500Z-1a2b --json",
    "watch -n 60 vla-rl status",
    "vla-rl status --forget 20261130T101500Z-1a2b",
)


def run(argv: Sequence[str]) -> int:
    """Show the runs under way, or take a dead one off the list."""
    parser = command_parser("status", "The runs under way in this directory, their state and limits.", EXAMPLES)
    parser.add_argument("run", nargs="?", metavar="RUN", help="name or directory of one run; default: all")
    parser.add_argument("--forget", metavar="RUN", help="take a run that is not live off the list; its files stay")
    options = parser.parse_args(list(argv))
    if options.forget:
        _forget(options.forget)
    chosen = watch.entries() if options.run is None else [_named(options.run)]
    runs, last = [health.examine(entry) for entry in chosen], watch.last()
    code = exit_code(runs)
    if options.json:
        print_json({"runs": [one.body() for one in runs], "last_ended": last, "exit_code": code})
        return code
    with ProgressView() as view:
        if runs:
            view.show(status.table(runs))
        else:
            view.say(status.why_empty(last))
    return code


def exit_code(runs: Sequence[Health]) -> int:
    """A crossed limit is told before a death: it is what somebody has agreed to act on."""
    if any(one.crossed for one in runs):
        return EXIT_STOPPED
    return EXIT_OK if all(one.state == LIVE for one in runs) else EXIT_CRASH


def _named(name: str) -> watch.Entry:
    """The entry of a run by its name or directory.

    Raises:
        UsageError: there is none, or more than one.
    """
    found = [entry for entry in watch.entries() if name == entry.run or Path(name).resolve() == Path(entry.run_dir)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(entry.run for entry in watch.entries()) or "none"
    raise UsageError(
        "several runs have this name" if found else "no such run is under way",
        where=name,
        remedy="name its directory: " + ", ".join(e.run_dir for e in found) if found else f"under way: {known}",
    )


def _forget(name: str) -> None:
    entry = _named(name)
    state = health.examine(entry).state
    if state == LIVE or (state != DEAD and entry.process.alive()):
        raise UsageError("the run is alive", where=name, remedy="end it first")
    watch.close(entry, exit_code=None, how=f"{state}, and taken off the list by hand")
