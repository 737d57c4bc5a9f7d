"""The console script `vla-rl`: picks the command, turns user errors into one message and an exit code.

Exit codes: 0 fine, 1 crash, 2 usage or configuration error, 3 stopped by its own wire, gate or budget (or a bound of
`vla-rl parity` is broken), 4 a registered launch is refused, 5 integrity failure. Commands import what they need only
when they run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from vla_rl import __version__
from vla_rl.errors import EXIT_USAGE, VlaRlError

COMMANDS = {
    "train": ("vla_rl.cli.train", "GRPO on real episodes, evaluated on held-out seeds before and after"),
    "report": ("vla_rl.cli.report", "a training run or a registration as one HTML file"),
    "status": ("vla_rl.cli.status", "the runs under way: alive or not, how far, which limits are crossed"),
    "plan": ("vla_rl.cli.plan", "what a training run would need and cost, before it is started"),
    "eval": ("vla_rl.cli.evaluate", "evaluate a policy (or the scripted expert) on a seed band"),
    "compare": ("vla_rl.cli.compare", "two evaluations of the same seeds, head to head"),
    "parity": ("vla_rl.cli.parity", "two ways of serving a policy on the same seeds, judged by bounds"),
    "probe": ("vla_rl.cli.probe", "choose a sampling temperature for training, or find that there is none"),
    "replay": ("vla_rl.cli.replay", "hold stored rows against their policy, or price them again"),
    "demos": ("vla_rl.cli.demos", "record demonstrations of the scripted expert"),
    "sft": ("vla_rl.cli.sft", "fit a policy to demonstrations"),
    "export": ("vla_rl.cli.export", "write a run's policy as a complete checkpoint with a receipt"),
    "prereg": ("vla_rl.cli.prereg", "freeze an experiment, amend it, launch it, read it, judge it"),
    "sweep": ("vla_rl.cli.sweep", "the arms of a registration, one process each, and one table of them"),
    "checkpoint": ("vla_rl.cli.checkpoint", "check a policy checkpoint: layout, tables, ids, provenance"),
    "doctor": ("vla_rl.cli.doctor", "check this machine: what runs need of it, and what to do about the rest"),
}
EXIT_INTERRUPTED = 130
GO_ON = {
    name: f"; what is finished is kept: vla-rl {name} run.resume=<its directory> goes on"
    for name in ("train", "eval", "probe", "demos", "sft")
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="vla-rl",
        description="Token-level GRPO for vision-language-action policies in MuJoCo, as pre-registered experiments.",
        epilog="commands:\n" + "\n".join(f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"vla-rl {__version__}")
    parser.add_argument("command", metavar="command", choices=COMMANDS, help=", ".join(COMMANDS))
    options = parser.parse_args(arguments[:1])
    try:
        module = importlib.import_module(COMMANDS[options.command][0])
        return int(module.run(arguments[1:]))
    except VlaRlError as error:
        print(f"vla-rl {options.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"\nvla-rl {options.command}: interrupted{GO_ON.get(options.command, '')}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_USAGE


if __name__ == "__main__":
    CODE = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Threads of a process group may wait for a collective that was interrupted, and keep the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(CODE)
    sys.exit(CODE)
