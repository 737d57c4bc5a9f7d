"""The base policy that ships with the package."""

import json
import subprocess
import sys

import pytest

from vla_rl import paths
from vla_rl.policy.policy import load_policy

BASE = paths.bundled_base("boat_tiny")


def test_the_base_is_small_float32_and_has_a_card_with_its_commands():
    import torch

    policy = load_policy(checkpoint="bundled:boat_tiny", device="cpu", serve_head="ar", task="x")
    assert sum(p.numel() for p in policy.model.parameters()) <= 5_000_000
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert sum(f.stat().st_size for f in BASE.rglob("*") if f.is_file()) <= 20_000_000
    card = (BASE / "README.md").read_text()
    assert "vla-rl demos " in card and "vla-rl sft " in card


def test_the_figures_of_the_card_are_those_of_its_evaluation():
    card, measured = (BASE / "README.md").read_text(), json.loads((BASE / "evaluation.json").read_text())
    assert {name: s["trials"] for name, s in measured.items()} == dict.fromkeys(measured, 100)
    for summary in measured.values():
        assert f"{summary['success_strict']}/100" in card and f"{summary['success_documented']}/100" in card


@pytest.mark.slow
def test_the_base_succeeds_and_does_so_by_looking(tmp_path):
    counts = {}
    for frames in ("own", "foreign"):
        arguments = ["eval", "eval.seeds=300-399", f"eval.frames={frames}", f"run.dir={tmp_path / frames}", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "vla_rl.cli.main", *arguments], capture_output=True, text=True, check=True
        )
        counts[frames] = json.loads(done.stdout)["summary"]["success_strict"]
    assert counts["own"] >= 10 and counts["own"] >= 3 * counts["foreign"], counts
