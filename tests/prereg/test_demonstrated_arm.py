"""A control of extra supervision is an arm of a registration: plain keys, pinned demonstrations, the same budget."""

import json

import pytest
from bench import DRAFT, prereg, refused

from vla_rl.cli.main import main

ARM = """\
arms:
  - label: supervised
    set: {experience.demos: outputs/demos, experience.rows: 8, experience.recipe_sha256: RECIPE, loss.weighting: token}
"""


@pytest.mark.slow
def test_an_arm_of_extra_supervision_is_launched_and_its_demonstrations_are_the_registered_ones(bench, capsys):
    outputs = bench.root / "outputs"
    outputs.mkdir()
    for name, seeds in (("demos", "100000"), ("others", "100001")):
        recorded = ("demos.shard_episodes=1", "demos.workers=1", "demos.miss_share=0", "sim.max_ticks=900")
        assert main(["demos", f"demos.seeds={seeds}", *recorded, f"run.dir={outputs / name}"]) == 0
    recipe = json.loads((outputs / "demos" / "summary.json").read_text())["recipe_sha256"]
    draft = DRAFT.replace("wall_h: 1.0", "wall_h: 9.0")
    bench.frozen("E1", draft + ARM.replace("RECIPE", recipe))
    (outputs / "demos").rename(outputs / "kept")
    (outputs / "others").rename(outputs / "demos")
    refused(capsys, 4, "launch", "E1", "--arm", "supervised", says=(f"registered is {recipe}", "the recipe of"))
    assert prereg("launch", "E1", "--check") == 0  # the baseline plays waves
    (outputs / "demos").rename(outputs / "others")
    refused(capsys, 4, "launch", "E1", "--arm", "supervised", says="there are no demonstrations in outputs/demos")
    (outputs / "kept").rename(outputs / "demos")
    assert prereg("launch", "E1", "--arm", "supervised") == 0, capsys.readouterr().err
    launched, ended = (line["data"] for line in bench.ledger()[-2:])
    assert (ended["how"], ended["step"]) == ("finished", 1)
    run = bench.root / launched["run"]
    noted = json.loads((run / "manifest.json").read_text())["launches"][-1]
    assert noted["demonstrations"]["recipe_sha256"] == recipe
    assert noted["registered"]["arm"] == launched["arm"] != "baseline"
    (row,) = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
    assert row["rows"] == 8 and row["successes"] is None
