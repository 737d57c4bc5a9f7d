"""`vla-rl prereg record`: an attempt that other software made, so that order, budget and state follow from it, too.

In: a rung and arm, how the attempt ended, what it cost, where that is told. Out: one line of the ledger. Nothing of
such a run is here: its numbers are handed in (`prereg read --from`), and verdict and report say so.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.attempts import bury
from vla_rl.cli.prereg.common import folder, hours, parser
from vla_rl.errors import EXIT_OK, LaunchRefused, UsageError
from vla_rl.prereg import state
from vla_rl.prereg.budget import Account, account
from vla_rl.prereg.document import Registration
from vla_rl.prereg.folder import not_now
from vla_rl.prereg.launchgates import Request, out_of_order
from vla_rl.prereg.registered import config_of
from vla_rl.prereg.state import FINISHED, STOPPED

HOW = (FINISHED, STOPPED, "failed", "out of memory", "interrupted", "killed")
EXAMPLES = (
    "record E003 --rung R0 --how failed --gpu-h 0.9 --why 'devices were mixed in the loss' --source 'log of 13 Aug'",
    "record E003 --rung R0 --how finished --step 2 --gpu-h 0.95 --why 'all steps done' --source report.md",
    "record E003 --rung R1 --how stopped --wire knockaway --gpu-h 2.95 --why 'three waves' --source report.md",
)


def record(argv: Sequence[str]) -> int:
    """Write the line."""
    args = _parser().parse_args(list(argv))
    target = folder(args.id)
    with target.ledger.locked():
        bury(target)
        loaded = target.load()
        if not state.allowed(loaded.state.name, "attempt_recorded"):
            raise not_now(loaded.state, "attempt_recorded", args.id)
        registration = loaded.registration
        request = Request(
            registration.rung(args.rung).id, registration.arm(args.arm).id, exploratory=args.exploratory
        )  # fmt: skip
        _check(args, registration, request)
        if found := out_of_order(loaded, request):
            told = "\n".join(f"  - {each.where}: {each.what}\n    {each.remedy}" for each in found)
            raise LaunchRefused(
                f"it could not have been launched under {args.id} as it stands:\n{told}", where=f"rung {request.rung}",
                remedy="what proves nothing here is recorded with --exploratory",
            )  # fmt: skip
        _check_budget(args, account(registration, loaded.state))
        number = len(loaded.state.attempts) + 1
        data = {
            "attempt": number, "rung": request.rung, "arm": request.arm, "exploratory": args.exploratory,
            "how": args.how, "why": args.why, "source": args.source, "wires": args.wire, "wall_h": args.wall_h,
            "gpu_h": args.gpu_h, "step": args.step,
        }  # fmt: skip
        target.write("attempt_recorded", data, effective=loaded.effective)
        after = target.load()
    if args.json:
        print_json({"id": args.id, "state": after.state.name, **data})
    else:
        pool = account(after.registration, after.state)
        spent = ", ".join(f"{pool.spent[unit]:.4g} of {limit:.4g} {unit}" for unit, limit in pool.limit.items())
        print(f"attempt {number} is recorded: {args.how}; {args.id} is {after.state.name}, {spent} spent")
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "record",
        "Record an attempt that other software made: budget, order of rungs and state follow from it as from a\n"
        "launch. Its numbers are handed in with read --from; verdict and report say so.",
        EXAMPLES,
    )
    made.add_argument("--rung", metavar="ID", help="rung of the ladder (default: the first)")
    made.add_argument("--arm", metavar="ID", help="arm, by id or label (default: the baseline)")
    made.add_argument("--how", required=True, choices=HOW, help="how it ended; stopped: by its wire, gate or budget")
    made.add_argument("--wire", action="append", default=[], metavar="NAME", help="what stopped it; repeatable")
    made.add_argument("--step", type=int, metavar="N", help="updates that it had made, if that is told")
    made.add_argument("--why", required=True, metavar="TEXT", help="why it ended so")
    made.add_argument("--source", required=True, metavar="TEXT", help="where that is told")
    made.add_argument("--exploratory", action="store_true", help="it proves nothing and only costs")
    hours(made, "what it has cost")
    return made


def _check_budget(args: argparse.Namespace, pool: Account) -> None:
    """No run comes to its end here on hours that the pool does not have."""
    if args.how != FINISHED or args.exploratory:
        return
    for unit, left in pool.left.items():
        if (taken := getattr(args, unit)) > left + 1e-9:  # hours are sums of floats
            raise LaunchRefused(
                f"it took {taken:.4g} {unit}, and the pool has {max(left, 0.0):.4g} left: a run here would have "
                "been stopped",
                where=f"budget.{unit}",
                remedy="amend the budget first, with the reason, or record it with --exploratory",
            )  # fmt: skip


def _check(args: argparse.Namespace, registration: Registration, request: Request) -> None:
    """What an attempt has to tell."""
    for unit in ("gpu_h", "wall_h"):
        if getattr(registration.budget, unit) is not None and getattr(args, unit) is None:
            flag = f"--{unit.replace('_', '-')}"
            raise UsageError(f"the budget counts {unit}", where=flag, remedy="say what it has cost, at most")
    if bool(args.wire) != (args.how == STOPPED):
        raise UsageError(
            "an attempt that was stopped names what stopped it, and no other does", where="--wire",
            remedy="--how stopped --wire NAME",
        )  # fmt: skip
    if args.step is not None and args.step < 0:
        raise UsageError(f"{args.step} updates are none", where="--step")
    steps = config_of(registration, request.rung, request.arm)["run"]["steps"]
    if args.how == FINISHED and args.step not in (None, steps) and not args.exploratory:
        raise UsageError(
            f"a run of {request.rung} has come to its end after {steps} updates, not after {args.step}", where="--step",
            remedy="say how it ended otherwise, or record it with --exploratory",
        )  # fmt: skip
