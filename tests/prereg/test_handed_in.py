"""Data that is handed in: of what it has to be, and how often one file can count."""

import json

from bench import DRAFT, prereg, refused
from test_record import evaluated, hand_in, loaded, record

SEEDS = (
    DRAFT.replace("unit: episode", "unit: training_seed")
    .replace("wall_h: 1.0", "wall_h: 9.0")
    .replace("policy: trained}", "policy: trained, arm: '*'}")
    .replace("kind: paired_bootstrap", "kind: cluster_bootstrap")
    + "levers: {run.seed: [1, 2]}\n"
)


def of_arm(bench, arm, reward):
    """A file with the evaluation of one arm."""
    path = bench.root / "outputs" / f"{arm}.json"
    episodes = [{"seed": s, "progress_final_cm": reward + s % 2} for s in range(10000, 10006)]
    path.write_text(json.dumps({"measurement": "after", "arm": arm, "episodes": episodes}))
    return "--from", str(path)


def test_one_file_is_not_the_evidence_of_several_training_seeds(bench, capsys):
    bench.frozen("E1", SEEDS)
    arms = [arm.label for arm in loaded(bench).registration.arms]
    for arm in arms:
        assert record("--arm", arm) == 0
    before, after = evaluated(bench, "before", 1.0), evaluated(bench, "after", 3.0)
    says = ("the data of after, arm baseline, has to be handed in", '"measurement": "after", "arm": "baseline"')
    refused(capsys, 4, "read", "E1", "progress", *before, *after, says=says)
    assert [line["data"]["evidence"] for line in bench.ledger() if line["event"] == "look"] == ["before"]
    each = [word for i, arm in enumerate(arms) for word in of_arm(bench, arm, 2.0 + i)]
    assert prereg("read", "E1", "progress", *each) == 0
    means = bench.ledger()[-1]["data"]["outcome"]["details"]["means"]
    assert sorted(means.values()) == [1.0, 2.0, 3.0] and prereg("verify", "E1") == 0


def test_a_file_of_another_arm_is_not_taken(bench, capsys):
    bench.frozen("E1", SEEDS)
    for arm in loaded(bench).registration.arms:
        assert record("--arm", arm.label) == 0
    files = (*evaluated(bench, "before", 1.0), *of_arm(bench, "baseline", 3.0), *of_arm(bench, "seed=7", 3.0))
    refused(capsys, 4, "read", "E1", "progress", *files, says="the data of after, arm seed=1, has to be handed in")


def test_a_measurement_of_one_arm_need_not_name_it(bench):
    bench.frozen("E1", DRAFT.replace("kind: recorded}", "kind: recorded, arm: seed=1}") + "levers: {run.seed: [1]}\n")
    assert prereg("read", "E1", "money", *hand_in(bench, "spend", values={"hours": 1.0})) == 0
