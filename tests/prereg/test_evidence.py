"""Evidence files: what they hold, what they refuse, and what exclusions do to them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.errors import ConfigError, IntegrityError
from vla_rl.prereg.evidence import parse
from vla_rl.prereg.exclusions import Exclusion, exclude, holds
from vla_rl.prereg.outcome import Outcome, Unjudged

HEAD = {
    "measurement": "endpoint",
    "arm": None,
    "source": {"run": "r1"},
    "policy_digest": "p" * 64,
    "scene_hash": "s" * 64,
    "protocol": "sim100",
    "head": "ar",
    "temperature": 0.0,
}
EPISODES = [
    {"seed": 3, "draw": 0, "success": False, "progress_cm": 1.5, "carry_speed_cm_s": None, "pinch_fail": "wrong_way"},
    {"seed": 1, "draw": 0, "success": True, "progress_cm": 4.0, "carry_speed_cm_s": 0.8, "pinch_fail": None},
]
PAYLOADS = {
    "episodes": {"episodes": EPISODES},
    "counts": {"counts": {"success": [7, 100], "success_won": [3, 100]}},
    "series": {"rows": [{"step": 2, "kl": None}, {"step": 1, "kl": 0.02}]},
    "numbers": {"values": {"gpu_h": 2.25, "strikes": 0}},
}


def record(kind, **changes):
    return {**HEAD, "kind": kind, **PAYLOADS[kind], **changes}


@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_file_survives_reading_and_writing(kind):
    evidence = parse(json.loads(json.dumps(record(kind))))
    assert parse(json.loads(json.dumps(evidence.record()))) == evidence
    assert evidence.name == "endpoint" and parse(record(kind, arm="b1")).name == "endpoint@b1"


def test_episodes_are_read_by_seed_whatever_their_order():
    evidence = parse(record("episodes"))
    assert evidence.seeds == (1, 3) and list(evidence.by_seed) == [1, 3]
    assert evidence.values("progress_cm") == {1: 4.0, 3: 1.5} and evidence.count("success") == (1, 2)
    assert evidence.values("carry_speed_cm_s", skip_null=True) == {1: 0.8}


def test_a_series_is_read_by_step_and_tells_where_there_is_no_value():
    evidence = parse(record("series"))
    assert evidence.series("kl") == [(1, 0.02), (2, None)]
    for wrong in (lambda: evidence.series("loss"), lambda: evidence.values("kl")):
        with pytest.raises(Unjudged) as caught:
            wrong()
        assert caught.value.status == "MISSING"


def test_counts_and_numbers_are_read_by_name():
    assert parse(record("counts")).count("success") == (7, 100) and parse(record("numbers")).number("gpu_h") == 2.25
    for evidence in (parse(record("counts")), parse(record("numbers"))):
        with pytest.raises(Unjudged):
            evidence.count("touched")
        with pytest.raises(Unjudged):
            evidence.number("wall_h")


@pytest.mark.parametrize(
    ("metric", "status"), [("tipped", "MISSING"), ("progress_cm", "INVALID"), ("pinch_fail", "INVALID")]
)
def test_what_is_no_yes_or_no_metric_is_never_counted(metric, status):
    with pytest.raises(Unjudged) as caught:
        parse(record("episodes")).count(metric)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "guess"}, "kind"),
        ({"arm": 3}, "arm"),
        ({"scene_hash": 3}, "scene_hash"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"more": 1}, "more"),
        ({"source": None}, "source"),
        ({"episodes": []}, "episodes"),
        ({"episodes": [{"draw": 0}]}, "episodes[0]"),
        ({"episodes": [{"seed": 1.0}]}, "episodes[0]"),
        ({"episodes": [{"seed": True}]}, "episodes[0]"),
        ({"episodes": [{"seed": 1, "reward": float("inf")}]}, "episodes[0].reward"),
        ({"episodes": [{"seed": 1}, {"seed": 1}]}, "episodes"),
    ],
)
def test_a_malformed_file_names_its_field(changes, field):
    with pytest.raises(IntegrityError) as caught:
        parse({**record("episodes"), **changes}, where="endpoint.json")
    assert field in str(caught.value.where) and "endpoint.json" in str(caught.value.where)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("counts", {"counts": {"success": [8, 7]}}),
        ("counts", {"counts": {"success": [7.0, 8]}}),
        ("counts", {"counts": {"success": 7}}),
        ("counts", {"counts": {}}),
        ("numbers", {"values": {"x": True}}),
        ("numbers", {"values": {"x": None}}),
        ("series", {"rows": [{"step": 1}, {"step": 1}]}),
    ],
)
def test_counts_numbers_and_rows_that_are_none_are_refused(kind, payload):
    with pytest.raises(IntegrityError):
        parse({**record(kind), **payload})


@pytest.mark.parametrize("key", [*HEAD, "episodes"])
def test_every_key_of_a_file_is_required(key):
    with pytest.raises(IntegrityError):
        parse({name: value for name, value in record("episodes").items() if name != key})


def twenty(**metrics):
    rows = [{"seed": s, "success": True, **{name: values[s] for name, values in metrics.items()}} for s in range(20)]
    return parse(record("episodes", episodes=rows))


def test_an_exclusion_takes_out_what_it_names_and_notes_it():
    evidence = twenty(reset_strikes=[0] * 17 + [2, None, 1])
    kept = exclude(evidence, [Exclusion("struck", "endpoint", "reset_strikes", "above", 0, 0.1)])
    assert kept.excluded == {17: "struck", 19: "struck"} and len(kept.episodes) == 18 and not kept.faults
    assert kept.count("success") == (18, 18) and kept.record()["episodes"] != evidence.record()["episodes"]


def test_more_exclusions_than_registered_are_a_fault_and_the_very_share_is_not():
    evidence = twenty(reset_strikes=[1, 1, 1] + [0] * 17)
    at, above = (Exclusion("struck", "endpoint", "reset_strikes", "above", 0, share) for share in (0.15, 0.14))
    assert not exclude(evidence, [at]).faults
    [fault] = exclude(evidence, [above]).faults
    assert "3 of 20" in fault and "0.14" in fault


def test_exclusions_of_other_measurements_do_nothing_and_inapplicable_ones_are_a_fault():
    evidence = twenty()
    assert exclude(evidence, [Exclusion("x", "base", "reset_strikes", "above", 0, 0.1)]) == evidence
    assert exclude(evidence, [Exclusion("x", "endpoint", "reset_strikes", "above", 0, 0.1)]).faults
    assert exclude(parse(record("counts")), [Exclusion("x", "endpoint", "success", "equals", True, 0.1)]).faults


def test_yes_or_no_and_text_are_excluded_by_equality_of_the_same_type_only():
    rows = {"frozen": [True] + [False] * 19, "n": [1] * 20, "kind": ["a"] * 20}
    evidence = twenty(**rows)

    def hit(field, value):
        return list(exclude(evidence, [Exclusion("x", "endpoint", field, "equals", value, 1.0)]).excluded)

    assert hit("frozen", True) == [0] and hit("n", True) == [] and hit("kind", "b") == [] and len(hit("n", 1)) == 20
    with pytest.raises(ConfigError):
        Exclusion("x", "endpoint", "frozen", "above", True, 0.1)
    with pytest.raises(ConfigError):
        Exclusion("x", "endpoint", "n", "above", 1, 1.1)


@given(st.integers(0, 100), st.integers(1, 100), st.sampled_from([0.0, 0.07, 0.1, 0.3, 0.35]))
def test_the_sides_of_a_line_are_exclusive_and_exhaustive(k, n, line):
    from fractions import Fraction

    share = Fraction(k, n)
    assert holds(share, "at_least", line) != holds(share, "below", line)
    assert holds(share, "at_most", line) != holds(share, "above", line)
    assert holds(share, "equals", line) == (holds(share, "at_least", line) and holds(share, "at_most", line))


def test_an_outcome_survives_json_and_tells_n_interval_and_power_in_any_case():
    full = Outcome("PASS", "s", "IMPROVED", 20, 0.3, (0.1, 0.5), 0.95, 0.01, 0.1, 0.42, {"won": 6})
    bare = Outcome("MISSING", "endpoint is not measured yet")
    for outcome in (full, bare):
        assert Outcome.from_record(json.loads(json.dumps(outcome.record()))) == outcome
    assert full.line() == "PASS (IMPROVED): s; n = 20; 95 % interval 0.1 to 0.5; power 0.420 to see +0.1"
    assert bare.line() == "MISSING: endpoint is not measured yet; no n; no interval; no power"
    for wrong in ({**full.record(), "status": "MAYBE"}, {**full.record(), "more": 1}, {"status": "PASS"}):
        with pytest.raises(IntegrityError):
            Outcome.from_record(wrong)
