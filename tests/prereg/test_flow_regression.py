"""The flow leg: tokens are trained, and the flow head beside them is held against its anchor by a binomial tail.

The policy has both heads: the bundled base, and an expert that was taught by a few demonstrations until it reaches for
the boat. The baseline moves the rows of the action words alone, which the expert does not see; the other arm moves the
whole trunk, so hotly that it is no use to anybody.
"""

import json

import pytest
from bench import prereg, refused

from vla_rl.cli.main import main
from vla_rl.cli.prereg.nextstep import next_step
from vla_rl.prereg.folder import Folder

SETTINGS = (
    "policy.checkpoint=base sim.max_ticks=180 eval.seeds=10000-10001 eval.slots=2 surface=patch_only optim.lr=1e-3"
).split()
DRAFT = """\
title: What training the tokens does to the flow head
author: Ada
summary: |
  Does the flow head still find the boat?
claim:
  hypothesis: Trainer and sampler agree.
  direction: none
  smallest_effect: null
  unit: episode
  population: boat to disk
  head: ar
  protocol: sim100b
  look: plain
  data_seen: nothing
arms:
  - {label: hot, set: {optim.lr: 0.03, surface._target_: vla_rl.rl.surfaces.Full}}
constants: {flow_anchor: null}
deferred:
  - {id: flow_anchor, read: flow_anchor, by: main}
measurements:
  - {id: training, kind: series}
  - {id: flow_before, policy: base, played_by: read, seeds: 10810-10817, temperature: 0.0, head: flow}
  - {id: flow_after, policy: trained, played_by: read, seeds: 10810-10817, temperature: 0.0, head: flow}
  - {id: flow_hot, policy: trained, played_by: read, seeds: 10810-10817, temperature: 0.0, head: flow, arm: hot}
reads:
  - id: gap
    role: primary
    question: Do trainer and sampler agree?
    rule:
      {kind: threshold, measurement: training, metric: rollout_gap, statistic: max, comparator: at_most, line: 0.001}
  - id: flow_anchor
    role: record
    question: On what share of the scenes does the flow head of the base touch the boat?
    rule: {kind: record, measurement: flow_before, metric: touched, statistic: share}
  - id: flow
    role: guardrail
    question: Not on materially fewer scenes after training of the words?
    rule:
      kind: binomial_tail
      measurement: flow_after
      metric: touched
      rate: flow_anchor
      direction: increase
      requires: not_against
      effect: 0.5
  - id: flow_hot
    role: guardrail
    question: Nor after training of the whole trunk?
    rule:
      kind: binomial_tail
      measurement: flow_hot
      metric: touched
      rate: flow_anchor
      direction: increase
      requires: not_against
      effect: 0.5
budget:
  wall_h: 2.0
  expected:
    main: {wall_h: 0.2}
"""


def base_with_a_taught_expert(bench):
    """`base/`: the tokens of the bundled base, and an expert taught beside its trunk."""
    demos, sft = bench.root / "outputs" / "demos", bench.root / "outputs" / "sft"
    assert main(["demos", "demos.seeds=100000-100007", "demos.workers=1", f"run.dir={demos}"]) == 0
    fit = "sft.base=bundled:tiny_full sft.objective=flow sft.insulate=true sft.expert=fresh sft.frame_stride=3 "
    fit += "sft.steps=60 sft.batch_rows=32 sft.lr=2e-3 sft.warmup_steps=10 run.device=cpu run.threads=1"
    assert main(["sft", f"sft.demos={demos}", *fit.split(), f"run.dir={sft}"]) == 0
    (sft / "policy").rename(bench.root / "base")
    with (bench.root / ".gitignore").open("a") as file:
        file.write("base/\n")
    bench.commit()


def next_command(bench):
    return next_step(Folder(bench.experiments, "E1").load())[0]


def outcome(bench, read):
    return next(line["data"]["outcome"] for line in bench.ledger() if line["data"].get("read") == read)


@pytest.mark.slow
def test_a_flow_head_that_its_trunk_has_left_behind_fails_the_leg_and_another_passes_it(bench, capsys):
    base_with_a_taught_expert(bench)
    bench.frozen("E1", DRAFT, *SETTINGS)
    told = refused(capsys, 4, "launch", "E1", says="the constant flow_anchor had to be set before main")
    assert "amend E1 --settle flow_anchor" in told
    assert next_command(bench) == "vla-rl prereg read E1 flow_anchor"
    assert prereg("read", "E1", "flow_anchor") == 0
    assert next_command(bench).startswith("vla-rl prereg amend E1 --settle flow_anchor")
    why = ("--reason", "the anchor is read", "--kind", "operational", "--data-seen", "outcomes")
    assert prereg("amend", "E1", "--settle", "flow_anchor", *why) == 0
    bench.commit("Settle the anchor")
    assert next_command(bench) == "vla-rl prereg launch E1 --arm 'baseline'"
    for arm in ("baseline", "hot"):
        assert prereg("launch", "E1", "--arm", arm) == 0
    for read in ("gap", "flow", "flow_hot"):
        assert prereg("read", "E1", read) == 0

    anchor, kept, fell = (outcome(bench, read) for read in ("flow_anchor", "flow", "flow_hot"))
    assert anchor["estimate"] >= 0.75
    assert kept["status"] == "PASS" and fell["status"] == "FAIL"
    assert kept["details"]["rate"] == fell["details"]["rate"] == anchor["estimate"]
    assert fell["details"]["p_opposite"] <= 0.05 < kept["details"]["p_opposite"]
    seen = {}
    for path in (bench.folder() / "evidence").glob("*.json"):
        body = json.loads(path.read_text())
        seen[body["measurement"]] = body
    legs = [seen[name] for name in ("flow_before", "flow_after", "flow_hot")]
    assert {leg["head"] for leg in legs} == {"flow"} and len({leg["policy_digest"] for leg in legs}) == 3
    assert len({tuple(row["seed"] for row in leg["episodes"]) for leg in legs}) == 1
    assert legs[0]["episodes"] == legs[1]["episodes"] != legs[2]["episodes"]

    assert prereg("verdict", "E1") == 0
    verdict = next(line["data"] for line in bench.ledger() if line["event"] == "verdict")
    assert verdict["verdict"] == "INCONCLUSIVE"
    assert [reason for reason in verdict["reasons"] if "flow" in reason] == verdict["reasons"]
    assert verdict["reasons"][0].startswith("the guardrail read flow_hot is FAIL")
    assert prereg("verify", "E1") == 0
