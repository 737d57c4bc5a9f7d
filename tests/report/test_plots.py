"""Charts of a page, held against the numbers that they stand for: positions are read back from the picture."""

import xml.etree.ElementTree as ET

import pytest

from vla_rl.report.page.model import Section, Text, gathered
from vla_rl.report.page.plots import MOST_COLUMNS, MOST_PAIRS, Lines, Pair, Pairs, Series, Stack, draw, thinned
from vla_rl.report.page.steps import drift, learning

SVG = "{http://www.w3.org/2000/svg}"


def picture(plot):
    return ET.fromstring(draw(plot))


def shapes(picture, cls):
    return [each for each in picture.iter() if each.get("class") == cls]


def points(shape):
    return [tuple(map(float, pair.split(","))) for pair in shape.get("points").split()]


def axis(picture, which, *, log=False):
    """From pixels to values, by the outermost two ticks."""
    at = {"x": lambda t: float(t.get("x")), "y": lambda t: float(t.get("y")) - 4}[which]
    places = sorted((at(t), float(t.text)) for t in shapes(picture, f"{which}-tick"))
    (p0, v0), (p1, v1) = places[0], places[-1]
    if log:
        return lambda p: v0 * (v1 / v0) ** ((p - p0) / (p1 - p0))
    return lambda p: v0 + (p - p0) / (p1 - p0) * (v1 - v0)


def test_points_bands_and_intervals_lie_where_their_numbers_are():
    series = Series("a", [(0, 10.0), (10, 60.0), (20, 40.0)], [(0, 5.0, 20.0), (10, 50.0, 70.0), (20, 30.0, 45.0)])
    made = picture(Lines("t", "step", "%", [series], (0.0, 100.0)))
    x, y = axis(made, "x"), axis(made, "y")
    ((curve,), (band,)) = shapes(made, "curve"), shapes(made, "band")
    assert [(x(px), y(py)) for px, py in points(curve)] == [pytest.approx(p, abs=0.3) for p in series.points]
    there_and_back = [20, 70, 45, 30, 50, 5]
    assert [y(py) for _, py in points(band)] == pytest.approx(there_and_back, abs=0.3)
    bars = Series("b", [(0, 50.0), (20, 80.0)], bars=[(0, 40.0, 60.0), (20, 70.0, 95.0)])
    made = picture(Lines("t", "updates", "%", [bars], (0.0, 100.0)))
    y = axis(made, "y")
    assert [[y(py) for _, py in points(bar)] for bar in shapes(made, "interval")] == [
        pytest.approx([40, 60], abs=0.3), pytest.approx([70, 95], abs=0.3),
    ]  # fmt: skip


def test_many_policies_stay_in_their_panel_and_begin_at_one_base():
    series = [Series(f"arm {i}", [(0, 45.0), (30, float(i))], bars=[(0, 40.0, 50.0), (30, 0.0, 50.0)], ink=i)
              for i in range(14)]  # fmt: skip
    made = picture(Lines("t", "updates", "%", series, (0.0, 100.0)))
    ends = [points(curve) for curve in shapes(made, "curve")]
    assert len({start for start, _ in ends}) == 1
    assert len({round(x) for _, (x, _) in ends}) == 14, "side by side"
    assert max(x for _, (x, _) in ends) < float(made.get("width")) - 8


def test_values_that_are_far_apart_lie_by_their_logarithm_and_the_chart_says_so():
    rows = [{"step": i, "anchor_kl": 100.0 if i == 7 else 0.01 * i, "approx_kl": 0.0} for i in range(1, 21)]
    (chart,) = [chart for chart in drift({"": rows}) if chart.name == "kl"]
    made = picture(chart.plot)
    y = axis(made, "y", log=True)
    told = [y(py) for _, py in points(shapes(made, "curve")[0])]
    assert told == pytest.approx([row["anchor_kl"] for row in rows], rel=0.02)
    assert "logarithmic" in chart.note and len(chart.plot.series) == 1, "a line of zeros cannot be drawn"
    assert [row[2] for row in chart.table.rows] == [0.0] * 20, "and is in the table"


def test_parts_of_a_stack_add_up():
    made = picture(Stack("t", "step", "s", ["a", "b"], [(1, [10.0, 5.0]), (2, [20.0, 0.0]), (3, [0.0, 4.0])]))
    y = axis(made, "y")
    spans = [(y(float(r.get("y")) + float(r.get("height"))), y(float(r.get("y")))) for r in shapes(made, "part")]
    assert spans == [pytest.approx(s, abs=0.2) for s in [(0, 10), (10, 15), (0, 20), (0, 4)]]


def test_many_columns_become_means_that_keep_the_whole():
    columns = [(i, [float(i), 1.0]) for i in range(1, 161)]
    told = thinned(columns)
    assert len(told) == MOST_COLUMNS and told[0] == (1, [1.5, 1.0])
    assert sum(a for _, (a, _) in told) * 2 == sum(range(1, 161))
    assert thinned(columns[:3]) == [(i, [float(i), 1.0]) for i in (1, 2, 3)]


def test_scenes_are_told_in_the_order_of_their_change():
    pairs = [Pair(1, 0.0, 5.0, False, True), Pair(2, 9.0, 1.0, True, False), Pair(3, 2.0, 2.0, None, None)]
    made = picture(Pairs("t", "cm", pairs))
    y = axis(made, "y")
    lines = [[y(py) for _, py in points(line)] for line in shapes(made, "pair")]
    assert lines == [pytest.approx(p, abs=0.1) for p in [(9, 1), (2, 2), (0, 5)]]
    assert [line[0].text for line in shapes(made, "pair")][0] == "seed 2: 9.00 (success) to 1.00 (no success)"
    assert "1 rose and 1 fell" in made.find(f"{SVG}desc").text


def test_of_very_many_scenes_some_are_drawn():
    plot = Pairs("t", "cm", [Pair(i, 0.0, float(i)) for i in range(3 * MOST_PAIRS)])
    assert len(plot.drawn()) == MOST_PAIRS and len(shapes(picture(plot), "pair")) == MOST_PAIRS


@pytest.mark.parametrize("rows", [
    [{"step": 1, "successes": 1, "episodes": 2, "reward_mean": 1.0}],
    [{"step": 5, "successes": 0, "episodes": 4, "reward_mean": 0.0}, {"step": 9, "successes": 0, "episodes": 4}],
])  # fmt: skip
def test_a_single_step_makes_a_picture(rows):
    for chart in learning({"": rows}):
        made = picture(chart.plot)
        assert made.find(f"{SVG}title").text and len(made.find(f"{SVG}desc").text) > 20
        assert "nan" not in draw(chart.plot).decode().lower()


def test_the_band_of_a_learning_curve_holds_the_waves_that_its_line_is_the_mean_of():
    rows = [{"step": i + 1, "successes": k, "episodes": 10} for i, k in enumerate([0, 10, 5, 5, 5, 5, 5])]
    (chart,) = learning({"": rows})
    line, band = dict(chart.plot.series[0].points), {x: ends for x, *ends in chart.plot.series[0].band}
    assert line[2] == 50.0 and band[2] == [0.0, 100.0] and line[7] == 50.0 and band[7] == [50.0, 50.0]


def test_parts_that_are_empty_are_told_together_and_others_stay():
    empty, full = Section("a", "A", [Text("no", "open")]), Section("b", "B", [Text("yes")])
    assert gathered([empty, full]) == [empty, full]
    told = gathered([full, empty, full, Section("c", "C", [Text("none", "open")])])
    assert [s.id for s in told] == ["b", "not-told", "b"] and told[1].blocks[0].items == ["A: no", "C: none"]
