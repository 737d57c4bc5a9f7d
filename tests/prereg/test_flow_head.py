"""A registered run of the token head whose guardrail looks at the flow head, before and after."""

import json

import pytest
import torch
from bench import DRAFT, TINY, prereg, refused

from vla_rl.cli.prereg.collecting import evaluation_of
from vla_rl.config.schema import PolicyConfig
from vla_rl.policy.expert_files import new_expert
from vla_rl.policy.flow_config import ExpertSizes
from vla_rl.policy.policy import load_policy
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.registered import config_of

SIZES = ExpertSizes(width=16, heads=2, mlp_ratio=2.0, mlp_multiple=16, time_features=8)
OTHER = (
    "  - {id: flow_before, policy: base, played_by: read, seeds: 10010-10015, head: flow, temperature: 0.0}\n"
    "  - {id: flow_after, policy: trained, played_by: read, seeds: 10010-10015, head: flow, temperature: 0.0}\n"
)
LEG = """\
  - id: flow
    role: secondary
    question: Does the other head lose anything?
    rule: {kind: paired_bootstrap, before: flow_before, after: flow_after, metric: progress_final_cm}
"""
BOTH = DRAFT.replace("reads:\n", OTHER + "reads:\n").replace("falsifiers:\n", LEG + "falsifiers:\n")


def base_with_both_heads(bench):
    policy = load_policy(checkpoint="bundled:tiny_start", device="cpu", serve_head="ar", task=PolicyConfig.task)
    expert, generator = new_expert(policy, SIZES, seed=0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, weight in sorted(expert.named_parameters()):
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    policy.save(bench.root / "base")
    with (bench.root / ".gitignore").open("a") as file:
        file.write("base/\n")
    bench.commit()


@pytest.mark.slow
def test_the_other_head_is_measured_on_the_very_policies_of_the_run(bench):
    base_with_both_heads(bench)
    bench.frozen("E1", BOTH, "policy.checkpoint=base")
    assert prereg("launch", "E1") == 0
    assert prereg("read", "E1", "flow") == 0
    evidence = {}
    for path in (bench.folder() / "evidence").glob("*.json"):
        body = json.loads(path.read_text())
        evidence[body["measurement"]] = body
    before, after = evidence["flow_before"], evidence["flow_after"]
    assert {before["head"], after["head"]} == {"flow"} and before["temperature"] == after["temperature"] == 0
    end = next(line["data"] for line in bench.ledger() if line["event"] == "attempt_ended")
    digests = {before["policy_digest"], after["policy_digest"], end["base_digest"], end["policy_digest"]}
    assert len(digests) == 4  # each head of each policy has its own
    assert all(row["tokens"] == 0 for row in after["episodes"])
    assert prereg("verify", "E1") == 0


def test_a_measurement_that_names_its_head_may_find_it_stale_and_another_may_not(bench):
    bench.frozen("E1", BOTH)
    registration = Folder(bench.experiments, "E1").load().registration
    config = config_of(registration, registration.ladder[0].id, "baseline")
    trees = {
        m.id: evaluation_of(registration, config, m, "exported", bench.root / "out").tree["policy"]
        for m in registration.measurements
        if m.kind == "evaluation"
    }
    legs = {name: tree for name, tree in trees.items() if name.startswith("flow_")}
    assert len(legs) == 2 < len(trees)
    assert all(tree["serve_head"] == "flow" and tree["allow_stale_head"] for tree in legs.values())
    assert not any(tree["allow_stale_head"] for name, tree in trees.items() if name not in legs)


def test_a_registered_run_of_the_flow_head_and_a_temperature_of_it_are_refused(bench, capsys):
    bench.draft(DRAFT.replace("head: ar", "head: flow"))
    told = refused(capsys, 2, "freeze", "E1", *TINY, "policy.serve_head=flow", says="config.policy.serve_head")
    assert "trains the token head" in told
    bench.draft(BOTH.replace("temperature: 0.0}", "temperature: 0.7}"))
    says = ("measurements[flow_before].temperature", "measurements[flow_after].temperature", "no temperature 0.7")
    refused(capsys, 2, "freeze", "E1", *TINY, says=says)
