"""`vla-rl sweep ID`: the registered levers as arms, each `prereg launch` in a process of its own, and one table.

The arms are those of the registration; nothing is typed here that could be another value. Outcomes are in the table
once they were read, and sealed before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vla_rl.cli.distributed import refuse_torchrun
from vla_rl.cli.jobs import check_launcher, plan_jobs, run_jobs
from vla_rl.cli.onejob import RUNNING, Job, log_file, log_tail
from vla_rl.cli.options import print_json
from vla_rl.cli.prereg.attempts import bury
from vla_rl.cli.prereg.common import folder, parser
from vla_rl.cli.startup import claim_directory, new_run_dir
from vla_rl.errors import EXIT_CRASH, EXIT_OK, EXIT_STOPPED, LaunchRefused, UsageError
from vla_rl.prereg.folder import Folder, Loaded, outputs_of, root_of
from vla_rl.prereg.judging import evidence_files
from vla_rl.prereg.launchgates import Request, against, standing
from vla_rl.prereg.pins import Place
from vla_rl.report import arms as tables
from vla_rl.report.progress import ProgressView

TAIL_LINES = 12
ACCEPTED = ("hydra/launcher", "hydra.launcher.")


def run(argv: Sequence[str]) -> int:
    """Launch every arm without a run, then show all; 0: all ended well, 3: some stopped themselves, 1: some failed."""
    made = parser(
        "",
        "Launch the registered arms of a rung, one process each, through Hydra's multirun. Arms that have their run\n"
        "are left alone, those that stopped go on. Then one table, also as arms.csv and arms.md in outputs/prereg/ID/.",
        (),
    )
    made.prog, made.epilog = "vla-rl sweep", "\n".join(("examples:", *(f"  vla-rl sweep {e}" for e in EXAMPLES)))
    made.add_argument("launcher", nargs="*", metavar="hydra...", help="hydra/launcher=joblib and its options")
    made.add_argument("--rung", metavar="ID", help="rung of the ladder (default: the first that an arm has not run)")
    made.add_argument("--table", action="store_true", help="show the table and launch nothing")
    args = made.parse_intermixed_args(list(argv))
    for option in args.launcher:
        if not option.startswith(ACCEPTED):
            raise UsageError(
                f"{option!r} is not possible here", where="command line", remedy="values come from the registration"
            )
    refuse_torchrun("a sweep gives every arm a process of its own")
    target = folder(args.id)
    with target.ledger.locked():
        bury(target)
        loaded = target.load()
    codes: list[int] = []
    rung = _rung(loaded, args.rung)
    with ProgressView() as view:
        if not args.table:
            codes = _launch_all(target, loaded, rung, args.launcher, view)
        rows = _write(target, rung)
        if args.json:
            print_json({"id": args.id, "rung": rung, "arms": rows, "exit_codes": codes})
        else:
            view.show(tables.table(rows, f"{args.id}, {rung}"))
            view.say(tables.note(rows, args.id))
    failed = [code for code in codes if code != EXIT_OK]
    return EXIT_OK if not failed else EXIT_STOPPED if all(code == EXIT_STOPPED for code in failed) else EXIT_CRASH


EXAMPLES = ("E002", "E002 hydra/launcher=joblib hydra.launcher.n_jobs=2", "E002 --table")


def _rung(loaded: Loaded, named: str | None) -> str:
    registration = loaded.registration
    if named is not None:
        return registration.rung(named).id
    for rung in registration.ladder:
        if any(loaded.state.completed(rung.id, arm.id) is None for arm in registration.arms):
            return rung.id
    return registration.ladder[-1].id


def _launch_all(target: Folder, loaded: Loaded, rung: str, launcher: Sequence[str], view: ProgressView) -> list[int]:
    check_launcher(launcher)
    jobs = _jobs(target, loaded, rung)
    if not jobs:
        view.say("every arm has its run")
        return []
    directory = claim_directory(root_of(target) / new_run_dir(f"prereg/{target.id}/sweeps"))
    plan_jobs(directory, jobs)
    ended: dict[str, int] = {}

    def tell(job: Mapping[str, Any]) -> None:
        label = job["facts"]["arm"]
        if job["state"] == RUNNING:
            view.say(f"{label} started")
            return
        ended[job["name"]] = EXIT_CRASH if job["exit_code"] is None else job["exit_code"]
        view.say(
            f"{label} ended with {job['exit_code']} after {job['seconds'] or 0:.0f} s ({len(ended)} of {len(jobs)})"
        )
        if job["exit_code"] != EXIT_OK:
            log = log_file(directory, job["name"])
            tail = log_tail(directory, job["name"], TAIL_LINES)
            view.say(f"  the end of {log}:\n" + "\n".join(f"  | {line}" for line in tail.splitlines()))

    view.say(f"{len(jobs)} arms of {rung}; logs in {directory}")
    run_jobs(directory, [job.name for job in jobs], launcher, tell)
    return [ended.get(job.name, EXIT_CRASH) for job in jobs]


def _jobs(target: Folder, loaded: Loaded, rung: str) -> list[Job]:
    """A job for each arm without a run; refused together if anything stands against one of them."""
    arms = [arm for arm in loaded.registration.arms if loaded.state.completed(rung, arm.id) is None]
    found = [("", each) for each in standing(target, loaded, Place.here())] if arms else []
    jobs = []
    for arm in arms:
        earlier = loaded.state.of(rung, arm.id)
        # Also one that left nothing: the gates refuse a fresh start.
        resume = bool(earlier) and not earlier[-1].elsewhere
        found += [(f"{arm.label}: ", each) for each in against(target, loaded, Request(rung, arm.id, resume=resume))]
        command = ("prereg", "launch", target.id, "--rung", rung, "--arm", arm.id)
        start = (*command, "--resume") if resume else command
        jobs.append(Job(f"{rung}-{arm.id}", start=start, facts={"arm": arm.label}))
    if found:
        told = "\n".join(
            f"  {n}. {whose}{each.what}\n     remedy: {each.remedy}" for n, (whose, each) in enumerate(found, 1)
        )
        many = "1 thing stands" if len(found) == 1 else f"{len(found)} things stand"
        raise LaunchRefused(f"{many} against sweeping {target.id} ({rung}):\n{told}")
    return jobs


def _write(target: Folder, rung: str) -> list[dict[str, Any]]:
    """Rows of all arms, also as files."""
    loaded = target.load()
    rows = tables.rows(loaded, rung, evidence_files(target, loaded.entries))
    directory = outputs_of(target)
    directory.mkdir(parents=True, exist_ok=True)
    tables.write_files(directory, rows, f"{target.id}, {rung}")
    return rows
