"""`vla-rl prereg launch`: every gate, then the one trainer on the registered configuration.

The process that checks is the process that trains; a detached launch is a process of its own that checks again. What it
cost is recorded however it ends; of a process that was killed, by whoever looks next.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vla_rl.cli.distributed import help_out, is_helper, refuse_torchrun
from vla_rl.cli.options import Options, print_json
from vla_rl.cli.prereg.attempts import bury, run_attempt
from vla_rl.cli.prereg.common import assignments, folder, parser
from vla_rl.errors import EXIT_OK, IntegrityError, LaunchRefused, StoppedRun, UsageError, VlaRlError
from vla_rl.prereg import state
from vla_rl.prereg.folder import Folder, Loaded, outputs_of
from vla_rl.prereg.launchgates import Request, refusals
from vla_rl.prereg.pins import Difference, Place
from vla_rl.report.progress import ProgressView

PROOF_OF_LIFE_S = 5.0
ENDS = (UsageError, StoppedRun, LaunchRefused, IntegrityError)  # by the exit code of a detached process
EXAMPLES = (
    "launch E001-quickstart --check",
    "launch E001-quickstart",
    "launch E002 --rung R1 --arm 'lr=3e-07' --detach",
    "launch E002 --resume --set pool.workers=8",
)


def launch(argv: Sequence[str]) -> int:
    """Launch, or say everything that stands against it."""
    if is_helper():
        return help_out()
    args = _parser().parse_args(list(argv))
    if args.detach:
        refuse_torchrun("a detached launch is a process of its own")
    target = folder(args.id)
    sets = assignments(args.set, "--set")
    with target.ledger.locked():
        bury(target)
        loaded = target.load()
    request = _request(loaded, args, sets)
    found = refusals(target, loaded, request, Place.here())
    if args.json and (found or args.check):
        told = {"id": args.id, "rung": request.rung, "arm": request.arm}
        print_json({**told, "refusals": [vars(each) for each in found]})
    if found:
        if not args.check:
            _record(target, request, found)
        raise refused(target.id, request, found)
    if args.check:
        if not args.json:
            arm = loaded.registration.arm(request.arm).label
            print(f"nothing stands against launching {args.id} ({request.rung}, {arm})")
        return EXIT_OK
    if args.detach:
        return _detach(target, request, [each for each in argv if each != "--detach"], as_json=args.json)
    options = Options((), args.json)
    with ProgressView() as view:
        return run_attempt(target, request, options, view)


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "launch",
        "Run every gate and print all that fail, each with its remedy (exit code 4); otherwise start the trainer on\n"
        "the registered configuration and record the attempt with its cost, however it ends.",
        EXAMPLES,
    )
    made.add_argument("--rung", metavar="ID", help="rung of the ladder (default: the first that has not been run)")
    made.add_argument("--arm", metavar="ID", help="arm, by id or label (default: the baseline)")
    made.add_argument("--resume", action="store_true", help="go on with the attempt that stopped")
    made.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of the invariance list")
    made.add_argument("--exploratory", action="store_true", help="a run that proves nothing, and may set anything")
    made.add_argument("--check", action="store_true", help="run the gates and start nothing")
    made.add_argument("--detach", action="store_true", help="in a process of its own; returns when it is known to live")
    return made


def _request(loaded: Loaded, args: argparse.Namespace, sets: dict[str, Any]) -> Request:
    registration = loaded.registration
    arm = registration.arm(args.arm).id
    if args.rung is not None:
        rung = registration.rung(args.rung).id
    else:
        open_rungs = [rung.id for rung in registration.ladder if loaded.state.completed(rung.id, arm) is None]
        rung = (open_rungs or [registration.ladder[-1].id])[0]
    return Request(rung, arm, sets, args.resume, args.exploratory)


def _record(target: Folder, request: Request, found: Sequence[Difference]) -> None:
    """A refusal is data, too."""
    data = {
        "gate": None, "rung": request.rung, "arm": request.arm,
        "refusals": [{"what": each.what, "where": each.where} for each in found],
    }  # fmt: skip
    with target.ledger.locked():
        loaded = target.load()
        if state.allowed(loaded.state.name, "gate_refused"):
            target.write("gate_refused", data, effective=loaded.effective)


def refused(id: str, request: Request, found: Sequence[Difference]) -> LaunchRefused:
    """The error that lists all refusals."""
    told = "\n".join(
        f"  {n}. {each.what}\n     where:  {each.where}\n     remedy: {each.remedy}" for n, each in enumerate(found, 1)
    )
    many = "1 thing stands" if len(found) == 1 else f"{len(found)} things stand"
    return LaunchRefused(f"{many} against launching {id} ({request.rung}, {request.arm}):\n{told}")


def _detach(target: Folder, request: Request, argv: Sequence[str], *, as_json: bool) -> int:
    """Start the same command away from this terminal, and prove that it lives."""
    log = _new_log(outputs_of(target), f"{request.rung}-{request.arm}")
    with open(log, "wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "vla_rl.cli.main", "prereg", "launch", *argv],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    with suppress(subprocess.TimeoutExpired):
        child.wait(PROOF_OF_LIFE_S)
    if child.returncode is not None:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        if child.returncode == EXIT_OK:
            print(tail)
            return EXIT_OK
        error = next((kind for kind in ENDS if kind.exit_code == child.returncode), VlaRlError)
        raise error(f"the launch ended after less than {PROOF_OF_LIFE_S:g} seconds:\n{tail}", where=str(log))
    told = {"id": target.id, "pid": child.pid, "log": str(log), "rung": request.rung, "arm": request.arm}
    if as_json:
        print_json(told)
    else:
        print(f"process {child.pid} lives; log {log}\n  vla-rl prereg status {target.id}")
    return EXIT_OK


def _new_log(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = root / f"{name}.{number}.log"
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            number += 1
