"""What a page tells its reader to type is typed here, in a copy of the project, and ends well."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks(page):
    """Shell commands of a page's ```sh blocks, block by block."""
    text = (ROOT / "docs" / page).read_text()
    return [block.strip().splitlines() for block in re.findall(r"```sh\n(.*?)```", text, flags=re.S)]


@pytest.fixture
def checkout(tmp_path_factory):
    """The project in a repository of its own, with everything committed, and `vla-rl` on the path."""
    root = tmp_path_factory.mktemp("reader") / "vla_rl"
    ignored = shutil.ignore_patterns("__pycache__", ".git", ".venv*", "outputs", "dist", ".pytest_cache", "shared")
    root.mkdir()
    for name in ("src", "conf", "experiments", "docs"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("pyproject.toml", "constraints.txt", ".gitignore"):
        shutil.copy(ROOT / name, root / name)
    bin_ = root.parent / "bin"
    bin_.mkdir()
    script = bin_ / "vla-rl"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vla_rl.cli.main "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "VLA_RL_EXP"))}
    env |= {"PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": str(root / "src")}
    for command in ("git init -q", "git config user.name Ada", "git config user.email ada@example.org", "git add -A",
                    "git commit -qm start"):  # fmt: skip
        subprocess.run(command, shell=True, cwd=root, env=env, check=True)
    return root, env


def typed(commands, root, env):
    """Every command ends well."""
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=root, env=env, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_page_on_registrations_leads_from_nothing_to_a_launch(checkout):
    root, env = checkout
    first, *_ = blocks("prereg.md")
    check = first.index("vla-rl prereg launch E001 --check")
    typed(first[: check + 1], root, env)
    assert first[check + 1] == "vla-rl prereg launch E001" and (root / "experiments/E001/registration.yaml").is_file()


@pytest.mark.slow
def test_the_page_on_registrations_leads_from_nothing_to_a_judged_one(checkout):
    root, env = checkout
    typed([command for block in blocks("prereg.md") for command in block], root, env)
    report = (root / "experiments/E001/REPORT.md").read_text()
    assert "## Verdict" in report and "the whole loop runs on this machine" in report


def test_the_page_on_reports_makes_those_of_the_registrations_here(checkout):
    root, env = checkout
    first, second = blocks("reports.md")
    typed(first, root, env)
    assert (root / "outputs/prereg/E002-weak-start/report.html").stat().st_size > 100_000
    assert (root / "weak-start.md").is_file() and (root / "weak-start-csv/reads.csv").is_file()
    assert second[0].startswith("vla-rl train ")


@pytest.mark.slow
def test_the_page_on_reports_makes_one_of_a_run_with_films(checkout):
    root, env = checkout
    typed(blocks("reports.md")[1], root, env)
    assert (root / "outputs/small/report.html").is_file()
    assert (root / "small.html").read_bytes().count(b"data:image/gif;base64,") == 2
