"""The base policies that ship with the package."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vla_rl import paths
from vla_rl.config.compose import compose
from vla_rl.policy.policy import load_policy

BASES = ("tiny_start", "tiny_full")


@pytest.mark.parametrize("name", BASES)
def test_a_base_is_small_float32_and_has_a_card_with_its_commands(name: str) -> None:
    import torch

    base = paths.bundled_base(name)
    policy = load_policy(checkpoint=f"bundled:{name}", device="cpu", serve_head="ar", task="x")
    assert sum(p.numel() for p in policy.model.parameters()) <= 5_000_000
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    sizes = [f.stat().st_size for f in base.rglob("*") if f.is_file()]
    assert sum(sizes) <= 20_000_000 and max(sizes) <= 16 * 2**20
    card = (base / "README.md").read_text()
    assert "vla-rl demos " in card and "vla-rl sft " in card


def test_each_base_has_a_digest_of_its_own_though_the_weights_are_the_same() -> None:
    loaded = [load_policy(checkpoint=f"bundled:{name}", device="cpu", serve_head="ar", task="x") for name in BASES]
    start, full = loaded
    assert all((a == b).all() for a, b in zip(start.model.parameters(), full.model.parameters(), strict=True))
    moved_deg = full.stats.action.low_deg - start.stats.action.low_deg
    assert np.allclose(moved_deg, [-2.5, 2.5, 0, 0, 0, 0], atol=1e-9)
    assert start.digest() != full.digest()
    start.stats = full.stats
    assert start.digest() == full.digest()


def test_the_default_policy_is_the_start_of_reinforcement_learning() -> None:
    assert compose("eval", []).component_spec("policy")["checkpoint"] == "bundled:tiny_start"


@pytest.mark.parametrize("name", BASES)
def test_the_figures_of_a_card_are_those_of_its_evaluation_and_none_is_blind(name: str) -> None:
    base = paths.bundled_base(name)
    policy = load_policy(checkpoint=f"bundled:{name}", device="cpu", serve_head="ar", task="x")
    card, measured = (base / "README.md").read_text(), json.loads((base / "evaluation.json").read_text())
    for summary in measured.values():
        assert summary["policy_digest"] == policy.digest()
        for test in ("strict", "documented"):
            assert f"{summary[f'success_{test}']}/{summary['trials']}" in card
    strict = {condition: summary["success_strict"] / summary["trials"] for condition, summary in measured.items()}
    assert max(strict[blind] for blind in ("foreign", "black", "still")) <= strict["greedy"] / 10


def test_the_start_is_sure_enough_to_learn_and_the_full_one_is_good() -> None:
    start, full = (json.loads((paths.bundled_base(name) / "evaluation.json").read_text()) for name in BASES)
    assert {read["trials"] for base in (start, full) for read in (base["greedy"], base["sampled"])} == {100}
    assert 40 <= start["greedy"]["success_strict"] <= 60
    assert start["sampled"]["success_strict"] >= 35 and start["sampled"]["nll_mean"] <= 0.9
    assert full["greedy"]["success_strict"] >= 80


@pytest.mark.slow
def test_the_default_base_succeeds_and_does_so_by_looking(tmp_path: Path) -> None:
    counts = {}
    for frames in ("own", "foreign"):
        arguments = ["eval", "eval.seeds=300-399", f"eval.frames={frames}", f"run.dir={tmp_path / frames}", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "vla_rl.cli.main", *arguments], capture_output=True, text=True, check=True
        )
        counts[frames] = json.loads(done.stdout)["summary"]["success_strict"]
    assert counts["own"] >= 10 and counts["own"] >= 3 * counts["foreign"], counts
