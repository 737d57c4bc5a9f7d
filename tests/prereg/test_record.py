"""`vla-rl prereg record`: attempts of other software. Budget, order and state follow from them; their numbers are
handed in, and nobody can take them for something that was played here."""

import json

import pytest
from bench import DRAFT, TINY, prereg, refused

from vla_rl.prereg import ledger
from vla_rl.prereg.budget import account
from vla_rl.prereg.folder import Folder

TOLD = ("--why", "as printed", "--source", "report of August")
WORDS = ("--reason", "r", "--kind", "operational", "--data-seen")
TWO = DRAFT.replace(
    "budget:\n  wall_h: 1.0\n  expected:\n    main: {wall_h: 0.1}\n",
    "ladder:\n  - {id: R0, proceed_if: [clip]}\n"
    "  - {id: R1, starts_from: R0, set: {geometry.train_seed_base: 200100}}\n"
    "budget:\n  wall_h: 1.0\n  expected:\n    R0: {wall_h: 0.1}\n    R1: {wall_h: 0.1}\n",
).replace("{id: training, kind: series}", "{id: training, kind: series, rung: R0}")


def record(*more, how="finished", hours="0.25"):
    return prereg("record", "E1", "--how", how, "--wall-h", hours, *TOLD, *more)


def loaded(bench):
    return Folder(bench.experiments, "E1").load()


def hand_in(bench, measurement=None, **payload):
    bench.root.joinpath("outputs").mkdir(exist_ok=True)
    path = bench.root / "outputs" / f"{measurement or 'handed'}.json"
    path.write_text(json.dumps({**({"measurement": measurement} if measurement else {}), **payload}))
    return ("--from", str(path))


def evaluated(bench, measurement, reward, seeds=range(10000, 10006)):
    return hand_in(bench, measurement, episodes=[{"seed": s, "progress_final_cm": reward + s % 2} for s in seeds])


def test_a_finished_one_is_the_run_and_costs(active, capsys):
    assert record("--step", "1") == 0
    refused(capsys, 4, "launch", "E1", "--check", says=("has its run: attempt 1", "report of August"))
    pool = account(loaded(active).registration, loaded(active).state)
    assert pool.spent == {"wall_h": 0.25} and prereg("verify", "E1") == 0
    assert active.ledger()[-1]["data"] == {
        "attempt": 1, "rung": "main", "arm": "baseline", "exploratory": False, "how": "finished", "why": "as printed",
        "source": "report of August", "wires": [], "wall_h": 0.25, "gpu_h": None, "step": 1,
    }  # fmt: skip
    assert "it could not have been launched" in refused(
        capsys, 4, "record", "E1", "--how", "finished", "--wall-h", "0.1", *TOLD, says="has its run: attempt 1"
    )


def test_its_numbers_are_handed_in_and_verdict_and_report_say_so(active, capsys):
    assert record() == 0
    refused(
        capsys,
        4,
        "read",
        "E1",
        "progress",
        *evaluated(active, "before", 1.0),
        says="the data of after has to be handed in",
    )
    assert "look" in active.events()  # what was there was opened; the other half is still missing
    assert prereg("read", "E1", "progress", *evaluated(active, "after", 3.0)) == 0
    assert prereg("read", "E1", "clip", *hand_in(active, rows=[{"step": 1, "clip_fraction": 0.1}])) == 0
    assert prereg("verdict", "E1") == 0 and prereg("close", "E1") == 0
    verdict = loaded(active).state.verdict
    assert verdict["verdict"] == "SUPPORTED"
    told = "Handed in and not played here: before, after, training. Made by other software: 1 of 1 attempts."
    assert verdict["sentence"].endswith(f"moves the boat farther. {told}")
    report = (active.folder() / "REPORT.md").read_text()
    assert (
        report.count("(handed in, not played here)") == 2
        and "| 1 (other software) | main | baseline | finished |" in report
    )
    evidence = json.loads((active.folder() / "evidence" / "after.json").read_text())
    assert evidence["source"] == {"attempt": 1, "made_elsewhere": "report of August"}
    active.commit("Close E1")
    assert prereg("verify", "E1") == 0


@pytest.mark.parametrize(
    ("payload", "code", "told"),
    [
        ({"rows": [{"step": 1, "progress_final_cm": 1.0}]}, 2, "before is registered as evaluation, and rows are none"),
        ({"values": {"progress_final_cm": 1.0}}, 2, "before is registered as evaluation, and values are none"),
        ({"episodes": [{"seed": 1.5}]}, 2, "entry 0 has no whole number seed"),
        ({"episodes": [{"seed": 1}], "rows": []}, 2, "the file holds no evidence"),
    ],
)
def test_what_does_not_fit_the_measurement_is_not_taken(active, capsys, payload, code, told):
    assert record() == 0
    refused(capsys, code, "read", "E1", "progress", *hand_in(active, "before", **payload), says=told)
    assert "look" not in active.events()


def test_other_scenes_than_the_registered_ones_are_not_judged(active, capsys):
    assert record() == 0
    files = (*evaluated(active, "before", 1.0, range(10000, 10005)), *evaluated(active, "after", 3.0))
    refused(capsys, 4, "read", "E1", "progress", *files, says="before holds 5 of 6 registered seeds; seed 10005 lacks")


def test_nothing_is_handed_in_for_a_run_of_our_own(active, capsys):
    refused(capsys, 2, "read", "E1", "progress", *evaluated(active, "after", 3.0), says="nothing has to be handed in")
    assert active.events()[-1] == "activated"


def test_one_that_its_wire_stopped_halts_the_registration(active, capsys):
    assert record("--wire", "knockaway", how="stopped") == 0
    assert loaded(active).state.name == "HALTED"
    refused(capsys, 4, "launch", "E1", "--check", says="E1 is halted: as printed")
    refused(capsys, 2, "record", "E1", "--how", "failed", "--wall-h", "0", *TOLD, says="while E1 is HALTED")
    assert prereg("amend", "E1", "--set", "config.optim.lr=1e-6", *WORDS, "training") == 0
    assert record() == 0
    assert [a.outdated for a in loaded(active).state.attempts] == [True, False]


def test_a_second_attempt_needs_an_amendment_in_between_however_fast_they_follow(active, capsys, monkeypatch):
    moment = ledger.now()
    monkeypatch.setattr(ledger, "now", lambda: moment)
    assert prereg("amend", "E1", "--set", "summary=mended", *WORDS, "none") == 0
    assert record(how="failed") == 0
    again = ("record", "E1", "--how", "finished", "--wall-h", "0.1", *TOLD)
    refused(capsys, 4, *again, says="a fresh start would be a choice between runs")
    assert prereg("amend", "E1", "--set", "summary=mended again", *WORDS, "training") == 0
    assert prereg(*again) == 0


@pytest.mark.parametrize("how", ["failed", "stopped", "killed"])
def test_one_that_did_not_come_to_its_end_has_no_trained_policy(active, capsys, how):
    assert record(*(["--wire", "knockaway"] if how == "stopped" else []), how=how) == 0
    files = (*evaluated(active, "before", 1.0), *evaluated(active, "after", 3.0))
    refused(capsys, 4, "read", "E1", "progress", *files, says="attempt 1 has not come to its end")
    assert prereg("verdict", "E1") == 0
    assert loaded(active).state.verdict["verdict"] == "INCONCLUSIVE"
    looks = [line["data"]["evidence"] for line in active.ledger() if line["event"] == "look"]
    assert looks == ["before"]  # the policy that it started from was there, however it ended


def test_one_that_failed_cannot_go_on_here_and_is_followed_after_an_amendment(active, capsys):
    assert record(how="failed") == 0
    refused(capsys, 4, "launch", "E1", "--check", says=("attempt 1 of it can go on", "amend first, with the reason"))
    refused(capsys, 4, "launch", "E1", "--resume", "--check", says="made by other software, and nothing of it is here")
    prereg("status", "E1", "--json")
    assert json.loads(capsys.readouterr().out)["next"] == "vla-rl prereg amend E1 ..."
    assert prereg("amend", "E1", "--set", "summary=mended", *WORDS, "training") == 0
    active.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--how", "finished", "--gpu-h", "1"), "the budget counts wall_h"),
        (("--how", "stopped", "--wall-h", "1"), "names what stopped it"),
        (("--how", "finished", "--wall-h", "1", "--wire", "clip"), "names what stopped it"),
        (("--how", "finished", "--wall-h", "1", "--step", "-1"), "-1 updates are none"),
        (("--how", "finished", "--wall-h", "1", "--step", "0"), "has come to its end after 1 updates, not after 0"),
        (("--how", "finished", "--wall-h", "1", "--rung", "R7"), "there is no rung 'R7'"),
    ],
)
def test_it_says_what_it_cost_and_how_it_ended(active, capsys, arguments, told):
    refused(capsys, 2, "record", "E1", *arguments, *TOLD, says=told)
    assert active.events()[-1] == "activated"


@pytest.mark.parametrize("hours", ["-1", "nan", "inf", "many"])
def test_hours_are_hours(active, hours):
    with pytest.raises(SystemExit):
        record(hours=hours)


def test_an_exploratory_one_only_costs(active):
    assert record("--exploratory", "--wire", "clip", how="stopped") == 0
    state = loaded(active).state
    assert state.name == "ACTIVE" and state.of("main", "baseline") == ()
    assert prereg("launch", "E1", "--check") == 0 and record() == 0
    assert account(loaded(active).registration, loaded(active).state).spent == {"wall_h": 0.5}


def test_what_is_handed_in_may_have_cost_something_and_it_is_counted_once(active):
    assert record() == 0
    files = (*evaluated(active, "before", 1.0), *evaluated(active, "after", 3.0))
    assert prereg("read", "E1", "progress", *files, "--wall-h", "0.5") == 0
    assert account(loaded(active).registration, loaded(active).state).spent == {"wall_h": 0.75}


def test_a_budget_that_recorded_attempts_have_used_up_refuses_the_next_launch(active, capsys):
    assert record("--exploratory", hours="0.95") == 0
    refused(
        capsys,
        4,
        "launch",
        "E1",
        "--check",
        says="0.95 wall_h are spent and a launch of main should cost 0.1: 1.05 > 1",
    )


def test_a_run_does_not_come_to_its_end_on_hours_that_the_pool_does_not_have(active, capsys):
    assert record(how="failed", hours="0.75") == 0  # whatever was started costs
    assert prereg("amend", "E1", "--set", "summary=mended", *WORDS, "training") == 0
    dear = ("record", "E1", "--how", "finished", "--wall-h", "0.5", *TOLD)
    refused(capsys, 4, *dear, says="it took 0.5 wall_h, and the pool has 0.25 left")
    assert prereg("amend", "E1", "--set", "budget.wall_h=1.25", *WORDS, "training") == 0
    assert prereg(*dear) == 0


def test_rungs_are_recorded_in_their_order_and_a_stop_ends_the_ladder(bench, capsys):
    bench.frozen("E1", TWO)
    refused(
        capsys, 4, "record", "E1", "--rung", "R1", "--how", "finished", "--wall-h", "0.1", *TOLD, says="boundary of R0"
    )
    assert record("--rung", "R0") == 0
    assert prereg("read", "E1", "clip", *hand_in(bench, rows=[{"step": 1, "clip_fraction": 0.3}])) == 0
    assert loaded(bench).state.rungs == {"R0": "STOP"}
    refused(
        capsys, 4, "record", "E1", "--rung", "R1", "--how", "finished", "--wall-h", "0.1", *TOLD, says="R0 says STOP"
    )
    assert prereg("verdict", "E1") == 0
    assert loaded(bench).state.verdict["reasons"][0] == "the run was halted: the boundary of R0 says STOP (clip)"


def test_the_checkpoint_of_a_recorded_rung_is_not_here_to_start_from(bench, capsys):
    bench.frozen("E1", TWO)
    assert record("--rung", "R0") == 0
    assert prereg("read", "E1", "clip", *hand_in(bench, rows=[{"step": 1, "clip_fraction": 0.1}])) == 0
    refused(capsys, 4, "launch", "E1", "--check", says=("1 thing stands", "other software made R0"))


def test_a_series_may_be_registered_up_to_a_step(bench, capsys):
    bench.draft(DRAFT.replace("kind: series}", "kind: series, step: 2}"))
    refused(capsys, 2, "freeze", "E1", *TINY, "--check", says="a run of 1 has no row 2")
    bench.frozen("E1", DRAFT.replace("kind: series}", "kind: series, step: 1}"), "run.steps=4")
    assert record("--wire", "clip", how="stopped") == 0
    rows = [{"step": 1, "clip_fraction": 0.1}, {"step": 2, "clip_fraction": 0.9}]
    assert prereg("read", "E1", "clip", *hand_in(bench, rows=rows)) == 0
    assert loaded(bench).state.reads["clip"]["outcome"]["estimate"] == 0.1
