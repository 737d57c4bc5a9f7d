"""A workbench for registrations: a git repository of its own with code, configuration and experiments.

The pinned package is a small directory of this repository, so that tests can tamper with it; the code that runs is the
real one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from vla_rl import paths
from vla_rl.cli.main import main
from vla_rl.prereg.pins import Place

# Two updates of 2 x 2 short episodes on the bundled base, evaluated before and after on six fresh scenes.
TINY = (
    "experiment=quickstart run.steps=1 geometry.seeds=2 geometry.draws=2 sim.max_ticks=90 eval.seeds=10000-10005 "
    "eval.slots=6 sampler.batch_rows=4 pool=serial run.device=cpu run.threads=1"
).split()

DRAFT = """\
title: A tiny registration
author: Ada
summary: |
  Does one step change anything?
claim:
  hypothesis: One step moves the boat farther.
  direction: increase
  smallest_effect: 0.5
  unit: episode
  population: boat to disk
  head: ar
  protocol: sim100b
  look: plain
  data_seen: nothing
measurements:
  - {id: before, policy: base}
  - {id: after, policy: trained}
  - {id: training, kind: series}
  - {id: spend, kind: recorded}
reads:
  - id: progress
    role: primary
    question: Does the boat end nearer?
    rule: {kind: paired_bootstrap, before: before, after: after, metric: progress_final_cm}
  - id: clip
    role: secondary
    question: Was anything clipped?
    rule: {kind: threshold, measurement: training, metric: clip_fraction, statistic: max, comparator: below, line: 0.2}
  - id: money
    role: record
    question: What did it cost?
    rule: {kind: record, measurement: spend, metric: hours, statistic: value}
falsifiers:
  - {id: worse, read: progress, fires_on: FAIL, text: the boat ends farther away}
fallbacks:
  - {id: gentle, text: a third of the rate, set: {optim.lr: 1.0e-5}}
allowances:
  - {id: reprice, text: one change of the price, times: 1, paths: [config.optim.lr, config.loss.kl_beta]}
budget:
  wall_h: 1.0
  expected:
    main: {wall_h: 0.1}
invariance: [pool._target_, run.threads]
"""


class Bench:
    """The repository; `root` holds `experiments/`, `outputs/`, `src/pkg/`, `conf/`."""

    def __init__(self, root: Path) -> None:
        self.root, self.experiments = root, root / "experiments"

    @classmethod
    def make(cls, root: Path) -> Bench:
        root.mkdir(parents=True)
        package = root / "src" / "pkg"
        package.mkdir(parents=True)
        (package / "code.py").write_text("VALUE = 1\n")
        (package / "more").mkdir()
        (package / "more" / "data.txt").write_text("data\n")
        shutil.copytree(paths.conf_dir(), root / "conf")
        (root / "constraints.txt").write_text("torch==2.0\n")
        (root / ".gitignore").write_text("ignored*\noutputs/\n")
        (root / "experiments").mkdir()
        bench = cls(root)
        bench.git("init", "-q", "-b", "main")
        bench.git("config", "user.name", "Ada")
        bench.git("config", "user.email", "ada@example.org")
        bench.commit("start")
        return bench

    def place(self) -> Place:
        return Place(self.root / "src" / "pkg", self.root / "conf", self.root)

    def copy(self, root: Path) -> Bench:
        shutil.copytree(self.root, root, symlinks=True)
        return Bench(root)

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(self.root), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, message: str = "more") -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)

    def folder(self, id: str = "E1") -> Path:
        return self.experiments / id

    def draft(self, text: str = DRAFT, id: str = "E1") -> None:
        self.folder(id).mkdir(exist_ok=True)
        (self.folder(id) / "draft.yaml").write_text(text)

    def ledger(self, id: str = "E1") -> list[dict]:
        return [json.loads(line) for line in (self.folder(id) / "ledger.jsonl").read_text().splitlines()]

    def events(self, id: str = "E1") -> list[str]:
        return [line["event"] for line in self.ledger(id)]

    def frozen(self, id: str = "E1", text: str = DRAFT, *overrides: str) -> Bench:
        """With a frozen, committed, active registration."""
        self.draft(text, id)
        assert prereg("freeze", id, *TINY, *overrides) == 0
        self.commit(f"Freeze {id}")
        assert prereg("activate", id) == 0
        return self


def prereg(*arguments: str) -> int:
    """Exit code of `vla-rl prereg ...`."""
    return main(["prereg", *arguments])


def refused(capsys, code: int, *arguments: str, says: str | tuple[str, ...] = ()) -> str:
    """Run a command that has to end with `code` and to say all of `says`; what it printed."""
    capsys.readouterr()
    found = prereg(*arguments)
    told = "".join(capsys.readouterr())
    assert found == code, (found, told)
    for each in (says,) if isinstance(says, str) else says:
        assert each in told, (each, told)
    return told


def rehash(bench: Bench, number: int, change: Callable[[dict], None]) -> None:
    """Change a line of the ledger and make the chain hold again, as somebody would who knows how it is made."""
    path, prev, lines = bench.folder() / "ledger.jsonl", "0" * 64, []
    for i, line in enumerate(bench.ledger()):
        if i == number:
            change(line)
        body = {**{key: value for key, value in line.items() if key != "hash"}, "prev": prev}
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        prev = hashlib.sha256(data).hexdigest()
        lines.append(data[:-1] + f',"hash":"{prev}"}}\n'.encode())
    path.write_bytes(b"".join(lines))
