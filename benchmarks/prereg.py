"""How long `vla-rl prereg status` and `verify` take, against the time that their libraries take to import.

The ceiling: a command cannot be faster than the interpreter with what it imports. Compared in one run, the median of
several starts each: importing hydra, omegaconf and scipy (and scipy.special, which judging a read needs); `status` and
`verify` of one closed registration; `verify --all` of 100. Everything lies in a temporary git repository.

    python benchmarks/prereg.py [--registrations 100] [--starts 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from vla_rl.cli.main import main
from vla_rl.cli.prereg.template import draft_text

COUNTS = {"counts": {"success": [31, 100]}}


def draft(id: str) -> str:
    """The draft of `prereg new` with a primary read that needs no run."""
    text = draft_text(id, "benchmark")
    head, _, rest = text.partition("measurements:\n")
    _, _, tail = rest.partition("budget:\n")
    body = (
        "measurements:\n  - {id: counted, kind: recorded}\nreads:\n  - id: success\n    role: primary\n"
        "    question: Is the rate above a fifth?\n    rule: {kind: binomial_tail, measurement: counted, rate: 0.2}\n"
    )
    return f"{head}{body}budget:\n{tail}"


def build(root: Path, count: int) -> None:
    """So many closed registrations, committed."""
    os.environ["VLA_RL_EXPERIMENTS"] = str(root / "experiments")
    evidence = root / "counts.json"
    evidence.write_text(json.dumps(COUNTS))
    for arguments in (["init", "-q"], ["config", "user.name", "b"], ["config", "user.email", "b@example.org"]):
        subprocess.run(["git", "-C", str(root), *arguments], check=True)
    ids = [f"B{number:03}" for number in range(count)]
    for id in ids:
        (root / "experiments" / id).mkdir(parents=True)
        (root / "experiments" / id / "draft.yaml").write_text(draft(id))
        do("freeze", id, "experiment=quickstart")
    commit(root)
    for id in ids:
        do("activate", id)
        do("read", id, "success", "--from", str(evidence))
        do("verdict", id)
        do("close", id)
    commit(root)


def do(*arguments: str) -> None:
    with redirect_stdout(StringIO()):
        assert main(["prereg", *arguments]) == 0, arguments


def commit(root: Path) -> None:
    subprocess.run(["git", "-C", str(root), "add", "-A"], check=True)
    subprocess.run(["git", "-C", str(root), "commit", "-qm", "more"], check=True)


def seconds(command: list[str], starts: int) -> float:
    """Wall time of a fresh process, the median of several starts."""
    taken = []
    for _ in range(starts):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def report(count: int, starts: int) -> None:
    python = sys.executable
    command = [python, "-m", "vla_rl.cli.main", "prereg"]
    imports = seconds([python, "-c", "import hydra, omegaconf, scipy"], starts)
    special = seconds([python, "-c", "import hydra, omegaconf, scipy.special"], starts)
    status = seconds([*command, "status", "B000"], starts)
    verify = seconds([*command, "verify", "B000"], starts)
    everything = seconds([*command, "verify", "--all"], 1)
    rows = (
        ("import hydra, omegaconf, scipy", imports, ""),
        ("import hydra, omegaconf, scipy.special", special, f"{special / imports:.2f} x"),
        ("status of one registration", status, f"{status / imports:.2f} x"),
        ("verify of one registration", verify, f"{verify / imports:.2f} x, {verify / special:.2f} x of scipy.special"),
        (f"verify --all, {count} registrations", everything, f"{1000 * everything / count:.0f} ms each"),
    )
    for name, taken, ratio in rows:
        print(f"{name:<42}{taken:6.2f} s   {ratio}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--registrations", type=int, default=100)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), options.registrations)
        report(options.registrations, options.starts)
