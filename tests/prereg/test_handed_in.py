"""Data that is handed in: of what it has to be, and how often one file can count."""

import json

import pytest
from bench import DRAFT, prereg, refused
from test_record import WORDS, evaluated, hand_in, loaded, record
from test_recorded import TEXT

from vla_rl.cli import sweep
from vla_rl.prereg.folder import Folder

SEEDS = (
    DRAFT.replace("unit: episode", "unit: training_seed")
    .replace("wall_h: 1.0", "wall_h: 9.0")
    .replace("policy: trained}", "policy: trained, arm: '*'}")
    .replace("kind: paired_bootstrap", "kind: cluster_bootstrap")
    + "levers: {run.seed: [1, 2]}\n"
)

STATED = "{kind: stated_interval, measurement: spend, metric: hours, line: 0.0}"


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


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'{{"values": {{"hours": {HUGE}}}}}', "values.hours"),
        (f'{{"values": {{"hours": 1.0}}, "temperature": {HUGE}}}', "temperature"),
        (f'{{"counts": {{"hours": [1, {HUGE}]}}}}', "counts.hours"),
        (f'{{"rows": [{{"step": 1, "hours": {HUGE}}}]}}', "rows[0].hours"),
        ('{"values": {"hours": 1.0}, "source": {"page": NaN}}', "source.page"),
        ('{"values": {"hours": 1.0}, "source": {"page": "\\ud800"}}', "no plain data"),
        ('{"episodes": [{"seed": 1, "more": {"x": Infinity}}]}', "episodes[0].more.x"),
        ("[" * 100_000, "cannot be read"),
        ('{"values": {"hours": 1.0}, "source": {"a": ' + "[" * 960 + "]" * 960 + "}}", "nested too deeply"),
    ],
    ids=["number", "temperature", "count", "row", "nan in source", "half a character", "inf", "brackets", "depth"],
)
def test_what_cannot_be_stored_or_computed_with_is_refused_before_anything_is_opened(active, capsys, text, says):
    path = active.root / "outputs" / "handed.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    refused(capsys, 2, "read", "E1", "money", "--from", str(path), says=says)
    assert active.events()[-1] == "activated" and not (active.folder() / "evidence").exists()


@pytest.mark.parametrize("n", [0, -3, 2.5])
def test_a_stated_interval_rests_on_a_number_of_observations(bench, n):
    text = DRAFT.replace("{kind: record, measurement: spend, metric: hours, statistic: value}", STATED)
    bench.frozen("E1", text.replace("role: record", "role: secondary"))
    values = {"hours": 1.0, "hours_low": 0.5, "hours_high": 2.0, "hours_n": n}
    assert prereg("read", "E1", "money", *hand_in(bench, values=values)) == 0
    assert bench.ledger()[-1]["data"]["outcome"]["status"] == "INVALID"


def test_rows_cover_the_scenes_that_are_registered_as_counts_do(bench):
    bench.frozen("E1", TEXT)
    assert prereg("read", "E1", "exam", *hand_in(bench, rows=[{"step": 1, "success": 30, "episodes": 600}])) == 0
    judged = bench.ledger()[-1]["data"]
    assert judged["decision"] == "ABORT" and "over 600 episodes, not the registered 6" in judged["outcome"]["sentence"]


def test_rows_of_other_steps_than_the_run_has_are_not_judged(bench):
    bench.frozen("E1", DRAFT, "run.steps=2")
    assert record() == 0
    rows = [{"step": step, "clip_fraction": 0.1} for step in (11, 12)]
    assert prereg("read", "E1", "clip", *hand_in(bench, rows=rows)) == 0
    outcome = bench.ledger()[-1]["data"]["outcome"]
    assert outcome["status"] == "INVALID" and "a row of step 11, and 2 are registered" in outcome["sentence"]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"values": {"other": 1.0}}, "spend records no number hours"),
        ({"counts": {"hours": [0, 0]}}, "spend records no number hours"),
        ({"rows": [{"step": 1, "hours": 1.0}]}, "spend records no number hours"),
    ],
    ids=["another name", "counts", "rows"],
)
def test_a_file_that_the_read_cannot_be_judged_by_is_not_opened(active, capsys, payload, says):
    refused(capsys, 4, "read", "E1", "money", *hand_in(active, **payload), says=(says, "the file was not opened"))
    assert active.events()[-1] == "activated"
    assert prereg("read", "E1", "money", *hand_in(active, values={"hours": 1.0})) == 0


def test_half_of_the_scenes_are_not_opened(active, capsys):
    assert record() == 0
    half = evaluated(active, "before", 1.0, range(10000, 10003))
    refused(capsys, 4, "read", "E1", "progress", *half, says="before holds 3 of 6 registered seeds")
    assert "look" not in active.events()
    assert prereg("read", "E1", "progress", *evaluated(active, "before", 1.0), *evaluated(active, "after", 3.0)) == 0


def test_nobody_chooses_between_two_files_of_one_measurement(active, capsys):
    assert record() == 0
    better = active.root / "outputs" / "better.json"
    before, after = evaluated(active, "before", 1.0), evaluated(active, "after", 1.0)
    better.write_text((active.root / "outputs" / "after.json").read_text().replace("1.0", "9.0"))
    files = (*before, "--from", str(better), *after)
    refused(capsys, 2, "read", "E1", "progress", *files, says=("2 files are of after", "better.json and"))
    assert "read" not in active.events()


def test_what_is_on_record_takes_no_other_numbers_and_no_more_hours(active, capsys):
    assert prereg("read", "E1", "money", *hand_in(active, values={"hours": 1.0})) == 0
    other = hand_in(active, values={"hours": 0.1})
    refused(capsys, 0, "read", "E1", "money", *other, says="hours 1;")
    refused(capsys, 2, "read", "E1", "money", *other, "--wall-h", "0.5", says="these hours would not be counted")
    assert active.events().count("look") == active.events().count("read") == 1


def test_a_sweep_begins_anew_where_other_software_left_nothing(active, capsys):
    assert record(how="failed") == 0
    assert prereg("amend", "E1", "--set", "summary=mended", *WORDS, "training") == 0
    active.commit("Amend E1")
    folder = Folder(active.experiments, "E1")
    (job,) = sweep._jobs(folder, folder.load(), "main")
    assert "--resume" not in job.start
