"""`vla-rl prereg`: pre-registered experiments. Picks the action; each has a module of its own."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

ACTIONS = {
    "new": ("writing", "a commented draft to fill in: experiments/ID/draft.yaml"),
    "freeze": ("writing", "compose, check and write experiments/ID/registration.yaml"),
    "amend": ("amending", "the next numbered change, with its reason and what had been seen"),
    "diff": ("showing", "configuration deltas: by amendment, cumulated, between registrations or runs"),
    "status": ("showing", "state, budget, gates, and what can be done next"),
    "verify": ("showing", "derive everything again; exit 5 if anything does not match"),
    "activate": ("consenting", "the checklist is done and the objection window over"),
    "object": ("consenting", "record an objection, or answer one"),
    "launch": ("launching", "every gate, then the trainer on the registered configuration"),
    "lost": ("ending", "an attempt on another machine will never report: record its end and cost"),
    "record": ("recording", "an attempt that other software made: how it ended, what it cost, where that is told"),
    "read": ("reading", "open the data of a read or gate once, and judge it by its rule"),
    "override": ("consenting", "override a gate's BAND, where that was registered"),
    "verdict": ("ending", "judge the claim by its reads"),
    "report": ("reporting", "write REPORT.md and its figures from what is recorded; films of the same seeds"),
    "close": ("ending", "end it: what is banked, what a successor inherits"),
    "withdraw": ("ending", "take it back, with the reason"),
    "supersede": ("ending", "another registration takes its place"),
    "erratum": ("ending", "something was found to be wrong afterwards"),
    "import": ("importing", "bring ledger and evidence back from another machine"),
}

DESCRIPTION = """Pre-registered experiments: freeze, amend, diff, launch, read, judge.

A registration is one folder, experiments/ID/: a frozen file, numbered amendments, a ledger, evidence. docs/prereg.md
leads from nothing to a judged one."""


def run(argv: Sequence[str]) -> int:
    """Run one action."""
    parser = argparse.ArgumentParser(
        prog="vla-rl prereg",
        description=DESCRIPTION,
        epilog="actions:\n" + "\n".join(f"  {name:<11}{text}" for name, (_, text) in ACTIONS.items())
        + "\n\nexample:\n  vla-rl prereg new E001 && vla-rl prereg freeze E001 experiment=quickstart",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("action", choices=ACTIONS, metavar="action", help=", ".join(ACTIONS))
    options = parser.parse_args(list(argv[:1]))
    module = importlib.import_module(f"vla_rl.cli.prereg.{ACTIONS[options.action][0]}")
    return int(getattr(module, f"{options.action.replace('import', 'import_')}")(list(argv[1:])))
