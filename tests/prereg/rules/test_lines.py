"""Thresholds, consecutive rows, recorded numbers."""

import dataclasses

import pytest

from vla_rl.errors import ConfigError
from vla_rl.prereg.rules import Planned
from vla_rl.prereg.rules.counts import BinomialTail, Interval
from vla_rl.prereg.rules.lines import Record, Threshold, Window


@pytest.mark.parametrize(
    ("metric", "statistic", "comparator", "line", "status"),
    [
        ("strikes", "sum", "equals", 0, "FAIL"),
        ("success", "count", "at_least", 1, "PASS"),
        ("success", "share", "above", 0.25, "FAIL"),
        ("success", "share", "at_least", 0.25, "PASS"),
        ("progress_cm", "mean", "below", 2.0, "PASS"),  # (0 + 1 + 2 + 4) / 4 = 1.75
        ("progress_cm", "median", "equals", 1.5, "PASS"),
        ("progress_cm", "min", "above", 0.0, "FAIL"),
        ("progress_cm", "max", "at_most", 4, "PASS"),
        ("progress_cm", "range", "below", 4, "FAIL"),
    ],
)
def test_statistics_of_four_episodes(make, metric, statistic, comparator, line, status):
    evidence = make.episodes(
        "m",
        success={0: True, 1: False, 2: False, 3: False},
        strikes={0: 0, 1: 0, 2: 3, 3: 0},
        progress_cm={0: 0.0, 1: 1.0, 2: 2.0, 3: 4.0},
    )
    outcome = Threshold("m", metric, statistic, comparator, line).judge(make.context(evidence))
    assert outcome.status == status and outcome.n == 4


def test_a_share_at_the_very_line_is_decided_as_written(make):
    for k, n, line in ((2, 25, 0.08), (7, 100, 0.07), (6, 20, 0.3)):
        context = make.context(make.recorded("m", success=(k, n)))
        assert Threshold("m", "success", "share", "at_least", line).judge(context).status == "PASS"
        assert Threshold("m", "success", "share", "above", line).judge(context).status == "FAIL"


def test_the_outcome_of_a_count_tells_its_exact_interval_and_that_of_a_mean_its_bootstrap(make):
    context = make.context(make.successes("m", (), range(20)))
    outcome = Threshold("m", "success", "count", "at_least", 1).judge(context)
    assert outcome.interval == (0.0, pytest.approx(20 * 0.1684, abs=2e-3)) and outcome.level == 0.95
    mean = Threshold("m", "x", "mean", "above", 0.0).judge(
        make.context(make.episodes("m", x={s: 2.0 for s in range(5)}))
    )
    assert mean.interval == (2.0, 2.0) and "no power" in mean.line()


def test_the_documented_smoke_gates_of_a_two_step_run(make):
    rows = make.series(
        "r0",
        median_group_std_cm=[4.17, 0.31],
        groups_kept=[8, 3],
        mean_ratio=[1.00138, 1.02],
        clip_fraction=[0.132, 0.19],
        vram_gib=[70.93, 76.5],
        anchor_kl=[0.0215, 0.0885],
    )
    context = make.context(rows, planned={"r0": Planned("series", steps=2)})
    gates = {
        Threshold("r0", "median_group_std_cm", "min", "at_least", 0.25): "PASS",
        Threshold("r0", "groups_kept", "sum", "at_least", 8): "PASS",
        Threshold("r0", "mean_ratio", "min", "at_least", 0.95): "PASS",
        Threshold("r0", "mean_ratio", "max", "at_most", 1.05): "PASS",
        Threshold("r0", "clip_fraction", "max", "below", 0.2): "PASS",
        Threshold("r0", "vram_gib", "max", "below", 75): "FAIL",
        Threshold("r0", "anchor_kl", "max", "at_most", 0.06): "FAIL",
        Threshold("r0", "anchor_kl", "first", "at_most", 0.06): "PASS",
        Threshold("r0", "anchor_kl", "last", "at_most", 0.06): "FAIL",
        Threshold("r0", "anchor_kl", "mean", "at_most", 0.06, last=1): "FAIL",
    }
    for gate, status in gates.items():
        assert gate.judge(context).status == status and not gate.impossible(context), gate


def test_what_does_not_apply_is_left_out_of_counts_and_shares_if_that_is_registered(make):
    """Five episodes, two of them without an answer; three waves of ten, one without a share."""
    episodes = make.episodes("m", lifted={0: True, 1: False, 2: None, 3: True, 4: None})
    rows = make.series("r", episodes=[10, 10, 10], tip_frac=[0.5, None, 0.2])
    context = make.context(episodes, rows)
    for statistic, line in (("count", 2), ("share", 2 / 3)):
        rule = Threshold("m", "lifted", statistic, "at_least", line)
        assert rule.judge(context).status == "INVALID"
        outcome = dataclasses.replace(rule, nulls="skip").judge(context)
        assert (outcome.n, outcome.details["absent"], outcome.estimate) == (3, 2, pytest.approx(line))
        assert "lifted 2/3" in outcome.sentence and "(2 episodes left out)" in outcome.sentence
    rule = Threshold("r", "tip_frac", "count", "equals", 7)
    assert rule.judge(context).status == "MISSING"
    outcome = dataclasses.replace(rule, nulls="skip").judge(context)
    assert (outcome.status, outcome.n, outcome.details["absent"]) == ("PASS", 20, 1)
    outcome = dataclasses.replace(rule, nulls="skip", last=2, line=2).judge(context)
    assert (outcome.status, outcome.n, outcome.details["absent"]) == ("PASS", 10, 1)
    assert dataclasses.replace(rule, nulls="skip", last=1, metric="none").judge(context).status == "MISSING"


@pytest.mark.parametrize("payload", [{"success": (3, 20)}, {"success": 0.5}])
def test_there_are_no_last_rows_of_recorded_counts_and_numbers(make, payload):
    context = make.context(make.recorded("m", **payload))
    for rule in (Interval("m", 0.5, last=5), BinomialTail("m", 0.5, last=5), Record("m", "success", "count", last=5)):
        outcome = rule.judge(context)
        assert outcome.status == "INVALID" and "no rows of which to take the last 5" in outcome.sentence
    assert any("no rows" in why for why in Record("m", "success", "value", last=5).impossible(context))


def test_a_run_with_fewer_rows_than_registered_is_missing(make):
    context = make.context(make.series("r0", loss=[0.1]), planned={"r0": Planned("series", steps=2)})
    assert Threshold("r0", "loss", "last", "below", 1.0).judge(context).status == "MISSING"


def test_the_documented_budget_and_wave_zero_gates_read_recorded_numbers(make):
    context = make.context(make.recorded("launch", gpu_h=18.5, mixed_groups_frac=0.0), constants={"gate": 20.0})
    assert Threshold("launch", "gpu_h", "value", "at_most", "gate").judge(context).status == "PASS"
    mixed = Threshold("launch", "mixed_groups_frac", "value", "at_least", 0.2)
    assert mixed.judge(context).status == "FAIL"
    assert Threshold("launch", "wall_h", "value", "at_most", 1).judge(context).status == "MISSING"


def test_where_a_metric_does_not_apply_the_read_is_invalid_unless_it_is_registered_to_skip(make):
    context = make.context(make.episodes("m", carry_speed_cm_s={0: None, 1: 0.5, 2: 1.5}))
    assert Threshold("m", "carry_speed_cm_s", "median", "above", 0.8).judge(context).status == "INVALID"
    skipping = Threshold("m", "carry_speed_cm_s", "median", "above", 0.8, nulls="skip").judge(context)
    assert (skipping.status, skipping.n, skipping.estimate) == ("PASS", 2, 1.0) and "2 of 3" in skipping.sentence
    rows = make.context(make.series("t", eval_s=[1.0, None, 3.0]))
    assert Threshold("t", "eval_s", "sum", "equals", 4, nulls="skip").judge(rows).status == "PASS"
    assert Threshold("t", "eval_s", "sum", "equals", 4).judge(rows).status == "INVALID"


@pytest.mark.parametrize(
    ("statistic", "comparator", "line", "told"),
    [
        ("count", "at_least", 21, "never PASS"),
        ("count", "above", 20, "never PASS"),
        ("count", "at_least", 0, "never FAIL"),
        ("count", "at_most", 20, "never FAIL"),
        ("count", "equals", 2.5, "never PASS"),
        ("share", "above", 1.0, "never PASS"),
        ("share", "at_most", 1.0, "never FAIL"),
        ("value", "above", 1.0, "no recorded number"),
        ("last", "above", 1.0, "evaluation"),
    ],
)
def test_thresholds_that_decide_nothing_are_refused(make, statistic, comparator, line, told):
    rule = Threshold("m", "success", statistic, comparator, line)
    [fault] = rule.impossible(make.context(planned={"m": make.evaluation(20)}))
    assert told in fault


def test_thresholds_inside_their_range_are_sound(make):
    context = make.context(planned={"m": make.evaluation(20)})
    for comparator in ("above", "at_least", "at_most", "below", "equals"):
        assert not Threshold("m", "success", "count", comparator, 3).impossible(context)


def test_three_rows_in_a_row_beyond_the_line_fire_and_two_do_not(make):
    wire = Window("t", "knockaway_frac", "above", 3, line=0.167)
    quiet = wire.judge(make.context(make.series("t", knockaway_frac=[0.2, 0.2, 0.1, 0.2, 0.2])))
    fired = wire.judge(make.context(make.series("t", knockaway_frac=[0.1, 0.2, 0.2, 0.2, 0.1])))
    assert (quiet.status, quiet.label, quiet.estimate) == ("PASS", "QUIET", 2.0)
    assert (fired.status, fired.label, fired.details["fired_at"]) == ("FAIL", "FIRED", 4)


def test_a_row_without_a_reading_leaves_the_streak_as_it_is(make):
    wire = Window("t", "median_group_std_cm", "below", 2, line=0.05)
    assert wire.judge(make.context(make.series("t", median_group_std_cm=[0.01, None, 0.02]))).status == "FAIL"
    assert wire.judge(make.context(make.series("t", median_group_std_cm=[0.01, None, 0.2]))).status == "PASS"


def test_a_line_from_the_first_row_exempts_that_row(make):
    wire = Window("t", "knockaway_frac", "above", 2, times_first=2.0)
    fired = wire.judge(make.context(make.series("t", knockaway_frac=[0.2, 0.41, 0.5])))
    at_line = wire.judge(make.context(make.series("t", knockaway_frac=[0.2, 0.4, 0.5])))
    assert (fired.status, at_line.status) == ("FAIL", "PASS") and fired.details["line"] == 0.4


def test_the_first_row_does_not_count_towards_its_own_line(make):
    wire = Window("t", "knockaway_frac", "at_least", 2, times_first=1.0)
    assert wire.judge(make.context(make.series("t", knockaway_frac=[0.2, 0.2, 0.1]))).status == "PASS"
    assert wire.judge(make.context(make.series("t", knockaway_frac=[None, 0.2, 0.2, 0.3]))).status == "FAIL"


def test_three_rows_in_a_row_cannot_fire_in_a_two_step_rung(make):
    two, three = (make.context(planned={"t": Planned("series", steps=n)}) for n in (2, 3))
    wire = Window("t", "knockaway_frac", "above", 3, line=0.167)
    assert "3 rows in a row of 2 rows" in wire.impossible(two)[0] and not wire.impossible(three)
    from_first = Window("t", "knockaway_frac", "above", 3, times_first=2.0)
    assert "exempt" in from_first.impossible(three)[0]
    assert "no series" in wire.impossible(make.context(planned={"t": make.evaluation(20)}))[0]


@pytest.mark.parametrize("wrong", [{}, {"line": 1.0, "times_first": 2.0}, {"line": 1.0, "consecutive": 0}])
def test_a_window_needs_one_line_and_one_row(wrong):
    with pytest.raises(ConfigError):
        Window("t", "x", "above", **{"consecutive": 3, **wrong})


def test_a_recorded_number_decides_nothing(make):
    rule = Record("m", "success", "count")
    outcome = rule.judge(make.context(make.recorded("m", success=(3, 20))))
    assert (outcome.status, outcome.label, outcome.estimate) == ("PASS", "RECORDED", 3.0) and rule.RECORD_ONLY
    assert rule.judge(make.context(planned={"m": make.evaluation(20)})).status == "MISSING"
