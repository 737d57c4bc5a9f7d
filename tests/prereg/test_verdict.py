"""The verdict: its order of precedence over the whole table of outcomes, and what its sentence claims."""

from itertools import product

import pytest

from vla_rl.prereg.outcome import STATUSES, Outcome
from vla_rl.prereg.verdict import WORDS, Claimed, Falsifier, Judged, judge_claim

CLAIM = Claimed("GRPO raises success", scenes=20, protocol="sim100b", head="ar")
READINGS = [(status, exploratory) for status in STATUSES for exploratory in (False, True)]


def read(name, role, reading, **outcome):
    status, exploratory = reading
    return Judged(name, role, Outcome(status, f"{name} is {status}", n=20, **outcome), exploratory)


def expected(primaries, guardrail, falsifier, faults, halted):
    """The precedence written down once more, as a table of conditions on plain data."""
    counting = [status for status, exploratory in primaries if not exploratory]
    others = [r for r in (guardrail, falsifier) if r is not None]
    if faults or any(reading == ("INVALID", False) for reading in [*primaries, *others]):
        return "INVALID"
    if falsifier == ("FAIL", False):
        return "REFUTED"
    if halted or not counting or "MISSING" in counting:
        return "INCONCLUSIVE"
    if "FAIL" in counting:
        return "REFUTED"
    clean = all(reading == ("PASS", False) for reading in [*primaries, *([guardrail] if guardrail else [])])
    answered = falsifier is None or (falsifier[0] != "MISSING" and not falsifier[1])
    return "SUPPORTED" if clean and answered else "INCONCLUSIVE"


@pytest.mark.parametrize(("faults", "halted"), product((False, True), repeat=2))
def test_the_precedence_holds_over_the_whole_table_of_outcomes(faults, halted):
    seen = set()
    for first, second in product(READINGS, repeat=2):
        for guardrail, falsifier in product([None, *READINGS], repeat=2):
            reads = [read("p1", "primary", first), read("p2", "primary", second)]
            reads += [read("g", "guardrail", guardrail)] if guardrail else []
            reads += [read("f", "secondary", falsifier)] if falsifier else []
            verdict = judge_claim(
                CLAIM,
                reads,
                [Falsifier("F", "f", "FAIL", "it falls")] if falsifier else [],
                faults=["a wire fired"] if faults else [],
                halted="out of budget" if halted else None,
            )
            assert verdict.verdict == expected([first, second], guardrail, falsifier, faults, halted), reads
            assert verdict.sentence.startswith(verdict.verdict) and bool(verdict.reasons) == (
                verdict.verdict != "SUPPORTED"
            )
            seen.add(verdict.verdict)
    assert seen == ({"INVALID"} if faults else set(WORDS) - {"SUPPORTED"} if halted else set(WORDS))


def test_secondary_and_recorded_reads_decide_nothing():
    primary = read("p", "primary", ("PASS", False))
    for role, reading in product(("secondary", "record"), READINGS):
        assert judge_claim(CLAIM, [primary, read("s", role, reading)]).verdict == "SUPPORTED"


def test_a_failing_read_cannot_be_amended_out_of_the_verdict():
    passing = read("p", "primary", ("PASS", False))
    assert judge_claim(CLAIM, [passing, read("q", "primary", ("FAIL", False))]).verdict == "REFUTED"
    amended = judge_claim(CLAIM, [passing, read("q", "primary", ("FAIL", True))])
    assert amended.verdict == "INCONCLUSIVE" and "changed after outcomes were seen" in amended.reasons[0]


def test_a_claim_without_primary_reads_or_with_an_unread_falsifier_is_inconclusive():
    assert judge_claim(CLAIM, [read("s", "secondary", ("PASS", False))]).verdict == "INCONCLUSIVE"
    unread = judge_claim(CLAIM, [read("p", "primary", ("PASS", False))], [Falsifier("F", "gone", "PASS", "x")])
    assert unread.verdict == "INCONCLUSIVE" and "was not read" in unread.reasons[0]


def test_a_falsifier_may_be_the_primary_read_and_may_fire_on_pass():
    flat = Falsifier("F-flat", "p", "FAIL", "success does not move")
    verdict = judge_claim(CLAIM, [read("p", "primary", ("FAIL", False))], [flat])
    assert verdict.verdict == "REFUTED" and "F-flat" in verdict.reasons[0]
    material = [Falsifier("F-regression", "flow", "PASS", "the other head fell")]
    reads = [read("p", "primary", ("PASS", False)), read("flow", "secondary", ("PASS", False))]
    assert judge_claim(CLAIM, reads, material).verdict == "REFUTED"
    quiet = [reads[0], read("flow", "secondary", ("INCONCLUSIVE", False))]
    assert judge_claim(CLAIM, quiet, material).verdict == "SUPPORTED"


def test_a_family_of_primary_reads_is_adjusted():
    claim = Claimed("h", family=0.05)
    reads = [read("a", "primary", ("PASS", False), p=0.01), read("b", "primary", ("PASS", False), p=0.04)]
    assert judge_claim(claim, reads).verdict == "SUPPORTED"  # Holm: 0.02 and 0.04
    reads.append(read("c", "primary", ("PASS", False), p=0.03))
    three = judge_claim(claim, reads)  # 0.03, then 2 x 0.03, then no less
    assert three.verdict == "INCONCLUSIVE" and three.adjusted == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert judge_claim(Claimed("h"), reads).verdict == "SUPPORTED"
    without = judge_claim(claim, [read("a", "primary", ("PASS", False))])
    assert without.verdict == "INCONCLUSIVE" and "no p-value" in without.reasons[0]


def test_the_sentence_claims_no_more_than_the_unit_of_analysis():
    passed = [read("p", "primary", ("PASS", False))]
    verdict = judge_claim(CLAIM, passed)
    assert (
        verdict.sentence == "SUPPORTED for this checkpoint on these 20 scenes (sim100b, ar head): GRPO raises success."
    )
    seeds = Claimed("GRPO raises success.", unit="training_seed")
    one = judge_claim(seeds, passed)
    assert one.verdict == "INCONCLUSIVE" and "cover one" in one.reasons[0]
    three = judge_claim(seeds, [read("p", "primary", ("PASS", False), details={"training_seeds": 3})])
    assert three.sentence == "SUPPORTED over 3 training seeds: GRPO raises success."
    invalid = judge_claim(CLAIM, passed, faults=["the gate parity did not hold"])
    assert invalid.sentence == "INVALID, nothing is said about: GRPO raises success. the gate parity did not hold"


def test_a_halted_run_says_so_and_its_record_is_json():
    import json

    verdict = judge_claim(CLAIM, [read("p", "primary", ("PASS", False))], halted="gpu hours spent")
    assert verdict.verdict == "INCONCLUSIVE" and "gpu hours spent" in verdict.sentence
    assert json.loads(json.dumps(verdict.record()))["reasons"] == ["the run was halted: gpu hours spent"]
