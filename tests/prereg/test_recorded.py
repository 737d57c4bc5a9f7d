"""Recorded measurements: what they must be of, which scenes they must cover; amendments leave nothing open."""

import json

import pytest
from bench import DRAFT, TINY, prereg, refused

from vla_rl.prereg import yamlfile
from vla_rl.prereg.verdict import Claimed, judge_claim

EXAM = """\
gates:
  - id: exam
    text: the base passes
    rule:
      kind: bands
      measurement: base
      metric: success
      statistic: count
      bands:
        - {label: ABORT, status: FAIL, at_most: 2}
        - {label: PASS, status: PASS, at_least: 3}
budget:
"""
OF = "  - {id: spend, kind: recorded}\n"
MEASURED = OF + "  - {id: base, kind: recorded, seeds: 0-5, temperature: 0.0}\n"
TEXT = DRAFT.replace("budget:\n", EXAM).replace(OF, MEASURED)


def hand_in(bench, **payload) -> str:
    path = bench.root / "outputs" / "handed.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(payload))
    return str(path)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"head": "flow"}, "of the head flow, and base is registered for ar"),
        ({"protocol": "sim100"}, "of the protocol sim100, and base is registered for sim100b"),
        ({"temperature": 1.0}, "of the temperature 1.0, and base is registered for 0.0"),
    ],
)
def test_numbers_of_another_head_protocol_or_temperature_are_not_taken(bench, capsys, said, told):
    bench.frozen("E1", TEXT)
    file = hand_in(bench, counts={"success": [4, 6]}, **said)
    refused(capsys, 2, "read", "E1", "exam", "--from", file, says=told)
    assert "look" not in bench.events()
    right = {**dict.fromkeys(said), "head": "ar", "temperature": 0.0}
    assert prereg("read", "E1", "exam", "--from", hand_in(bench, counts={"success": [4, 6]}, **right)) == 0


def test_a_recorded_count_covers_the_scenes_that_are_registered(bench, capsys):
    bench.frozen("E1", TEXT)
    file = hand_in(bench, counts={"success": [4, 7]})
    assert prereg("read", "E1", "exam", "--from", file) == 0
    assert bench.ledger()[-1]["data"]["decision"] == "ABORT"
    assert "over 7 episodes, not the registered 6" in bench.ledger()[-1]["data"]["outcome"]["sentence"]


@pytest.mark.parametrize(
    ("change", "where", "told"),
    [
        (("seeds: 0-5,", "seeds: 0-5, head: flow,"), "measurements[base].head", "another head than the claim's"),
        (("seeds: 0-5,", "seeds: 0-5, look: full,"), "measurements[base].look", "another look than the claim's"),
        (("seeds: 0-5,", "seeds: 200000-200005,"), "measurements[base].seeds", "may not be used for eval"),
        (("seeds: 0-5,", "seeds: 0-1,"), "gates[exam].rule", "lies in the band PASS: it can never be reached"),
    ],
)
def test_the_linter_asks_a_recorded_measurement_what_it_asks_a_played_one(bench, capsys, change, where, told):
    bench.draft(TEXT.replace(*change))
    refused(capsys, 2, "freeze", "E1", *TINY, "--check", says=(where, told, "1 things are wrong"))


def test_an_amendment_states_everything_that_it_leaves_away(bench):
    bench.frozen("E1")
    added = (
        "reads[more]={id: more, role: secondary, question: q, rule: {kind: interval, measurement: after, line: 0.5}}",
        "measurements[late]={id: late, seeds: 10100-10105, played_by: read}",
    )
    why = ("--reason", "r", "--kind", "scientific", "--data-seen", "none")
    assert prereg("amend", "E1", "--add", added[0], "--add", added[1], *why) == 0
    ops = yamlfile.load((bench.folder() / "amendments/01.yaml").read_bytes(), "01")["ops"]
    read, measurement = (op["to"] for op in ops)
    assert read["never_pool"] is False and read["rule"]["level"] == 0.95 and read["rule"]["sides"] == "two"
    assert measurement["rung"] == "main" and measurement["temperature"] == 0.0 and measurement["kind"] == "evaluation"
    assert prereg("verify", "E1") == 0


def test_a_checked_instrument_generalises_over_nothing():
    told = judge_claim(Claimed("Old and new agree", unit="instrument", head="ar", protocol="sim100"), []).sentence
    assert "for this instrument on what it was checked on (sim100, ar head): Old and new agree." in told


def test_what_was_read_is_shown_as_it_was_judged_though_a_constant_has_changed_since(bench, capsys):
    text = DRAFT.replace("{kind: record, measurement: spend", "{kind: threshold, measurement: spend")
    text = text.replace("statistic: value}", "statistic: value, comparator: at_most, line: most}")
    text = text.replace("falsifiers:", "constants: {most: 1.0}\nfalsifiers:").replace("role: record", "role: secondary")
    bench.frozen("E1", text)
    assert prereg("read", "E1", "money", "--from", hand_in(bench, values={"hours": 2.0})) == 0
    why = ("--reason", "r", "--kind", "scientific", "--data-seen", "outcomes")
    assert prereg("amend", "E1", "--set", "constants.most=3.0", *why) == 0
    refused(capsys, 0, "read", "E1", "money", says="FAIL: hours 2, not <= 1")
    assert prereg("verify", "E1") == 0
