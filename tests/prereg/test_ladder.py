"""Rungs, gates, the budget, wires and attempts that were killed: what lets a launch go on and what does not."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench import DRAFT, TINY, Bench, prereg, refused

from vla_rl import paths
from vla_rl.prereg.budget import account
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.process import Process
from vla_rl.prereg.sections import Budget, Cost

MEASUREMENTS = DRAFT.index("measurements:"), DRAFT.index("fallbacks:")
LADDER = (
    DRAFT[: MEASUREMENTS[0]]
    + """\
measurements:
  - {id: start, policy: base, played_by: read, seeds: 10000-10001}
  - {id: top, policy: trained, played_by: read, seeds: 10000-10001}
  - {id: training, kind: series, rung: R0}
  - {id: preflight, kind: recorded}
reads:
  - id: gain
    role: primary
    question: Does the boat end nearer?
    rule: {kind: threshold, measurement: top, metric: progress_final_cm, statistic: mean, comparator: above, line: 0.5}
  - id: floor
    role: secondary
    question: How far does the base bring it?
    rule: {kind: record, measurement: start, metric: progress_final_cm, statistic: mean}
  - id: signal
    role: secondary
    question: Was anything clipped?
    rule: {kind: threshold, measurement: training, metric: clip_fraction, statistic: max, comparator: below, line: 0.2}
gates:
  - id: ready
    text: the base has to be seen to work
    override: true
    rule:
      kind: bands
      measurement: preflight
      metric: worked
      statistic: count
      bands:
        - {label: ABORT, status: FAIL, at_most: 2}
        - {label: BAND, status: INCONCLUSIVE, at_least: 3, at_most: 6}
        - {label: PASS, status: PASS, at_least: 7}
ladder:
  - {id: R0, proceed_if: [signal]}
  - {id: R1, starts_from: R0, set: {optim.lr: 1.0e-5}}
budget:
  wall_h: 1.0
  expected:
    R0: {wall_h: 0.1}
    R1: {wall_h: 0.1}
"""
)


def hand_in(bench, read, **values):
    path = bench.root / "outputs" / "handed.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))
    return prereg("read", "E1", read, "--from", str(path))


def write(bench, event, data):
    folder = Folder(bench.experiments, "E1")
    with folder.ledger.locked():
        folder.write(event, data, effective=folder.load().effective)


def ran(bench, number, rung="main", *, how="finished", **cost):
    """An attempt, as its process would have recorded it."""
    write(bench, "launched", {
        "attempt": number, "rung": rung, "arm": "baseline", "run": f"outputs/run{number}", "resume": False,
        "exploratory": False, "set": {}, "process": {**Process.own().body(), "started": 1}, "on_gpu": True,
    })  # fmt: skip
    hours = {"wall_h": 0.0, "gpu_h": 0.0, **cost}
    write(bench, "attempt_ended", {
        "attempt": number, "how": how, "exit_code": 0, "why": "", **hours, "files": {}, "step": 1,
        "policy_digest": None, "base_digest": None,
    })  # fmt: skip


@pytest.fixture(scope="session")
def _gated_template(tmp_path_factory, used):
    """Two rungs from a base of its own, active."""
    made = Bench.make(tmp_path_factory.mktemp("rungs") / "repo")
    shutil.copytree(paths.bundled_base("tiny_start"), made.root / "base")
    with (made.root / ".gitignore").open("a") as file:
        file.write("base/\n")
    made.commit("more")
    with used(made):
        return made.frozen("E1", LADDER, "policy.checkpoint=base", "eval.seeds=300", "eval.slots=1")


@pytest.fixture
def gated(_gated_template, tmp_path, use):
    """The gate before the first rung is not judged yet."""
    return use(_gated_template.copy(tmp_path / "repo"))


@pytest.fixture(scope="session")
def _rungs_template(_gated_template, tmp_path_factory, used):
    with used(_gated_template.copy(tmp_path_factory.mktemp("open") / "repo")) as made:
        assert hand_in(made, "ready", counts={"worked": [9, 20]}) == 0
    return made


@pytest.fixture
def rungs(_rungs_template, tmp_path, use):
    return use(_rungs_template.copy(tmp_path / "repo"))


@pytest.fixture(scope="session")
def _climbed_template(_rungs_template, tmp_path_factory, used):
    """Both rungs were run, nothing of the second one read."""
    with used(_rungs_template.copy(tmp_path_factory.mktemp("climbed") / "repo")) as made:
        assert prereg("launch", "E1") == 0
        assert prereg("launch", "E1") == 4, "the boundary is not judged"
        assert prereg("read", "E1", "signal") == 0
        assert prereg("launch", "E1") == 0
    return made


@pytest.fixture
def climbed(_climbed_template, tmp_path, use):
    return use(_climbed_template.copy(tmp_path / "repo"))


# -------------------------------------------------------------------------------------------------------- rungs
def test_the_next_rung_starts_from_what_the_last_one_published(climbed):
    assert [e for e in climbed.events() if e not in ("registered", "activated", "gate_passed")] == [
        "look", "launched", "attempt_ended", "published", "gate_refused", "look", "read", "rung", "launched",
        "attempt_ended",
    ]  # fmt: skip
    first, second = (e["data"] for e in climbed.ledger() if e["event"] == "attempt_ended")
    published = next(e["data"] for e in climbed.ledger() if e["event"] == "published")
    assert second["base_digest"] == first["policy_digest"] != first["base_digest"]
    assert published["receipt"]["policy_digest"] == first["policy_digest"]
    config = (climbed.root / "outputs/prereg/E1/R1-baseline/attempt_02/config.yaml").read_text()
    assert published["directory"] in config and (climbed.root / published["directory"]).is_dir()
    assert next(e["data"] for e in climbed.ledger() if e["event"] == "rung") == {
        "rung": "R0", "decision": "PROCEED", "reads": ["signal"],
    }  # fmt: skip
    assert prereg("verify", "E1") == 0


def test_a_rung_is_not_launched_before_the_one_before_it(rungs, capsys):
    refused(
        capsys,
        4,
        "launch",
        "E1",
        "--rung",
        "R1",
        says=("the boundary of R0 is not judged: it needs signal", "starts from"),
    )
    assert "the checkpoint of R0 that R1 starts from is not there" in json.dumps(rungs.ledger()[-1]["data"])
    assert prereg("launch", "E1", "--rung", "R0", "--check") == 0


def test_a_boundary_that_says_stop_stops_for_good(rungs, capsys):
    text = LADDER.replace("proceed_if: [signal]", "proceed_if: [enough]").replace(
        "gates:\n",
        "  - id: enough\n    role: secondary\n    question: q\n    rule: {kind: threshold, measurement: preflight, "
        "metric: more, statistic: value, comparator: above, line: 1.0}\ngates:\n",
    ).replace("id: preflight, kind: recorded}", "id: preflight, kind: recorded, rung: R0}")  # fmt: skip
    text = text[: text.index("gates:")] + text[text.index("ladder:") :]
    rungs.draft(text, "E2")
    assert prereg("freeze", "E2", *TINY) == 0
    rungs.commit("Freeze E2")
    assert prereg("activate", "E2") == 0
    path = rungs.root / "outputs/more.json"
    path.write_text('{"values": {"more": 0.5}}')
    assert prereg("read", "E2", "enough", "--from", str(path)) == 0
    assert rungs.ledger("E2")[-1]["data"] == {"rung": "R0", "decision": "STOP", "reads": ["enough"]}
    refused(capsys, 4, "launch", "E2", "--rung", "R1", says="the boundary of R0 says STOP")
    amend = ("--reason", "x", "--kind", "scientific", "--data-seen", "outcomes")
    assert prereg("amend", "E2", "--set", "ladder[R0].proceed_if=[]", *amend) == 0
    rungs.commit("Amend E2")
    refused(capsys, 4, "launch", "E2", "--rung", "R1", says="the boundary of R0 says STOP")
    assert prereg("verify", "E2") == 0


def test_a_published_checkpoint_is_not_exchanged_before_the_next_rung(climbed, capsys):
    """As after the first rung: the second attempt is not on record yet."""
    lines = (climbed.folder() / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (climbed.folder() / "ledger.jsonl").write_bytes(b"".join(lines[:-2]))
    climbed.git("update-ref", "-d", "refs/vla_rl/prereg/E1")
    assert prereg("launch", "E1", "--rung", "R1", "--check") == 0
    published = next(e["data"] for e in climbed.ledger() if e["event"] == "published")["directory"]
    shutil.copy(climbed.root / "base/model-00001-of-00002.safetensors", climbed.root / published)
    refused(capsys, 4, "launch", "E1", "--rung", "R1", "--check", says=("not the one that was published", published))


def test_a_base_that_was_exchanged_is_neither_launched_nor_played(climbed, capsys):
    path = climbed.root / "base/model-00001-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    says = "pins.checkpoint.files.model-00001-of-00002.safetensors"
    refused(capsys, 4, "read", "E1", "floor", says=says)
    refused(capsys, 4, "launch", "E1", "--rung", "R1", "--check", says=says)
    assert climbed.events()[-1] == "attempt_ended"


def test_code_that_was_changed_plays_no_evaluation(climbed, capsys):
    (climbed.root / "src/pkg/code.py").write_text("VALUE = 2\n")
    refused(capsys, 4, "read", "E1", "gain", says=("cannot be played here", "pins.code.package_tree"))


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_checkpoint_of_the_run_that_was_exchanged_is_not_read(climbed, capsys, whole):
    """The first rung's weights, or its whole checkpoint, in the place of the second one's."""
    runs = climbed.root / "outputs/prereg/E1"
    (mine,) = (runs / "R1-baseline/attempt_02/checkpoints").iterdir()
    (other,) = (runs / "R0-baseline/attempt_01/checkpoints").iterdir()
    for file in other.iterdir() if whole else other.glob("*.safetensors"):
        shutil.copy(file, mine / file.name)
    refused(capsys, 5, "read", "E1", "gain")
    assert (
        not (climbed.folder() / "evidence/top.json").exists()
        and "gain" not in Folder(climbed.experiments, "E1").load().state.reads
    )


@pytest.mark.slow
def test_an_evaluation_that_nobody_recorded_is_played_anew(climbed):
    """A record of an evaluation that somebody put there, with the outcomes that they would like."""
    place = climbed.root / "outputs/prereg/E1/evaluations"
    for name in ("start", "top"):
        (place / name).mkdir(parents=True)
        (place / name / "eval.json").write_text('{"summary": {}, "policy": {"digest": "x"}, "episodes": []}')
    assert prereg("read", "E1", "floor") == 0 and prereg("read", "E1", "gain") == 0
    evidence = json.loads((climbed.folder() / "evidence/top.json").read_text())
    assert evidence["source"]["evaluation"].endswith("evaluations/top.2") and len(evidence["episodes"]) == 2
    ended = [e["data"] for e in climbed.ledger() if e["event"] == "attempt_ended"][-1]
    assert evidence["policy_digest"] == ended["policy_digest"]
    published = [e["data"] for e in climbed.ledger() if e["event"] == "published"][-1]
    assert published["run"] == "R1/baseline" and prereg("verify", "E1") == 0


# -------------------------------------------------------------------------------------------------------- gates
@pytest.mark.parametrize("worked, decision", [(2, "ABORT"), (3, "BAND"), (6, "BAND"), (7, "PASS")])
def test_a_gate_lets_pass_holds_back_or_aborts(gated, capsys, worked, decision):
    refused(capsys, 4, "launch", "E1", "--check", says="the gate ready is not judged")
    refused(capsys, 4, "override", "E1", "ready", "--reason", "x", says="is not judged")
    assert hand_in(gated, "ready", counts={"worked": [worked, 20]}) == 0
    assert gated.events()[-1] == ("gate_passed" if decision == "PASS" else "gate_refused")
    assert gated.ledger()[-1]["data"]["decision"] == decision
    told = capsys.readouterr().out
    assert f"gate ready: {decision}" in told and "n = 20" in told and "interval" in told
    if decision == "PASS":
        assert prereg("launch", "E1", "--check") == 0
    else:
        refused(capsys, 4, "launch", "E1", "--check", says=f"the gate ready says {decision}")
        assert hand_in(gated, "ready", counts={"worked": [20, 20]}) == 0, "it shows what is on record"
        refused(capsys, 4, "launch", "E1", "--check", says=f"the gate ready says {decision}")
    overridden = prereg("override", "E1", "ready", "--reason", "decided by Ada")
    assert overridden == (0 if decision == "BAND" else 4)
    assert prereg("launch", "E1", "--check") == (4 if decision == "ABORT" else 0)
    assert prereg("verify", "E1") == 0
    if decision == "ABORT":
        assert prereg("verdict", "E1") == 0 and gated.ledger()[-1]["data"]["verdict"] == "INVALID"


def test_a_band_without_a_registered_override_holds(bench, capsys):
    bench.frozen("E1", LADDER.replace("override: true", "override: false"))
    assert hand_in(bench, "ready", counts={"worked": [4, 20]}) == 0
    refused(capsys, 4, "override", "E1", "ready", "--reason", "x", says="no override is registered")
    refused(capsys, 4, "launch", "E1", "--check", says=("says BAND", "no override is registered"))


def test_a_gate_that_aborted_is_not_amended_away(gated, capsys):
    assert hand_in(gated, "ready", counts={"worked": [1, 20]}) == 0
    assert prereg("amend", "E1", "--remove", "gates[ready]", "--reason", "x", "--kind", "scientific", "--data-seen",
                  "outcomes") == 0  # fmt: skip
    assert prereg("verdict", "E1") == 0 and gated.ledger()[-1]["data"]["verdict"] == "INVALID"


# ------------------------------------------------------------------------------------------------------- budget
def test_a_launch_that_the_pool_does_not_hold_is_refused(bench, capsys):
    bench.frozen("E1", DRAFT.replace("  wall_h: 1.0", "  gpu_h: 20.0").replace("{wall_h: 0.1}", "{gpu_h: 14.9}"))
    assert prereg("launch", "E1", "--check") == 0
    ran(bench, 1, how="killed", gpu_h=6.6)
    told = refused(capsys, 4, "launch", "E1", "--check", says="budget")
    assert "6.6 gpu_h are spent and a launch of main should cost 14.9: 21.5 > 20" in told
    amended = ("--set", "budget.gpu_h=21.5", "--reason", "x", "--kind", "operational", "--data-seen", "training")
    assert prereg("amend", "E1", *amended) == 0
    bench.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0, "the last hour may be spent"


def test_whatever_was_started_was_spent(bench):
    """Attempts that were killed, exploratory ones, evaluations: one pool, by hand."""
    bench.frozen(
        "E1",
        DRAFT.replace("  wall_h: 1.0", "  gpu_h: 20.0\n  wall_h: 30.0").replace(
            "{wall_h: 0.1}", "{gpu_h: 1.0, wall_h: 0.1}"
        ),
    )
    for number, (how, gpu_h, wall_h) in enumerate(
        [("killed", 1.5, 2.0), ("failed", 0.25, 0.5), ("paused", 2.0, 2.5)], 1
    ):
        ran(bench, number, how=how, gpu_h=gpu_h, wall_h=wall_h)
    assert hand_in(bench, "money", values={"hours": 1.0}) == 0
    loaded = Folder(bench.experiments, "E1").load()
    pool = account(loaded.registration, loaded.state)
    assert (pool.spent, pool.left) == ({"gpu_h": 3.75, "wall_h": 5.0}, {"gpu_h": 16.25, "wall_h": 25.0})
    for limit, expected, fits in ((4.0, 0.25, True), (4.0, 0.2501, False), (3.75, 0.0, True), (3.7, 0.0, False)):
        budget = Budget(gpu_h=limit, expected={"main": Cost(gpu_h=expected)})
        short = account(dataclasses.replace(loaded.registration, budget=budget), loaded.state).shortfall("main")
        assert (short is None) == fits, (limit, expected, short)


# ----------------------------------------------------------------------------------------------------- attempts
@pytest.mark.slow
def test_a_wire_that_fires_halts_and_only_an_amendment_goes_on(bench, capsys):
    wire = ("tripwires.collapse=armed", "tripwires.collapse_waves=1", "tripwires.collapse_std_cm=1000")
    bench.frozen("E1", DRAFT, *wire)
    refused(capsys, 3, "launch", "E1")
    assert bench.events()[-3:] == ["launched", "tripwire", "attempt_ended"]
    assert bench.ledger()[-2]["data"]["wires"] == ["collapse"] and bench.ledger()[-1]["data"]["how"] == "stopped"
    for how in ([], ["--resume"], ["--exploratory"]):
        refused(capsys, 4, "launch", "E1", *how, says=("E1 is halted", "only an amendment goes on"))
    refused(capsys, 4, "read", "E1", "clip", says=("training is sealed", "a run that stopped itself is no evidence"))
    assert prereg("verdict", "E1") == 0
    assert bench.ledger()[-1]["data"]["verdict"] == "INCONCLUSIVE"
    change = (
        "--set",
        "config.tripwires.collapse=record",
        "--reason",
        "x",
        "--kind",
        "scientific",
        "--data-seen",
        "training",
    )
    assert prereg("amend", "E1", *change) == 0
    bench.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0
    assert prereg("verify", "E1") == 0


CHILD = """\
import sys
from pathlib import Path
from bench import Bench, prereg
from vla_rl.prereg.pins import Place
made = Bench(Path(sys.argv[1]))
Place.here = classmethod(lambda cls: made.place())
sys.exit(prereg("launch", "E1", *sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_killed_launch_is_buried_with_its_cost_and_goes_on_to_the_same_weights(bench, tmp_path, use, capsys):
    bench.frozen("E1", DRAFT, "run.steps=2", "checkpoint.every=1")
    clean = bench.copy(tmp_path / "clean")
    use(clean)
    assert prereg("launch", "E1") == 0
    wanted = clean.ledger()[-1]["data"]["policy_digest"]
    use(bench)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(bench.root)], cwd=bench.root, env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    run = bench.root / "outputs/prereg/E1/main-baseline/attempt_01"
    deadline = time.monotonic() + 120
    while not (run / "checkpoints/step_0001/state.json").is_file():
        assert child.poll() is None and time.monotonic() < deadline, "it ended before it could be killed"
        time.sleep(0.02)
    refused(capsys, 4, "launch", "E1", "--check", says=f"process {child.pid}")
    child.send_signal(signal.SIGKILL)
    child.wait()
    refused(capsys, 4, "read", "E1", "progress", says="sealed")
    killed = bench.ledger()[-1]["data"]
    assert (killed["how"], killed["exit_code"], killed["step"]) == ("killed", None, 1) and killed["wall_h"] > 0
    assert prereg("launch", "E1", "--resume") == 0
    ended = bench.ledger()[-1]["data"]
    assert ended["how"] == "finished" and ended["policy_digest"] == wanted and ended["attempt"] == 2
    loaded = Folder(bench.experiments, "E1").load()
    spent = account(loaded.registration, loaded.state).spent["wall_h"]
    assert spent == pytest.approx(killed["wall_h"] + ended["wall_h"])
    assert prereg("read", "E1", "progress") == 0 and prereg("verify", "E1") == 0
