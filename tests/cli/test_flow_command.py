"""`policy.serve_head=flow` as a user meets it: evaluations, comparisons, and the commands that need the token head."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vla_rl.config.schema import PolicyConfig
from vla_rl.policy.expert_files import new_expert
from vla_rl.policy.flow_config import ExpertSizes
from vla_rl.policy.policy import load_policy

SIZES = ExpertSizes(width=32, heads=2, mlp_ratio=2.0, mlp_multiple=32, time_features=16)


def vla_rl(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vla_rl.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def both_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped base with an expert that moves: its weights are drawn, it has learned nothing."""
    policy = load_policy(checkpoint="bundled:tiny_start", device="cpu", serve_head="ar", task=PolicyConfig.task)
    expert, generator = new_expert(policy, SIZES, seed=0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, weight in sorted(expert.named_parameters()):
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    directory = tmp_path_factory.mktemp("policy") / "both"
    policy.save(directory)
    return directory


QUICK = ("eval.seeds=300-301", "sim.max_ticks=60", "pool.workers=1", "run.device=cpu")


def evaluated(directory: Path, *overrides: str) -> dict[str, Any]:
    return json.loads(vla_rl("eval", *QUICK, "--video", "none", "--json", f"run.dir={directory}", *overrides).stdout)


def outcome(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in ("wall_s", "predict_s")} for row in record["episodes"]]


@pytest.fixture(scope="module")
def records(both_heads: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    place, made = tmp_path_factory.mktemp("eval"), {}
    checkpoint = f"policy.checkpoint={both_heads}"
    for name, more in {
        "flow": ("policy.serve_head=flow",),
        "again": ("policy.serve_head=flow", "sampler.batch_rows=1", "eval.slots=1"),
        "other": ("policy.serve_head=flow", "run.seed=1"),
        "tokens": (),
    }.items():
        made[name] = (place / name, evaluated(place / name, checkpoint, *more))
    return made


@pytest.mark.slow
def test_an_evaluation_of_the_flow_head_is_a_record_like_another_without_tokens(records, both_heads: Path):
    record, tokens = records["flow"][1], records["tokens"][1]
    assert record["policy"]["head"] == "flow" and tokens["policy"]["head"] == "ar"
    assert record["policy"]["digest"] != tokens["policy"]["digest"] == record["policy"]["token_digest"]
    assert record["summary"]["tokens"] == 0 and record["summary"]["nll_mean"] is None
    assert record["summary"]["temperature"] == 0 and record["summary"]["predict_latency_s"] > 0
    assert all(row["replans"] == 2 and row["tokens"] == 0 for row in record["episodes"])
    assert "token_digest" not in tokens["policy"]


@pytest.mark.slow
def test_episodes_of_the_flow_head_depend_on_their_keys_alone(records):
    flow, again, other = (outcome(records[name][1]) for name in ("flow", "again", "other"))
    assert flow == again != other


@pytest.mark.slow
def test_the_two_heads_of_a_policy_are_compared_and_named(records):
    flow, tokens = records["flow"][0], records["tokens"][0]
    shown = vla_rl("compare", str(tokens), str(flow)).stderr
    assert "flow head" in shown and "greedy" in shown
    told = json.loads(vla_rl("compare", str(tokens), str(flow), "--json").stdout)
    assert (told["a"]["head"], told["b"]["head"], told["kind"]) == ("ar", "flow", "two policies")
    verdict = json.loads(vla_rl("parity", str(flow), str(records["again"][0]), "--json").stdout)
    assert verdict["passed"] and verdict["identical"] == 2


@pytest.mark.slow
def test_a_run_is_not_let_through_by_an_evaluation_of_the_other_head(records, both_heads: Path, tmp_path: Path):
    of_the_run = ("experiment=quickstart", f"policy.checkpoint={both_heads}", "eval.seeds=300-301", "run.steps=1")
    record = f"gates.parity_record={records['flow'][0]}"
    told = vla_rl("train", *of_the_run, record, f"run.dir={tmp_path / 'run'}", code=2).stderr
    assert "the flow head" in told and "policy.serve_head=ar" in told


def refused(*arguments: str) -> str:
    told = vla_rl(*arguments, code=2).stderr
    assert "Traceback" not in told
    return told


def test_a_temperature_says_nothing_to_the_flow_head_and_is_refused_before_anything_is_loaded(tmp_path: Path):
    told = refused("eval", "policy.serve_head=flow", "eval.temperature=0.7", f"run.dir={tmp_path / 'eval'}")
    assert "temperature 0.7" in told and "eval.temperature=0" in told and not (tmp_path / "eval").exists()


def test_a_policy_without_an_expert_says_what_to_do(tmp_path: Path):
    told = refused("eval", "policy.serve_head=flow", "eval.seeds=300", f"run.dir={tmp_path / 'eval'}")
    assert "no action expert" in told and "policy.serve_head=ar" in told and not (tmp_path / "eval").exists()


def test_a_head_that_there_is_not_is_refused():
    assert "serve_head" in refused("eval", "policy.serve_head=diffusion")


@pytest.mark.parametrize("command", ["train", "plan", "probe"])
def test_commands_that_sample_tokens_refuse_the_flow_head(command: str):
    told = refused(command, "policy.serve_head=flow")
    assert "token head" in told and "policy.serve_head=ar" in told
