"""What was judged on one run, policy or head says nothing about another that an amendment has put in its place."""

import json

import pytest
from bench import DRAFT, TINY, prereg, refused
from test_record import TOLD, TWO, evaluated, hand_in, loaded, record
from test_recorded import TEXT

from vla_rl import paths

REPRICED = (
    "amend", "E1", "--set", "config.optim.lr=1e-5", "--allowance", "reprice", "--reason", "r", "--kind", "scientific",
    "--data-seen", "outcomes",
)  # fmt: skip
CHANGE = ("--reason", "r", "--kind", "scientific", "--data-seen", "outcomes")
R1 = ("record", "E1", "--rung", "R1", "--how", "finished", "--wall-h", "0.1", *TOLD)
BOTH = TWO.replace("[clip]", "[clip, loss]").replace(
    "falsifiers:",
    "  - id: loss\n    role: secondary\n    question: q\n"
    "    rule: {kind: threshold, measurement: later, metric: loss, statistic: max, comparator: below, line: 9.0}\n"
    "falsifiers:",
)
BOTH = BOTH.replace("  - {id: spend,", "  - {id: later, kind: series, rung: R0}\n  - {id: spend,")


def series(bench, **row):
    return hand_in(bench, rows=[{"step": 1, **row}])


def test_a_boundary_of_a_run_that_is_another_now_lets_nothing_pass(bench, capsys):
    bench.frozen("E1", TWO)
    assert record("--rung", "R0", hours="0.1") == 0
    assert prereg("read", "E1", "clip", *series(bench, clip_fraction=0.1)) == 0
    assert loaded(bench).state.rungs == {"R0": "PROCEED"}
    assert prereg(*REPRICED) == 0 and record("--rung", "R0", hours="0.1") == 0
    refused(capsys, 4, *R1, says="the boundary of R0 needs clip of the run as it is registered now")
    new = (
        "--add", "measurements[again]={id: again, kind: series, rung: R0}", "--add",
        "reads[anew]={id: anew, role: secondary, question: q, rule: {kind: threshold, measurement: again, "
        "metric: clip_fraction, statistic: max, comparator: below, line: 0.2}}",
        "--set", "ladder[R0].proceed_if=[anew]",
    )  # fmt: skip
    assert prereg("amend", "E1", *new, *CHANGE) == 0
    refused(capsys, 4, *R1, says="the boundary of R0 is not judged: it needs anew")
    assert prereg("read", "E1", "anew", *series(bench, clip_fraction=0.1)) == 0
    assert prereg(*R1) == 0 and prereg("verify", "E1") == 0


def test_a_boundary_is_not_judged_by_reads_of_two_runs(bench, capsys):
    bench.frozen("E1", BOTH)
    assert record("--rung", "R0", hours="0.1") == 0
    assert prereg("read", "E1", "clip", *series(bench, clip_fraction=0.1)) == 0
    assert prereg(*REPRICED) == 0 and record("--rung", "R0", hours="0.1") == 0
    assert prereg("read", "E1", "loss", *series(bench, loss=0.1)) == 0
    assert loaded(bench).state.rungs == {}
    refused(capsys, 4, *R1, says="the boundary of R0 needs clip of the run as it is registered now")


@pytest.mark.parametrize(
    ("clip", "verdict"), [(0.1, "INCONCLUSIVE"), (0.9, "REFUTED")], ids=["it supports nothing", "it still refutes"]
)
def test_a_primary_read_of_another_run_supports_nothing(bench, clip, verdict):
    text = DRAFT.replace("id: clip\n    role: secondary", "id: clip\n    role: primary")
    bench.frozen("E1", text.replace("smallest_effect: 0.5", "smallest_effect: null"))
    assert record(hours="0.1") == 0
    assert prereg("read", "E1", "clip", *series(bench, clip_fraction=clip)) == 0
    assert prereg(*REPRICED) == 0 and record(hours="0.1") == 0
    files = (*evaluated(bench, "before", 1.0), *evaluated(bench, "after", 3.0))
    assert prereg("read", "E1", "progress", *files) == 0
    assert prereg("verdict", "E1") == 0 and prereg("verify", "E1") == 0
    found = loaded(bench).state.verdict
    assert found["verdict"] == verdict and found["reasons"][0].startswith(
        "the primary read clip is of a run that an amendment" if verdict == "INCONCLUSIVE" else "clip:"
    )


def test_a_gate_that_was_judged_on_another_policy_lets_nothing_pass(bench, capsys):
    bench.frozen("E1", TEXT)
    assert prereg("read", "E1", "exam", *hand_in(bench, counts={"success": [6, 6]})) == 0
    assert prereg("launch", "E1", "--check") == 0
    other = ("--set", "config.policy.checkpoint=bundled:tiny_full", "--repin")
    assert prereg("amend", "E1", *other, *CHANGE) == 0
    bench.commit("Amend E1")
    told = ("1 thing stands", "the gate exam was judged on checkpoint bundled:tiny_start, and")
    refused(capsys, 4, "launch", "E1", "--check", says=told)
    again = (
        "--remove", "gates[exam]", "--add", "measurements[anew]={id: anew, kind: recorded, seeds: 0-5}", "--add",
        "gates[anew]={id: anew, text: t, rule: {kind: threshold, measurement: anew, metric: success, statistic: count, "
        "comparator: at_least, line: 3}}",
    )  # fmt: skip
    assert prereg("amend", "E1", *again, *CHANGE) == 0
    bench.commit("Amend E1 again")
    assert prereg("read", "E1", "anew", *hand_in(bench, counts={"success": [6, 6]})) == 0
    assert prereg("launch", "E1", "--check") == 0


def test_a_gate_of_a_policy_that_came_later_holds_once_its_files_are_pinned(bench):
    base = bench.root / "ignored_base"
    bench.draft(TEXT)
    assert prereg("freeze", "E1", "--absent", *TINY, f"policy.checkpoint={base.name}") == 0
    bench.commit("Freeze E1")
    assert prereg("activate", "E1") == 0
    assert prereg("read", "E1", "exam", *hand_in(bench, counts={"success": [6, 6]})) == 0
    base.symlink_to(paths.bundled_base("tiny_start"))
    assert prereg("amend", "E1", "--repin", *CHANGE) == 0
    bench.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0


def test_what_an_amendment_took_away_keeps_nothing_from_being_read_shown_and_ended(bench, capsys):
    """A measurement that was opened, an arm and a rung that were run."""
    bench.frozen("E1", TWO.replace("wall_h: 1.0", "wall_h: 9.0") + "levers: {run.seed: [1]}\n")
    arm = loaded(bench).registration.arms[1].id
    assert record("--rung", "R0", hours="0.1") == 0 and record("--rung", "R0", "--arm", arm, hours="0.1") == 0
    assert prereg("read", "E1", "clip", *series(bench, clip_fraction=0.9)) == 0  # STOP
    away = [f"arms[{arm}]", "levers", "ladder[R0]", "reads[clip]", "measurements[training]", "budget.expected.R0"]
    removed = [word for path in away for word in ("--remove", path)]
    assert prereg("amend", "E1", *removed, "--set", "ladder[R1].starts_from=base", *CHANGE) == 0
    assert record("--rung", "R1", hours="0.1") == 0
    assert prereg("status", "E1") == 0 and arm in capsys.readouterr().out
    assert prereg("verdict", "E1") == 0
    reason = loaded(bench).state.verdict["reasons"][0]
    assert reason == "the run was halted: the boundary of R0 says STOP"
    files = []
    for name, reward in (("before", 1.0), ("after", 3.0)):
        file = bench.root / "outputs" / f"{name}.json"
        evaluated(bench, name, reward)
        file.write_text(json.dumps({**json.loads(file.read_text()), "scene_hash": "c0ffee"}))
        files += ["--from", str(file)]
    assert prereg("read", "E1", "progress", *files) == 0
    assert prereg("verdict", "E1") == 0 and prereg("close", "E1") == 0 and prereg("verify", "E1") == 0
    assert loaded(bench).state.verdict["verdict"] == "INCONCLUSIVE"
