"""Figures of a registration, held against the numbers that they stand for: positions are read back from the picture."""

import copy
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from vla_rl.prereg.document import read_registration
from vla_rl.prereg.evidence import Evidence
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.judging import evidence_files
from vla_rl.prereg.rules import RULES
from vla_rl.prereg.sections import Arm, Measurement
from vla_rl.report import curves, funnel, intervals
from vla_rl.report.figures import draw
from vla_rl.report.opened import Opened, opened
from vla_rl.report.svg import CHAR_PX, Scale, Svg, spanned, ticks
from vla_rl.stats.intervals import clopper_pearson

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def known():
    folder = Folder(EXPERIMENTS, "E001-learning")
    loaded = folder.load_as_written()
    return loaded, evidence_files(folder, loaded.entries)


def shapes(picture, cls):
    return [each for each in picture.iter() if each.get("class") == cls]


def points(shape):
    return [tuple(map(float, pair.split(","))) for pair in shape.get("points").split()]


def value_at(picture, x):
    """What a place on the axis stands for, by its ticks: a line through the outermost two."""
    places = sorted((float(tick.get("x")), float(tick.text)) for tick in shapes(picture, "x-tick"))
    (x0, v0), (x1, v1) = places[0], places[-1]
    return v0 + (x - x0) / (x1 - x0) * (v1 - v0)


def series(arm, successes, *, episodes=20):
    rows = tuple({"step": i + 1, "successes": k, "episodes": episodes} for i, k in enumerate(successes))
    return Evidence("training", arm, "series", rows=rows)


# ------------------------------------------------------------------------------------------------------------ intervals
def row(**changed):
    kept = {"read": "gain", "role": "primary", "status": "PASS", "unit": "cm", "estimate": 0.3, "low": -0.25,
            "high": 1.5, "level": 0.95, "n": 40, "line": 0.5}  # fmt: skip
    return intervals.Row(**{**kept, **changed})


@pytest.mark.parametrize("low, high, line", [(-0.25, 1.5, 0.5), (3.0, 3.2, 0.0), (-40.0, 900.0, -41.0)])
def test_an_interval_ends_where_its_numbers_lie_on_the_axis(low, high, line):
    estimate = (low + high) / 2
    picture = ET.fromstring(intervals.figure([row(low=low, high=high, line=line, estimate=estimate)], "E1", 1))
    tolerance = (high - low) / 100
    (bar,), (across,), (mark,) = (shapes(picture, cls) for cls in ("interval", "line", "estimate"))
    assert [value_at(picture, x) for x, _ in points(bar)] == pytest.approx([low, high], abs=tolerance)
    assert [value_at(picture, x) for x, _ in points(across)] == pytest.approx([line, line], abs=(high - line) / 100)
    middle = sum(x for x, _ in points(mark)) / 4
    assert value_at(picture, middle) == pytest.approx(estimate, abs=tolerance)


def test_reads_in_different_units_do_not_share_an_axis():
    data = intervals.figure([row(), row(read="a", unit="share of scenes"), row(read="b", line=None)], "E1", 5)
    text = data.decode()
    assert text.count(">cm</text>") == 1 and text.count(">share of scenes</text>") == 1
    assert "(3 of 5)" in text and "n: what the estimate" in text


@pytest.mark.parametrize("statistic, unit", [("count", "episodes"), ("share", "share of episodes"), ("mean", "cm")])
def test_a_difference_of_two_measurements_is_not_called_what_one_of_them_is(statistic, unit):
    metric = "success" if statistic != "mean" else "final_cm"
    one = RULES["threshold"]("a", metric, statistic, "above", 0.5)
    both = RULES["tolerance"]("a", "b", metric, statistic, 2)
    assert intervals.unit_of(one, {}, []) == unit
    assert intervals.unit_of(both, {}, []) == f"{unit}, a minus b"


def test_the_plot_holds_every_read_on_record_that_has_an_interval_and_no_other(known):
    loaded, found = known
    told = intervals.rows(loaded, opened(loaded.registration, found))
    assert [(row.read, row.unit) for row in told] == [
        ("success", "share of scenes, after minus before"), ("control", "share of scenes, after minus before"),
        ("progress", "cm, after minus before"),
    ]  # fmt: skip
    recorded = loaded.state.reads["success"]["outcome"]
    assert (told[0].estimate, [told[0].low, told[0].high], told[0].line) == (
        recorded["estimate"], recorded["interval"], 0.0,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- curves
def test_arms_that_differ_only_in_their_seed_are_one_curve_with_a_band(known):
    loaded, _ = known
    ids = {arm.label: arm.id for arm in loaded.registration.arms}
    of = {"baseline": [10, 10], "seed1": [12, 20], "seed2": [2, 0], "shuffled": [5, 5]}
    found = {
        ("training", None if name == "baseline" else ids[name]): series(
            None if name == "baseline" else ids[name], waves
        )
        for name, waves in of.items()
    }
    told = {curve.label: curve for curve in curves.training(loaded.registration, opened(loaded.registration, found))}
    assert {name: curve.seeds for name, curve in told.items()} == {"baseline": 3, "shuffled": 1}
    assert told["baseline"].episodes == (20, 20)
    # Shares of the first wave 0.5, 0.6, 0.1; means over both 0.5, 0.8, 0.05.
    assert told["baseline"].points[0] == pytest.approx((1, 0.4, 0.1, 0.6))
    assert told["baseline"].points[1] == pytest.approx((2, 0.45, 0.05, 0.8))
    picture = ET.fromstring(curves.figure(list(told.values()), [], "E1"))
    (band,) = shapes(picture, "band")
    heights = [y for _, y in points(band)]
    ys = sorted((float(t.get("y")) - 4, float(t.text)) for t in shapes(picture, "y-tick"))
    per_px = (ys[0][1] - ys[-1][1]) / (ys[0][0] - ys[-1][0])
    shares = [ys[0][1] + (y - ys[0][0]) * per_px for y in heights]
    assert shares == pytest.approx([60, 80, 5, 10], abs=0.3), "upper edge there, lower edge back"


def test_a_wave_counts_as_a_mean_over_five():
    assert curves.smoothed([(i, k, 10) for i, k in enumerate([0, 10, 0, 0, 0, 0, 10])]) == pytest.approx(
        {0: 0.0, 1: 0.5, 2: 1 / 3, 3: 0.25, 4: 0.2, 5: 0.2, 6: 0.2}
    )


def test_held_out_evaluations_start_at_the_base_and_carry_exact_intervals(known):
    loaded, found = known
    (panel,) = curves.held_out(loaded.registration, opened(loaded.registration, found))
    assert panel.scenes == "greedy, seeds 10000-10099, n = 100"
    assert dict(panel.lines) == {
        "baseline": ((0, 43, 100), (40, 62, 100)), "seed1": ((0, 43, 100), (40, 81, 100)),
        "seed2": ((0, 43, 100), (40, 62, 100)), "shuffled": ((0, 43, 100), (40, 21, 100)),
    }  # fmt: skip
    picture = ET.fromstring(curves.figure([], [panel], "E1"))
    ys = sorted((float(t.get("y")) - 4, float(t.text)) for t in shapes(picture, "y-tick"))
    per_px = (ys[0][1] - ys[-1][1]) / (ys[0][0] - ys[-1][0])
    last = points(next(s for s in shapes(picture, "interval") if "seed1, 40 updates: 81/100" in s[0].text))
    shares = [(ys[0][1] + (y - ys[0][0]) * per_px) / 100 for _, y in last]
    assert shares == pytest.approx(clopper_pearson(81, 100), abs=0.003)


def test_evaluations_on_other_scenes_or_at_another_temperature_get_no_common_line(known):
    loaded, found = known
    other = {**found, ("after", None): Evidence(**{**vars(found["after", None]), "temperature": 0.6})}
    panels = curves.held_out(loaded.registration, opened(loaded.registration, other))
    assert all("baseline" not in panel.lines for panel in panels), "the base was not evaluated like that"


def test_training_seeds_that_share_no_step_are_curves_of_their_own(known):
    loaded, _ = known
    first = next(arm.id for arm in loaded.registration.arms if arm.label == "seed1")
    late = Evidence("training", first, "series", rows=({"step": 9, "successes": 1, "episodes": 4},))
    found = {("training", None): series(None, [1, 2, 3]), ("training", first): late}
    told = curves.training(loaded.registration, opened(loaded.registration, found))
    assert [(curve.label, curve.seeds, len(curve.points)) for curve in told] == [("baseline", 1, 3), ("seed1", 1, 1)]
    assert len(shapes(ET.fromstring(curves.figure(told, [], "E1")), "curve")) == 2


def test_counts_of_other_scenes_and_episodes_of_another_protocol_get_no_common_line(known):
    loaded, found = known

    def counts(seeds, policy, step, k):
        evidence = Evidence("m", None, "counts", source={"step": step}, counts={"success": (k, 100)})
        return Opened(evidence, Measurement("m", policy=policy, seeds=seeds, rung="main"), None)

    def panels(*seen):
        return [dict(panel.lines) for panel in curves.held_out(loaded.registration, seen)]

    base, after = counts("10000-10099", "base", 0, 10), counts("10000-10049,10050-10099", "trained", 40, 90)
    assert panels(base, after) == [{"baseline": ((0, 10, 100), (40, 90, 100))}]
    assert panels(base, counts("10100-10199", "trained", 40, 90)) == []
    assert panels(counts("10100-10199", "base", 0, 10), base, after) == panels(base, after)
    told = opened(loaded.registration, {**found, ("after", None): Evidence(
        **{**vars(found["after", None]), "protocol": "sim100b-h15"})})  # fmt: skip
    assert all("baseline" not in panel for panel in panels(*told)), "the base was not evaluated in that protocol"


def test_points_and_names_of_many_policies_stay_in_their_panel():
    lines = {f"{i} of a sweep over a very long list of names of levers: {'x' * 80}": ((0, 1, 20), (20, i % 20, 20),
             (40, 3, 20)) for i in range(60)}  # fmt: skip
    picture = ET.fromstring(curves.figure([], [curves.HeldOut("greedy, seeds " + "300," * 90, lines)], "E1"))
    for line in shapes(picture, "curve"):
        assert [value_at(picture, x) for x, _ in points(line)] == pytest.approx([0, 20, 40], abs=3)
    told = [each.text for each in picture.iter(f"{SVG}text")]
    assert max(map(len, told)) * CHAR_PX < float(picture.get("width"))


# --------------------------------------------------------------------------------------------------------------- funnel
def test_the_funnel_counts_episodes_and_leaves_unknown_stages_open():
    episodes = tuple(
        {
            "seed": i,
            "touched": i < 8,
            "pinched": i < 6,
            "lifted": i < 3,
            "success": i < 2,
            "success_test": "success_strict",
        }
        for i in range(10)
    )
    full = Opened(Evidence("after", None, "episodes", episodes=episodes), None, None)
    counts = Opened(Evidence("handed", "a1", "counts", counts={"success": (3, 12)}), None, None)
    rows = funnel.rows([full, counts])
    assert rows[0].counts == ((8, 10), (6, 10), (3, 10), (2, 10)) and rows[0].test == "strict test"
    assert rows[1].counts == (None, None, None, (3, 12)) and rows[1].n == 12
    lines = funnel.markdown(rows)
    assert lines[2] == "| after | baseline | 10 | 8 (80 %) | 6 (60 %) | 3 (30 %) | 2 (20 %), strict test |"
    assert lines[3] == "| handed | a1 | 12 | – | – | – | 3 (25 %) |"
    picture = ET.fromstring(funnel.figure(rows, "E1"))
    widths = [float(bar.get("width")) for bar in shapes(picture, "bar")]
    assert [w / widths[0] for w in widths] == pytest.approx([1, 6 / 8, 3 / 8, 2 / 8, 0.25 / 0.8], abs=1e-3)


def test_excluded_episodes_are_in_no_figure(known):
    loaded, found = known
    document = copy.deepcopy(dict(loaded.effective.plain))
    document["exclusions"] = [{"id": "early", "measurement": "before", "field": "seed", "comparator": "below",
                               "value": 10010, "max_share": 0.5}]  # fmt: skip
    registration = read_registration(document, "test")
    told = funnel.rows(opened(registration, found))
    assert (told[0].n, told[0].excluded, told[1].n) == (90, 10, 100)
    assert "| before | base | 90 (10 excluded) |" in "\n".join(funnel.markdown(told))


# ------------------------------------------------------------------------------------------------------------ all of it
def test_the_same_evidence_gives_the_same_bytes_in_whatever_order_it_comes(known):
    loaded, found = known
    first, second = draw(loaded, found), draw(loaded, dict(reversed(found.items())))
    assert first.files == second.files and sorted(first.files) == [
        "report/curves.svg", "report/funnel.svg", "report/intervals.svg",
    ]  # fmt: skip


def test_without_evidence_there_is_no_figure_of_it(known):
    loaded, found = known
    assert "report/funnel.svg" not in draw(loaded, {}).files and "report/curves.svg" not in draw(loaded, {}).files
    sealed = {key: evidence for key, evidence in found.items() if key[1] is None}
    text = b"".join(draw(loaded, sealed).files[name] for name in ("report/curves.svg", "report/funnel.svg")).decode()
    assert "seed1" not in text and "shuffled" not in text and "baseline" in text


def test_every_figure_says_what_it_shows_without_being_seen_and_names_units_and_n(known):
    for name, data in draw(*known).files.items():
        picture = ET.fromstring(data)
        assert picture.find(f"{SVG}title").text and len(picture.find(f"{SVG}desc").text) > 40, name
        text = " ".join(each.text or "" for each in picture.iter(f"{SVG}text"))
        assert re.search(r"\bn = 100|\bn\b.*300", text), name
    text = draw(*known).files["report/curves.svg"].decode()
    assert ">GRPO step<" in text and "success, %" in text and "64 sampled episodes a wave" in text


@pytest.mark.parametrize(("kind", "policy", "told"), [
    ("recorded", "base", "base"), ("recorded", "trained", "baseline"), ("evaluation", "base", "base"),
])  # fmt: skip
def test_what_was_handed_in_of_the_base_is_not_told_of_a_trained_policy(kind, policy, told):
    evidence = Evidence("exam", None, "counts", counts={"success": (7, 100)})
    (row,) = funnel.rows([Opened(evidence, Measurement("exam", kind=kind, policy=policy), None)])
    assert row.policy == told


def test_a_measurement_that_an_amendment_took_away_is_still_told():
    each = Opened(Evidence("old", "abc", "counts", counts={"success": (1, 2)}), None, None)
    assert (each.policy, each.step, each.base) == ("abc", None, False)
    base = Opened(each.evidence, Measurement("old", policy="base"), None)
    assert (base.policy, base.step) == ("base", 0)


# ------------------------------------------------------------------------------------------------------------------ svg
@pytest.mark.parametrize("low, high", [(0, 1), (-0.37, 0.41), (1e-5, 3e-5), (-1000, 12), (0, 40)])
def test_ticks_are_round_inside_and_some(low, high):
    found = ticks(low, high)
    assert 3 <= len(found) <= 11 and all(low - 1e-9 <= t <= high + 1e-9 * abs(high) + 1e-12 for t in found)
    step = found[1] - found[0]
    assert all(b - a == pytest.approx(step) for a, b in zip(found, found[1:], strict=False))


def test_a_scale_is_linear_and_one_value_makes_a_range():
    assert [Scale(0, 10, 100, 200)(v) for v in (0, 5, 10)] == [100, 150, 200]
    for values in ([3.0], [0.0], [-2.0, -2.0]):
        low, high = spanned(values)
        assert low < values[0] < high


def test_text_of_people_does_not_break_the_picture():
    svg = Svg(100, 50, 'a <b> & "c"', "d < e")
    svg.text(0, 10, "x < y & z")
    svg.line([(0, 0), (1, 1)], tip="<&>")
    picture = ET.fromstring(svg.bytes())
    assert [each.text for each in picture.iter(f"{SVG}text")] == ["x < y & z"]


@pytest.mark.parametrize("name", ["a|b <i>", "two\nlines", "a\x07bell", "x](http://example.org)", "\ufffe", '"&"'])
def test_whatever_an_arm_is_called_table_and_figure_stay_whole(name):
    seen = Opened(Evidence("after", "a1", "counts", counts={"success": (3, 12)}), None, Arm("a1", name))
    rows = funnel.rows([seen])
    (_, _, line), picture = funnel.markdown(rows), ET.fromstring(funnel.figure(rows, "E1"))
    assert len(re.findall(r"(?<!\\)\|", line)) == 8 and "\n" not in line and "<" not in line
    assert len(shapes(picture, "bar")) == 1
