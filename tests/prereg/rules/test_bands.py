"""Named bands: the documented preflight, and what overlaps or leaves a gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.errors import ConfigError
from vla_rl.prereg.rules import Context, Planned
from vla_rl.prereg.rules.bands import Band, Bands

PREFLIGHT = [
    Band("ABORT", "FAIL", at_most=2),
    Band("BAND", "INCONCLUSIVE", at_least=3, at_most=6),
    Band("PASS", "PASS", at_least=7),
]


def preflight(bands=PREFLIGHT, **changes):
    return Bands("leg0", "success", "count", list(bands), **changes)


@pytest.mark.parametrize(
    ("k", "label", "status", "tail"),
    [
        (0, "ABORT", "FAIL", 0.93**100),
        (2, "ABORT", "FAIL", 0.0257885),
        (3, "BAND", "INCONCLUSIVE", 0.0744),
        (6, "BAND", "INCONCLUSIVE", None),
        (7, "PASS", "PASS", None),
        (8, "PASS", "PASS", None),  # what was measured
    ],
)
def test_the_documented_preflight(make, k, label, status, tail):
    context = make.context(
        make.recorded("leg0", success=(k, 100)), planned={"leg0": Planned("recorded", tuple(range(100)))}
    )
    outcome = preflight(rate=0.07).judge(context)
    assert (outcome.label, outcome.status, outcome.n, outcome.estimate) == (label, status, 100, k)
    if tail is not None:
        assert outcome.details["p_at_most"] == pytest.approx(tail, abs=5e-5 if k == 3 else 1e-7)
    assert sum(outcome.details["chances"].values()) == pytest.approx(1.0)
    assert outcome.details["chances"]["ABORT"] == pytest.approx(0.0257885, abs=1e-7)
    assert f"P(X <= {k} | Binomial(100, 0.07))" in outcome.sentence


def test_power_is_the_chance_of_the_passing_bands_at_the_smallest_effect(make):
    outcome = preflight(rate=0.07).judge(
        make.context(make.recorded("leg0", success=(8, 100)), smallest_effect=0.05, effect_of={"success"})
    )
    assert outcome.power == pytest.approx(0.9633, abs=1e-4) and outcome.effect == 0.05  # P(X >= 7 | 0.12)


def test_the_documented_preflight_is_sound_and_its_neighbours_are_not(make):
    context = make.context(planned={"leg0": make.evaluation(100)})
    assert preflight().impossible(context) == []
    gap = preflight([PREFLIGHT[0], Band("BAND", "INCONCLUSIVE", at_least=4, at_most=6), PREFLIGHT[2]])
    assert gap.impossible(context) == ["count 3 lies in no band"]
    overlap = preflight([PREFLIGHT[0], Band("BAND", "INCONCLUSIVE", at_least=2, at_most=6), PREFLIGHT[2]])
    assert overlap.impossible(context) == ["count 2 lies in several bands (ABORT, BAND)"]
    open_end = preflight([PREFLIGHT[0], PREFLIGHT[1], Band("PASS", "PASS", at_least=7, at_most=99)])
    assert open_end.impossible(context) == ["count 100 lies in no band"]


def test_a_band_beyond_the_registered_n_cannot_be_reached(make):
    [fault] = preflight().impossible(make.context(planned={"leg0": make.evaluation(6)}))
    assert "the band PASS" in fault and "between 0 and 6" in fault


def test_bands_of_a_number_meet_at_a_point_that_belongs_to_one(make):
    def faults(*bands, statistic="mean"):
        rule = Bands("m", "x", statistic, list(bands))
        return rule.impossible(make.context(planned={"m": make.evaluation(10)}))

    below, at_most = Band("LOW", "FAIL", below=0.2), Band("LOW", "FAIL", at_most=0.2)
    at_least, above = Band("HIGH", "PASS", at_least=0.2), Band("HIGH", "PASS", above=0.2)
    assert faults(below, at_least) == faults(at_most, above) == [] == faults(below, at_least, statistic="share")
    assert faults(below, above) == ["mean 0.2 lies in no band"]
    assert faults(at_most, at_least) == ["mean 0.2 lies in several bands (LOW, HIGH)"]
    assert faults(Band("A", "FAIL", below=0.2), Band("B", "PASS", above=0.5)) == ["mean 0.2 lies in no band"]
    assert (
        "never be reached" in faults(Band("A", "FAIL", at_most=1.0), Band("B", "PASS", above=1.0), statistic="share")[0]
    )


def test_counts_of_unknown_n_are_checked_around_their_edges(make):
    unknown = make.context(planned={"leg0": Planned("recorded")})
    assert preflight().impossible(unknown) == []
    gap = preflight([PREFLIGHT[0], PREFLIGHT[2]])
    assert gap.impossible(unknown) == ["count 3 lies in no band"]


def test_edges_may_be_constants_and_deferred_ones_wait(make):
    bands = [Band("ABORT", "FAIL", below="floor"), Band("PASS", "PASS", at_least="floor")]
    rule = preflight(bands)
    assert rule.constants() == ("floor",)
    evidence = make.recorded("leg0", success=(8, 100))
    assert rule.judge(make.context(evidence, constants={"floor": 7.0})).label == "PASS"
    assert rule.judge(make.context(evidence, constants={"floor": None})).status == "MISSING"
    assert rule.impossible(make.context(evidence, constants={})) == ["the constant floor is not registered"]


def test_a_number_between_bands_is_invalid_and_not_the_nearest_band(make):
    rule = Bands("m", "x", "value", [Band("A", "FAIL", below=0.2), Band("B", "PASS", above=0.5)])
    outcome = rule.judge(make.context(make.recorded("m", x=0.3)))
    assert outcome.status == "INVALID" and "no band" in outcome.sentence
    both = Bands("m", "x", "value", [Band("A", "FAIL", below=0.4), Band("B", "PASS", above=0.2)])
    outcome = both.judge(make.context(make.recorded("m", x=0.3)))
    assert outcome.status == "INVALID" and "A and B" in outcome.sentence


def test_bands_without_a_choice_or_with_an_edge_twice_are_refused():
    with pytest.raises(ConfigError):
        Bands("m", "x", "count", [Band("A", "PASS")])
    with pytest.raises(ConfigError):
        Bands("m", "x", "mean", PREFLIGHT, rate=0.07)
    with pytest.raises(ConfigError):
        Band("A", "PASS", at_least=1, above=2)


@pytest.mark.parametrize(
    ("label", "status"), [("PASS", "FAIL"), ("PASS", "INCONCLUSIVE"), ("ABORT", "PASS"), ("BAND", "PASS")]
)
def test_a_band_is_never_called_what_it_is_not(label, status):
    with pytest.raises(ConfigError, match=label):
        Band(label, status)


EDGES = st.lists(
    st.tuples(st.integers(-1, 5), st.integers(-1, 5), st.booleans(), st.booleans()), min_size=2, max_size=4
)


@given(EDGES)
def test_bands_are_sound_if_and_only_if_every_half_step_lies_in_exactly_one(edges):
    bands = [
        Band(f"b{i}", "PASS", **{"above" if open_low else "at_least": low, "below" if open_high else "at_most": high})
        for i, (low, high, open_low, open_high) in enumerate(edges)
    ]
    lowest, highest = min(e[0] for e in edges), max(e[1] for e in edges)
    bands += [Band("low", "FAIL", below=lowest), Band("high", "PASS", above=highest)]
    rule, context = Bands("m", "x", "mean", bands), Context({"m": Planned("evaluation", tuple(range(10)))})
    hits = [[b.label for b in bands if b.holds(half / 2, context)] for half in range(-8, 18)]
    sound = all(len(hit) == 1 for hit in hits) and len({hit[0] for hit in hits if hit}) == len(bands)
    assert (rule.impossible(context) == []) == sound


def test_a_rate_in_per_cent_is_refused(make):
    context = make.context(planned={"leg0": make.evaluation(100)})
    assert preflight(rate=7.0).impossible(context) == ["rate 7 is no share: it lies between 0 and 1"]
