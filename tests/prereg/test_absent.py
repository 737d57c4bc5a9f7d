"""A policy that is not on this machine: frozen by its name, launched only after its files are pinned."""

from pathlib import Path

import pytest
from bench import DRAFT, TINY, prereg, refused

from vla_rl import paths

BASE = "releases/base"


@pytest.fixture
def absent(bench):
    """Frozen, committed and active, its policy somewhere else."""
    bench.draft(DRAFT)
    assert prereg("freeze", "E1", "--absent", *TINY, f"policy.checkpoint={BASE}") == 0
    bench.commit("Freeze E1")
    assert prereg("activate", "E1") == 0
    return bench


def arrive() -> None:
    Path(BASE).parent.mkdir(exist_ok=True)
    Path(BASE).symlink_to(paths.bundled_base("tiny_start"))


def test_a_policy_that_is_not_there_is_frozen_only_if_that_is_said(bench, capsys):
    bench.draft(DRAFT)
    refused(capsys, 2, "freeze", "E1", *TINY, f"policy.checkpoint={BASE}", says=("neither a directory", "--absent"))
    assert prereg("freeze", "E1", "--absent", *TINY, f"policy.checkpoint={BASE}") == 0


def test_a_launch_says_that_the_policy_is_missing_and_nothing_else(absent, capsys):
    told = refused(capsys, 4, "launch", "E1", "--check", says=("1 thing stands", f"{BASE} is not there", "--repin"))
    assert "pins.checkpoint.files" in told


def test_an_empty_directory_is_no_policy(absent, capsys):
    (absent.root / BASE).mkdir(parents=True)
    refused(capsys, 4, "launch", "E1", "--check", says=("1 thing stands", f"{BASE} is not there", "put it there, then"))


def test_a_policy_that_came_later_is_launched_once_its_files_are_pinned(absent, capsys):
    arrive()
    (absent.root / ".gitignore").write_text("ignored*\noutputs/\nreleases/\n")
    refused(capsys, 4, "launch", "E1", "--check", says=("1 thing stands", "is there, but its files are not pinned"))
    words = ("--reason", "the policy has come", "--kind", "operational", "--data-seen", "none")
    assert prereg("amend", "E1", "--repin", *words) == 0
    absent.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0


def test_packages_are_pinned_anew_while_the_policy_is_still_away(absent, capsys):
    (absent.root / "src" / "pkg" / "code.py").write_text("VALUE = 2\n")
    absent.commit("mend")
    words = ("--reason", "mended", "--kind", "operational", "--data-seen", "none")
    assert prereg("amend", "E1", "--repin", *words) == 0
    absent.commit("Amend E1")
    refused(capsys, 4, "launch", "E1", "--check", says=("1 thing stands", f"{BASE} is not there"))


def test_a_policy_under_another_name_is_set_and_pinned_in_one_amendment(absent):
    words = ("--reason", "another base", "--kind", "scientific", "--data-seen", "none")
    named = ("--set", "config.policy.checkpoint=bundled:tiny_start")
    assert prereg("amend", "E1", *named, "--repin", *words) == 0
    absent.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0
