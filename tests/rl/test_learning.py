"""What is learned: a bandit from its rewards, nothing from shuffled or constant ones, the same losses ever after.

`golden_losses.json` was written by this file run as a script, with src, tests/rl and tests/rollout on PYTHONPATH. A
changed figure means that training computes something else; it is not to be rewritten together with a refactoring.
"""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path

import pytest
import torch
from bandit import bandit_trainer
from toy_run import toy_trainer

from vla_rl.config.schema import LossConfig

STORED = Path(__file__).with_name("golden_losses.json")


def success_rates(trainer, name):
    """Before, and after the last update."""
    try:
        trainer.run()
        rows = trainer.run_dir.rows(name)
        return [row["successes"] / row["trials"] for row in (rows[0], rows[-1])]
    finally:
        trainer.run_dir.close()


def test_a_bandit_is_learned_from_its_rewards(tmp_path):
    before, after = success_rates(bandit_trainer(tmp_path / "run"), "eval.jsonl")
    assert 0.4 < before < 0.65 and after > 0.9


@pytest.mark.slow
def test_nothing_is_learned_from_shuffled_advantages(tmp_path):
    before, after = success_rates(bandit_trainer(tmp_path / "run", geometry={"shuffle_advantages": True}), "eval.jsonl")
    assert 0.4 < before < 0.65 and after < 0.75


class Constant:
    """A reward of one's own that says nothing."""

    def terms(self, metrics):
        return {"constant": 0.1, "total": 0.1}


def test_a_constant_reward_leaves_every_weight_bitwise_unchanged(tmp_path):
    trainer = bandit_trainer(tmp_path / "run", steps=2, reward=Constant(), geometry={"min_group_std_cm": 0.0})
    before = {name: weight.clone() for name, weight in trainer.policy.model.state_dict().items()}
    success_rates(trainer, "eval.jsonl")
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.policy.model.state_dict().items())
    assert [row["groups_dropped"]["spread"] for row in trainer.run_dir.rows("train.jsonl")] == [4, 4]


def platform_of_floats() -> dict[str, str]:
    """What the bits of a forward and backward pass depend on besides the code."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    vendor = next((line.split(":")[1].strip() for line in cpu.splitlines() if line.startswith("vendor_id")), "unknown")
    capability = torch.backends.cpu.get_cpu_capability()
    return {"machine": platform.machine(), "vendor": vendor, "capability": capability, "torch": torch.__version__}


def trajectory(path: Path) -> list[dict[str, float | str]]:
    """Three steps of two passes with every term in the loss, and the digest of the policy at the end."""
    loss = LossConfig(epochs=2, kl_beta=0.05, entropy_bonus=0.01, dual_clip=3.0)
    trainer = toy_trainer(path, loss=loss)
    try:
        trainer.run()
        keys = ("loss", "grad_norm", "approx_kl", "anchor_kl", "entropy", "reward_mean")
        rows = [{key: row[key].hex() for key in keys} for row in trainer.run_dir.rows("train.jsonl")]
        return [*rows, {"policy": trainer.policy.digest()}]
    finally:
        trainer.run_dir.close()


def test_losses_gradients_and_weights_are_those_that_were_stored_bit_for_bit(tmp_path):
    stored = json.loads(STORED.read_text())
    if (here := platform_of_floats()) != stored["platform"]:
        pytest.skip(f"stored on {stored['platform']}, this is {here}")
    assert trajectory(tmp_path / "run") == stored["trajectory"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = {"platform": platform_of_floats(), "trajectory": trajectory(Path(place) / "run")}
    STORED.write_text(json.dumps(found, indent=1) + "\n")
